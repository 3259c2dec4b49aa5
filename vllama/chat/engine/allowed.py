"""The last step of every body for an engine: the changes that only its adapter knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllama.chat.engine.traits import Traits
from vllama.chat.go_json import encode_json


def engine_body(body: Mapping[str, Any], traits: Traits) -> bytes:
    """Encode a body as the engine's adapter finishes it."""
    return encode_json(traits.finish_body(dict(body)) if traits.finish_body else body)
