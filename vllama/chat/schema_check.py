"""A finished response against its schema, where the engine's grammar cannot hold all of that.

The check is a job of a worker process (`templates.jinja.renderer`), whose limits end a costly one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from vllama.chat.bodies import encode_json
from vllama.chat.engine.events import Event

MAX_CHARACTERS = 1024 * 1024
"""Of one answer, all choices together; a longer one is not checked."""


class SchemaCheck:
    """The last filter of an answer: collects the `texts` of the choices that end by themselves."""

    is_idle = False  # each text is wanted

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        """`wanted` is the client's `response_format`."""
        self.schema = encode_json((wanted.get("json_schema") or wanted)["schema"]).decode()
        self.texts: list[str] = []
        self._parts: dict[int, list[str]] = {}
        self._room = MAX_CHARACTERS

    def take(self, event: Event) -> None:
        """Keep the text of an event, which stays as it is."""
        for choice in event.chunk.choices or ():
            text = (choice.text if choice.delta is None else choice.delta.content) or ""
            parts = self._parts.setdefault(choice.index, [])
            self._room -= len(text)
            if self._room >= 0:
                parts.append(text)
                if choice.finish_reason == "stop":
                    self.texts.append("".join(parts))


def find_violations(schema: str, texts: Sequence[str]) -> str:
    """Return the paths of the keywords that texts break; `schema` for what is no JSON.

    Nothing is said of a schema that its own draft does not allow.
    """
    import jsonschema_rs  # not for the server's process

    found: dict[str, None] = {}
    try:
        validator = jsonschema_rs.validator_for(
            json.loads(schema), validate_formats=True, offline=True
        )
        for text in texts:
            try:
                value = json.loads(text)
            except ValueError:
                found["schema"] = None
                continue
            for error in islice(validator.iter_errors(value), 1000):
                steps = [step for step in error.evaluation_path if step != "$ref"]
                shown = (f"[{one}]" if isinstance(one, int) else f".{one}" for one in steps)
                found["_".join("".join(("schema", *shown)).split())] = None
    except (ValueError, RecursionError, jsonschema_rs.ReferencingError):
        pass
    return "\n".join(found)
