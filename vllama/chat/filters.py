"""Filters of an answer: each changes the events of an engine, one after the other.

`compose_filters` puts together those that an answer needs, in their order; nothing else does. A
filter sees decoded events, never bytes. Each choice of an answer has a state of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from vllama.chat.engine.events import ChunkChoice, Delta, Event, FunctionDelta, ToolDelta
from vllama.chat.engine.traits import Traits
from vllama.chat.logprobs import convert_logprobs
from vllama.chat.parsers.call_values import ToolCall, Toolset
from vllama.chat.parsers.marks import compile_tokens, find_noise
from vllama.chat.parsers.thinking import ThinkSplitter, Trim
from vllama.chat.tool_calls import CallScanner

log = logging.getLogger(__name__)

MAX_SCANNED = 1_000_000
"""Characters in which calls are looked for; what an answer has more is text."""


class CallSource(msgspec.Struct):
    """Facts about calls and thinking, learned from one model's responses on one engine.

    `parses`: it has sent a call that it had found itself, so its text is text from then on. The
    same holds for thinking that it `splits` off.
    """

    model: str = ""
    parses: bool = False
    splits: bool = False
    is_logged: bool = False  # that a call was found in a text


class Filter(Protocol):
    """Changes events in place, and says so in `Event.changed`."""

    @property
    def is_idle(self) -> bool:
        """True if plain events pass through it as they are, now and until another comes."""

    def take(self, event: Event) -> None:
        """Change one event."""


def compose_filters(
    traits: Traits,
    *,
    tools: Toolset | bool = False,
    thinks: bool = False,
    think_opened: bool = False,
    keeps_thinking_end: bool = False,
    from_completion: bool = False,
    is_whole: bool = False,
    source: CallSource | None = None,
    special_tokens: tuple[str, ...] = (),
) -> list[Filter]:
    """Return the filters of an answer, in order.

    `tools`: those whose calls may come, True: any; `source` learns of them. `thinks`: the model may
    think; `think_opened`: its prompt ended inside the thinking. `keeps_thinking_end`: white space
    at the end of the thinking stays. `from_completion`: a chat was sent as a completion.
    `is_whole`: nobody reads the answer before its end. `special_tokens` are left in the text by the
    engine, to be read and taken out.
    """
    scan, split, source = choose_reading(traits, tools, thinks, source)
    filters: list[Filter] = [CompletionAsChat()] if from_completion else []
    if split or scan or special_tokens:
        filters.append(
            TextClassifier(
                partial(
                    ThinkSplitter,
                    opened=think_opened,
                    calls=bool(scan),
                    keeps_end=keeps_thinking_end,
                    may_be_text=traits.may_leave_thinking,
                    is_whole=is_whole,
                )
                if split
                else None,
                scan,
                source,
                special_tokens,
            )
        )
    return filters if keeps_thinking_end else [*filters, ThinkingTrim()]


def choose_reading(
    traits: Traits, tools: Toolset | bool, thinks: bool, source: CallSource | None = None
) -> tuple[Toolset | bool, bool, CallSource]:
    """Return which calls are looked for in a text, whether thinking is, and who learns of it."""
    by_schema = isinstance(tools, Toolset) and tools.forced
    source = CallSource() if by_schema or source is None else source
    looks = by_schema or not traits.parses_tools or traits.may_leave_calls
    scan = tools if looks and not source.parses else False
    leaves_thinking = traits.may_leave_thinking and not source.splits
    return scan, thinks and (not traits.splits_reasoning or leaves_thinking), source


class CompletionAsChat:
    """Makes chunks of a chat of a completion's: a prompt that was rendered here is sent as one."""

    is_idle = False

    def take(self, event: Event) -> None:
        """Turn one event of a completion into that of a chat."""
        chunk = event.chunk
        for choice in chunk.choices or ():
            if choice.delta is None:
                choice.delta = Delta(content=choice.text or "")
                choice.text = None
                if not self.is_idle:  # the first delta of a chat names the role
                    choice.delta.role = "assistant"
                logprobs = convert_logprobs(choice.logprobs)
                choice.logprobs = {"content": logprobs} if logprobs else None
        self.is_idle = self.is_idle or bool(chunk.choices)
        if chunk.id is not None:  # llama-server's completions have the ids of chats
            chunk.id = f"chatcmpl-{chunk.id.removeprefix('chat').removeprefix('cmpl-')}"
        chunk.object = "chat.completion.chunk"
        event.changed = True


