"""The last step of every body for an engine: only the fields that it takes, where it takes them.

Engines differ in what they do with a field that they do not know: most ignore it, some refuse the
whole request. One reads sampling from a JSON object inside a string.

See docs/reference/engines.md#differences-between-engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from vllama.chat.engine.traits import Traits
from vllama.chat.go_json import encode_json


def engine_body(body: Mapping[str, Any], traits: Traits) -> bytes:
    """Encode a body: completed by `traits.always`, dotted names packed, the rest left out.

    A list in `always` is added to the request's own. Nothing is copied for an engine that declares
    none of it.
    """
    if not traits.always and traits.taken_fields is None:
        return encode_json(body)
    out = {**traits.always, **body}
    for name, value in traits.always.items():
        if isinstance(value, list) and isinstance(body.get(name), list):
            out[name] = [*body[name], *value]
    packed: dict[str, dict[str, Any]] = {}
    for name in (*traits.parameters.values(), *traits.always):
        field, dot, inner = name.partition(".")
        if dot and name in out:
            packed.setdefault(field, {})[inner] = out.pop(name)
    out |= {field: msgspec.json.encode(value).decode() for field, value in packed.items()}
    taken = traits.taken_fields
    return encode_json({k: v for k, v in out.items() if taken is None or k in taken})
