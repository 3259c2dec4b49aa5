"""What the shell offers for the word that is being typed: models, engines, choices.

Where nothing is offered, the shell offers files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

LIMIT_S = 1.0
"""A shell that waits for a slow server is worse than one that offers nothing."""

Complete = Callable[[str], list[str]]


def complete_model(incomplete: str) -> list[str]:
    """Return the names of the server's models that begin so; none where there is no server."""
    from vllama import config
    from vllama.base.errors import VllamaError
    from vllama.cli.client import Client

    try:
        settings = config.load({}, config.environ())
        with Client(settings.url, key=settings.key_to_send, limit_s=LIMIT_S) as client:
            models = client.get("/api/tags").get("models") or []
    except VllamaError:
        return []
    return begin(incomplete, (str(model.get("name", "")) for model in models))


def complete_engine(incomplete: str) -> list[str]:
    """Return the names of the known engines that begin so."""
    from vllama.engines.registry import list_points

    return begin(incomplete, sorted(point.name for point in list_points()))


def complete_key(incomplete: str) -> list[str]:
    """Return the names of the keys in the data folder that begin so."""
    from vllama import config
    from vllama.accounts.keys.store import read_keys
    from vllama.base.errors import VllamaError

    try:
        settings = config.load({}, config.environ())
        keys = read_keys(config.keys_file(settings.data_dir))
    except VllamaError:
        return []
    return begin(incomplete, (key.name for key in keys))


def complete_words(*words: str) -> Complete:
    """Return what completes one of some words."""
    return lambda incomplete: begin(incomplete, words)


def complete_schema(schema: Mapping[str, Any]) -> Complete | None:
    """Return what completes the words that a JSON schema allows; None if it lists none."""
    parts = (schema, *schema.get("anyOf", ()))
    words = [str(word) for part in parts for word in part.get("enum", ())]
    return complete_words(*words) if words else None


def begin(incomplete: str, words: Iterable[str]) -> list[str]:
    """Return the words that begin so."""
    return [word for word in words if word.startswith(incomplete)]