class TextClassifier:
    """Tells thinking, text and tool calls apart where the engine leaves all in one text."""

    def __init__(
        self,
        make_splitter: Callable[[], ThinkSplitter] | None,
        scan: Toolset | bool,
        source: CallSource,
        special_tokens: tuple[str, ...] = (),
    ) -> None:
        """`make_splitter`: look for thinking, too; `scan`: for calls."""
        self._make_splitter, self._scan, self._source = make_splitter, scan, source
        self._noise = find_noise(special_tokens) if special_tokens else None
        self._marks = compile_tokens(special_tokens)
        self._choices: dict[int, _ChoiceText] = {}

    @property
    def is_idle(self) -> bool:
        """True if all choices are past their thinking, and no calls are looked for."""
        plain = bool(self._choices) and all(text.is_plain for text in self._choices.values())
        return plain and self._noise is None

    def take(self, event: Event) -> None:
        """Move what is thinking or a call out of the text; hold back what may become either."""
        choices = event.chunk.choices or ()
        for choice in choices:
            text = self._choices.get(choice.index)
            if text is None or not text.is_plain or self._noise is not None:
                break
        else:
            return
        silent = [self._is_silent(choice, event) for choice in choices]
        event.silent = all(silent)

    def _is_silent(self, choice: ChunkChoice, event: Event) -> bool:
        """Change one choice of an event; return whether it has nothing to say for now."""
        given = choice.text if choice.delta is None else choice.delta.content
        text = self._choices.get(choice.index)
        if text is None:
            splitter = self._make_splitter() if self._make_splitter else None
            text = self._choices[choice.index] = _ChoiceText(splitter, self._scan)
        thinking, certain = text.feed(
            self._noise.sub("", given or "") if self._noise else given or ""
        )
        if (own := choice.delta) is not None:
            self._source.parses |= bool(own.tool_calls)
            self._source.splits |= bool(own.thinking)
        if self._source.parses:
            certain += text.release()
        calls: list[ToolCall] = []
        is_last = choice.finish_reason is not None
        if is_last:
            more, rest, calls = text.finish(is_cut=choice.finish_reason == "length")
            thinking, certain = thinking + more, certain + rest
        if self._noise is not None:
            thinking, certain = self._marks.sub("", thinking), self._marks.sub("", certain)
        if own is None or thinking or calls or certain != (given or ""):
            event.changed = True
        delta = choice.delta = own or Delta()
        choice.text = None
        if thinking:
            delta.reasoning, delta.reasoning_content = delta.thinking + thinking, None
        if calls:
            if not self._source.is_logged and self._source.model:
                self._source.is_logged = True
                log.info("%s: found a tool call in the text of the response", self._source.model)
            delta.tool_calls = [*(delta.tool_calls or ()), *map(_delta_of, calls)]
            choice.finish_reason = "tool_calls"
        if given is not None or certain:
            delta.content = certain
        said = choice.speaks or is_last or delta.role
        return not (said or choice.logprobs) and bool(given)


class _ChoiceText:
    """The text of one choice, taken apart."""

    __slots__ = ("_scanner", "_size", "_splitter")

    def __init__(self, splitter: ThinkSplitter | None, scan: Toolset | bool) -> None:
        self._splitter = splitter
        self._scanner = CallScanner(scan) if scan else None
        self._size = 0

    @property
    def is_plain(self) -> bool:
        """True if all that still comes is text."""
        return self._scanner is None and (self._splitter is None or self._splitter.is_over)

    def feed(self, text: str) -> tuple[str, str]:
        """Return (thinking, text) that are certain by now."""
        thinking = ""
        if self._splitter is not None:
            thinking, text = self._splitter.feed(text)
        self._size += len(text)
        if self._size > MAX_SCANNED:
            text = self.release() + text
        elif self._scanner is not None:
            text = self._scanner.feed(text)
        return thinking, text

    def release(self) -> str:
        """Look for no calls any more; return the text that was held back for them."""
        scanner, self._scanner = self._scanner, None
        return scanner.release() if scanner is not None else ""

    def finish(self, *, is_cut: bool) -> tuple[str, str, list[ToolCall]]:
        """Return the held-back rest: thinking, text and the calls.

        Thinking that did not end, although the answer was not cut, is the text after all.
        """
        thinking, text = "", ""
        if self._splitter is not None and self._splitter.may_be_text and not is_cut:
            return "", self._splitter.give_back(), []
        calls: list[ToolCall] = []
        if self._splitter is not None:
            thinking, text = self._splitter.finish()
        if self._scanner is not None:
            text = self._scanner.feed(text)
            calls, rest = self._scanner.finish()
            text += rest
        return thinking, text, calls


def _delta_of(call: ToolCall) -> ToolDelta:
    arguments = msgspec.json.encode(call.arguments).decode()
    function = FunctionDelta(name=call.name, arguments=arguments)
    return ToolDelta(index=call.index, id=call.id, type="function", function=function)


class ThinkingTrim:
    """Takes off the empty lines around thinking that an engine has split off itself."""

    def __init__(self) -> None:
        self._trims: dict[int, Trim] = {}

    @property
    def is_idle(self) -> bool:
        """True if no thinking came last."""
        return not any(trim.after for trim in self._trims.values())

    def take(self, event: Event) -> None:
        """Trim one event; most have no thinking."""
        for choice in event.chunk.choices or ():
            delta = choice.delta
            if delta is None:
                continue
            thinking = delta.thinking
            trim = self._trims.get(choice.index)
            if trim is None:
                if not thinking:
                    continue
                trim = self._trims[choice.index] = Trim()
            if not (thinking or trim.after):
                continue
            before = (thinking, delta.content or "")
            after = trim.feed(*before)
            if after != before:
                event.changed = True
                if thinking:
                    delta.reasoning, delta.reasoning_content = after[0], None
                if delta.content:
                    delta.content = after[1]
