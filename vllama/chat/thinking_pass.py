"""A response that thinks before it holds a format, from an engine that cannot do both in one call.

The first call asks for the thinking, without the format and the client's stop sequences. It ends at
the mark that ends the thinking, or where the model ends inside it. The second call is the whole
one, with the thinking at the end of its prompt. What either says of its tokens is joined, so that
filters, writers and counts see one response. A replay begins with the first, as only the same calls
give the same response again (docs/decisions/0033-answers-outlive-their-engine.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from vllama.chat.bodies import encode_json
from vllama.chat.engine.events import Event, Timings, decode_event
from vllama.chat.engine.request import FORMS
from vllama.chat.engine.traits import Traits
from vllama.chat.parsers.thinking import ENDS, PREFIXES, find_closing
from vllama.chat.request import Call


class ThinkingPass:
    """The two calls of one response, completions of one choice."""

    def __init__(self, traits: Traits, *, closing: str = "") -> None:
        """`closing` ends the thinking that the prompt has opened; "": it has opened none."""
        self._limit_name = traits.parameters.get("max_tokens", "max_tokens")
        self._stop_name = traits.parameters["stop"]
        self._context_length = traits.context_length
        self._opened = closing
        self.is_first = self._is_joined = False
        self.before_second: Callable[[], Awaitable[object]] | None = None  # awaited once

    def begin(self, call: Call) -> Call:
        """Return the first call for `call`; all begins again."""
        self._call = call
        self._text, self._given, self._pieces = "", 0, 0
        self._closing, self._head = self._opened, dict[str, Any]()
        self._usage, self._timings = dict[str, Any](), Timings()
        self.is_first, self._is_joined = True, False
        self._has_ended = self._is_cut = False  # the thinking; cut: the engine would go on
        fields = {name: value for name, value in call.fields.items() if name not in FORMS}
        fields[self._stop_name] = [self._closing] if self._closing else ENDS
        return replace(call, fields=fields, grammar=b"")

    def ends_first(self, *, is_done: bool) -> bool:
        """Tell whether the thinking is over. `is_done`: the engine has said all."""
        return self.is_first and self._has_ended and (is_done or self._is_cut)

    @property
    def _tokens(self) -> int:
        """The tokens of the thinking: pieces, if the engine did not tell."""
        return int(self._usage.get("completion_tokens", self._pieces))

    def begin_second(self) -> Call | None:
        """Return the second call; None if no token is left to it."""
        self.is_first, call = False, self._call
        thought = {"reasoning_tokens": self._tokens if self._text else 0}
        self._usage = self._usage | {"completion_tokens_details": thought}
        left = self._context_length - self._usage.get("prompt_tokens", 0) - self._tokens
        if (limit := call.fields.get(self._limit_name)) is not None:
            call = call.put(**{self._limit_name: limit - self._tokens})
            left = min(left, limit - self._tokens)
        if left <= 0:
            return None
        self._is_joined, prompt = True, call.fields["prompt"]
        whole = prompt + self._text if isinstance(prompt, str) else [*prompt, self._text]
        return call.put(prompt=whole)

    def make_end(self) -> Event:
        """Return the end of a response to which no token is left."""
        end = [{"index": 0, "text": "", "finish_reason": "length"}]
        return decode_event(encode_json({**self._head, "choices": end, "usage": self._usage}))

    def take(self, event: Event) -> None:
        """Change one event: those of the first call are thinking, the second's tell of both."""
        if self.is_first:
            self._take_thinking(event)
        elif self._is_joined:
            self._join(event)

    def _take_thinking(self, event: Event) -> None:
        chunk = event.chunk
        event.changed, event.text = True, None
        if not self._head:
            names = ("id", "object", "created", "model")
            self._head = {name: getattr(chunk, name) for name in names}
        for choice in chunk.choices or ():
            self._pieces += choice.speaks
            choice.text = self._cut(choice.text or "", choice.finish_reason)
            if self._has_ended:
                choice.finish_reason = None
            elif choice.finish_reason is not None:
                self.is_first = False  # its length has ended the response
                return
        self._usage, chunk.usage = chunk.usage or self._usage, None
        self._timings, chunk.timings = chunk.timings or self._timings, None
        event.silent = not chunk.choices

    def _cut(self, text: str, reason: str | None) -> str:
        """Return the part of the text that is certain to be thinking, with its marks."""
        if self._has_ended:
            return ""
        self._text += text
        self._closing = self._closing or find_closing(self._text)
        if not self._closing:
            if reason is None and self._text.lstrip() in PREFIXES:
                return ""
            if reason != "length":  # it does not think, and what it says holds no format
                self._text, self._pieces = "", 0
                self._has_ended, self._is_cut = True, reason is None
            return self._text
        at = self._text.find(self._closing, max(0, self._given - len(self._closing)))
        if at >= 0:  # else the engine has left the mark out of its text
            self._text = self._text[: at + len(self._closing)]
        elif reason not in (None, "length"):
            self._text += self._closing
        self._has_ended = self._text.endswith(self._closing)
        self._is_cut = self._has_ended and reason is None
        new, self._given = self._text[self._given :], len(self._text)
        return new

    def _join(self, event: Event) -> None:
        chunk, (before, tokens) = event.chunk, (self._usage, self._tokens)
        if (chunk.id, chunk.created) != (self._head["id"], self._head["created"]):
            chunk.id, chunk.created, event.changed = self._head["id"], self._head["created"], True
        if (usage := chunk.usage) is not None:
            prompt = before.get("prompt_tokens", usage.get("prompt_tokens", 0) - tokens)
            tokens += usage.get("completion_tokens", 0)
            counts = {"prompt_tokens": prompt, "completion_tokens": tokens}
            counts["completion_tokens_details"] = before.get("completion_tokens_details")
            chunk.usage, event.changed = usage | counts | {"total_tokens": prompt + tokens}, True
            if (details := "prompt_tokens_details") in usage:  # by then all is in the cache
                chunk.usage[details] = before.get(details)
        if (last := chunk.timings) is not None:
            first, names = self._timings, ("prompt_ms", "predicted_n", "predicted_ms")
            sums = {x: (getattr(first, x) or 0) + (getattr(last, x) or 0) for x in names}
            chunk.timings = replace(first, **sums)
