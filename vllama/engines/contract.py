"""Check that an object which another package calls an adapter satisfies `base.Engine`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import cast

from vllama.engines.base import Engine, FailurePattern, Mode, Overhead
from vllama.models.types import Format

# each read-only attribute, what it has to be, and the type of its items if it is a sequence
ATTRIBUTES: Mapping[str, tuple[str, type, type | None]] = {
    "name": ("a string", str, None),
    "aliases": ("a tuple of strings", Sequence, str),
    "title": ("a string", str, None),
    "formats": ("a tuple of vllama.models.types.Format", Sequence, Format),
    "modes": ("a tuple of vllama.engines.base.Mode", Sequence, Mode),
    "overhead": ("a vllama.engines.base.Overhead", Overhead, None),
    "failures": ("a tuple of vllama.engines.base.FailurePattern", Sequence, FailurePattern),
}
# each method and the arguments that it is called with
METHODS: Mapping[str, tuple[str, ...]] = {
    "find": ("search_paths",),
    "preference": ("platform",),
    "refuses": ("platform", "info"),
    "launch": ("bundle", "settings", "installation", "endpoint", "environ"),
    "traits": ("bundle", "settings"),
}
SEE = "see CONTRIBUTING.md, 'Add an engine'"


class AdapterError(Exception):
    """An adapter cannot be used; the message completes "cannot use engine 'x' of package y: "."""


def validate_adapter(adapter: object) -> Engine:
    """Return the adapter. Raises AdapterError with everything that is wrong with it."""
    if isinstance(adapter, type):
        raise AdapterError(
            f"the entry point names the class {adapter.__name__}, not an instance of it; {SEE}"
        )
    wrong = [
        *(_check_attribute(adapter, name) for name in ATTRIBUTES),
        *(_check_method(adapter, name) for name in METHODS),
    ]
    if found := [words for words in wrong if words]:
        raise AdapterError(f"it {', and '.join(found)}; {SEE}")
    return cast("Engine", adapter)  # the checks above are what mypy checks for built-in adapters


def _check_attribute(adapter: object, name: str) -> str:
    """Return what is wrong with an attribute, empty if nothing is."""
    words, kind, item_kind = ATTRIBUTES[name]
    if not hasattr(adapter, name):
        return f"has no `{name}`"
    value = getattr(adapter, name)
    right = isinstance(value, kind) and (item_kind is None or not isinstance(value, str))
    if right and item_kind is not None:
        right = all(isinstance(item, item_kind) for item in value)
    if right and name in ("name", "title"):
        right, words = bool(value), "a string that is not empty"
    return "" if right else f"has a `{name}` that is not {words}"


def _check_method(adapter: object, name: str) -> str:
    """Return what is wrong with a method, empty if nothing is."""
    if not hasattr(adapter, name):
        return f"has no `{name}`"
    method, arguments = getattr(adapter, name), METHODS[name]
    if not callable(method):
        return f"has a `{name}` that is not a method"
    try:
        inspect.signature(method).bind(*arguments)
    except TypeError:
        return f"has a `{name}` that cannot be called with ({', '.join(arguments)})"
    except ValueError:  # a builtin without a signature
        return ""
    return ""
