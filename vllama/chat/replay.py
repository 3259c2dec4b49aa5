"""An answer that is asked for again because its engine has died: what the client has is swallowed.

With the same request and seed an engine gives the same answer again. What has come of it before is
compared and taken out, by characters and before any filter, so that filters, stop sequences, tool
calls and the writers of all dialects go on without knowing. Nothing else gives equal answers: what
is computed for many tokens at once differs slightly (docs/decisions/0033).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from vllama.base.errors import EngineCrashed
from vllama.chat.engine.events import Chunk, ChunkChoice
from vllama.chat.request import Call

Key = tuple[int, str]
"""A choice, and what of it: its text, its thinking, or the arguments of one of its calls."""
CONTENT, THINKING = "content", "thinking"


class Departed(EngineCrashed):
    """The answer that was asked for again is another one."""

    def __init__(self) -> None:
        super().__init__(
            "cannot continue: the engine crashed, and its response differs after the restart"
        )


# what makes the engine begin a form again, or tell of each token
_KEEPS_STATE = ("json_schema", "grammar", "response_format", "logprobs", "n_probs")


class Rest(NamedTuple):
    """Calls that go on from what has been said."""

    read_said: Call
    """Reads the prompt and what has been said, and asks for no tokens."""
    go_on: Call

    def without(self, tokens: int) -> Call:
        """Return the last call for so many tokens less: those that have been said."""
        limit = self.go_on.fields.get("max_tokens")
        return self.go_on if limit is None else self.go_on.put(max_tokens=max(1, limit - tokens))


def continue_call(call: Call, said: str) -> Rest | None:
    """Return calls that go on from `said`, None for what cannot go on from a text.

    That is chats, several choices, and answers that keep to a form or have log probabilities.
    """
    body = call.fields
    prompt = body.get("prompt")
    if not isinstance(prompt, str) or body.get("n", 1) > 1:
        return None
    if any(body.get(name) is not None for name in _KEEPS_STATE):
        return None
    go_on = call.put(prompt=prompt + said)
    reading = {name: value for name, value in go_on.fields.items() if name != "stream_options"}
    reading |= {"max_tokens": 0, "stream": False}
    return Rest(msgspec.structs.replace(call, fields=reading), go_on)


class Taken:
    """Received part of a response, as the engine sent it.

    `text` is that of the only choice, or of the first; the fast path adds to it.
    """

    def __init__(self) -> None:
        self.text = bytearray()
        self._texts: dict[Key, bytearray] = {(0, CONTENT): self.text}
        self._at: dict[Key, int] = {}
        self._has_begun = False  # the first event may have a role only
        self.is_behind = False
        """Whether what comes has come before."""

    @property
    def is_empty(self) -> bool:
        """True if nothing has come."""
        return not any(self._texts.values())

    def rewind(self) -> None:
        """Expect the answer from its beginning."""
        self._at = dict.fromkeys(self._texts, 0)
        self.is_behind = self._has_begun

    def add(self, chunk: Chunk) -> None:
        """Take note of an event that is passed on."""
        for choice in chunk.choices or ():
            self._has_begun = True
            for key, text in _list_texts(choice):
                self._texts.setdefault(key, bytearray()).extend(_encode(text))

    def swallow(self, chunk: Chunk) -> bool:
        """Take out of an event what has come before; return whether anything is left of it.

        Raises Departed for what differs, and for an end that comes too early.
        """
        is_left = not chunk.choices
        for choice in chunk.choices or ():
            rest = {key: self._take(key, text) for key, text in _list_texts(choice)}
            _keep(choice, rest)
            is_left |= any(rest.values())
            if choice.finish_reason is not None:
                is_left = True
                if any(self._is_missing(key) for key in self._at if key[0] == choice.index):
                    raise Departed
        self.is_behind = any(map(self._is_missing, self._at))
        return is_left

    def _take(self, key: Key, text: str) -> str:
        """Return the new part of a text."""
        given, known = _encode(text), self._texts.setdefault(key, bytearray())
        at = self._at.get(key, len(known))
        size = min(len(given), len(known) - at)
        if given[:size] != known[at : at + size]:
            raise Departed
        self._at[key] = at + len(given)
        new = given[size:]
        known += new
        return new.decode(errors="surrogatepass")

    def _is_missing(self, key: Key) -> bool:
        return self._at[key] < len(self._texts[key])


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _list_texts(choice: ChunkChoice) -> Iterator[tuple[Key, str]]:
    """Yield the texts of a choice, each once."""
    delta = choice.delta
    if delta is None:
        if choice.text:
            yield (choice.index, CONTENT), choice.text
        return
    if delta.content:
        yield (choice.index, CONTENT), delta.content
    if delta.thinking:
        yield (choice.index, THINKING), delta.thinking
    for call in delta.tool_calls or ():
        arguments = call.function.arguments if call.function is not None else None
        # a name comes before the arguments, and counts as a character of them
        named = "\0" if call.function is not None and call.function.name else ""
        if isinstance(arguments, str) or named:
            yield (choice.index, f"call {call.index}"), named + (arguments or "")


def _keep(choice: ChunkChoice, rest: dict[Key, str]) -> None:
    """Leave in a choice only what is left of its texts."""
    choice.logprobs = choice.logprobs if any(rest.values()) else None
    delta = choice.delta
    if delta is None:
        choice.text = rest.get((choice.index, CONTENT), "")
        return
    delta.role = None
    delta.content = rest.get((choice.index, CONTENT)) or None
    delta.reasoning, delta.reasoning_content = rest.get((choice.index, THINKING)) or None, None
    calls = []
    for call in delta.tool_calls or ():
        left = rest.get((choice.index, f"call {call.index}"), "")
        if left and call.function is not None:
            if not left.startswith("\0"):
                call.function.name = call.id = call.type = None
            call.function.arguments = left.removeprefix("\0")
            calls.append(call)
    delta.tool_calls = calls or None
