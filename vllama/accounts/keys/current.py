"""The key of the request that the current task answers, and what it allows."""

from __future__ import annotations

from contextvars import ContextVar

from vllama.accounts.keys.key import Key, Scope
from vllama.base.errors import Forbidden

current_key: ContextVar[Key | None] = ContextVar("current_key", default=None)


def may_use(*names: str) -> bool:
    """Return whether the request may use a model that has one of `names`."""
    key = current_key.get()
    return key is None or key.may_use(*names)


def check_model(*names: str) -> None:
    """Raise Forbidden unless the request may use a model that has one of `names`."""
    if not may_use(*names):
        key = current_key.get()
        assert key is not None
        raise Forbidden(
            f"cannot use the model '{names[0]}': the key '{key.name}' does not allow it",
            hint=f"its models are: {', '.join(key.models)}",
        )


def check_path(name: str) -> None:
    """Raise Forbidden unless the request may name a model by its path, whatever lies there."""
    key = current_key.get()
    if key is not None and not key.allows(Scope.ADMIN):
        raise Forbidden(
            f"cannot use the path '{name}': the key '{key.name}' may use models by name only",
            hint="take a name that 'vllama list' shows, or a key with the scope 'admin'",
        )
