"""A finished response against its schemas, where the engine's grammar cannot hold all of that.

The check is a job of a worker process (`templates.jinja.renderer`), whose limits end a costly one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice

from vllama.chat.bodies import encode_json
from vllama.chat.engine.events import Delta, Event, FunctionDelta
from vllama.chat.request import PlacedSchema

MAX_CHARACTERS = 1024 * 1024
"""Of one answer, all choices and calls together; a longer one is not checked."""


class SchemaCheck:
    """The last filter of an answer: collects texts, or calls, of choices that end by themselves."""

    is_idle = False  # each text is wanted

    def __init__(self, wanted: Mapping[str, PlacedSchema]) -> None:
        """`wanted`: the schemas of tools' arguments by name, under "" that of the text."""
        self._wanted = wanted
        self.found: list[tuple[str, str]] = []
        """Names as in `wanted`, and what has come."""
        self._parts: dict[int, dict[int | None, tuple[str, list[str]]]] = {}
        self._room = MAX_CHARACTERS

    def take(self, event: Event) -> None:
        """Keep what an event says, which stays as it is."""
        for choice in event.chunk.choices or ():
            delta = choice.delta or Delta(content=choice.text)
            calls = ((x.index, x.function or FunctionDelta()) for x in delta.tool_calls or ())
            texts = self._parts.setdefault(choice.index, {})
            for index, piece in ((None, FunctionDelta(arguments=delta.content)), *calls):
                said = piece.arguments or ""
                self._room -= len(said)
                if self._room >= 0:
                    texts.setdefault(index, (piece.name or "", []))[1].append(said)
            if self._room >= 0 and choice.finish_reason in ("stop", "tool_calls"):
                called = choice.finish_reason == "tool_calls"
                self.found += [
                    (name, "".join(parts))
                    for index, (name, parts) in texts.items()
                    if (index is not None) == called
                ]

    def make_jobs(self) -> list[tuple[str, str, list[str]]]:
        """Return each schema that is to be checked, its place and what came for it.

        The schema is empty where none was wanted: the text of a forced call, another tool's.
        """
        texts: dict[str, list[str]] = {}
        for name, text in self.found:
            texts.setdefault(name, []).append(text)
        jobs = []
        for name, said in texts.items():
            where, schema = self._wanted.get(name, ("tool_choice", None))
            jobs.append((where, "" if schema is None else encode_json(schema).decode(), said))
        return jobs


def find_violations(jobs: Sequence[tuple[str, str, Sequence[str]]]) -> str:
    """Return the paths of the keywords that texts break; a schema's place for what is no JSON.

    Nothing is said of a schema that its own draft does not allow.
    """
    import jsonschema_rs  # not for the server's process

    found: dict[str, None] = {}
    for where, schema, texts in jobs:
        if not schema:
            found[where] = None
            continue
        with suppress(ValueError, RecursionError, jsonschema_rs.ReferencingError):
            validator = jsonschema_rs.validator_for(
                json.loads(schema), validate_formats=True, offline=True
            )
            for text in texts:
                try:
                    value = json.loads(text)
                except ValueError:
                    found[where] = None
                    continue
                for error in islice(validator.iter_errors(value), 1000):
                    steps = [step for step in error.evaluation_path if step != "$ref"]
                    shown = (f"[{one}]" if isinstance(one, int) else f".{one}" for one in steps)
                    found["_".join("".join((where, *shown)).split())] = None
    return "\n".join(found)
