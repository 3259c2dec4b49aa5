"""An answer on its way from the engine to the client: one reader, a list of filters, one writer.

    engine's bytes → `SseReader` → `Event` → `Deltas` → filters → `Tally`, `Writer` → client's bytes

The reader decodes each event once. `Deltas` makes whatever engines stream well formed. Filters
(`chat.filters`) change events and see no bytes. A writer knows the bytes of one dialect and route
and nothing of engines.

Most events of a stream differ from the one before in their text only. Once the filters let such
events pass as they are, their surroundings are learned (`EventTemplate`), so that a read that looks
the same is not decoded at all; the relay then takes it from socket to socket (`net.fast_path`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from vllama.base.errors import VllamaError
from vllama.chat.engine.deltas import NO_TOOLS, Deltas
from vllama.chat.engine.events import Event, decode_event
from vllama.chat.engine.generate import GenerateReader
from vllama.chat.event_template import EventTemplate
from vllama.chat.filters import Filter
from vllama.chat.framing import DONE, SseReader
from vllama.chat.inspect import WholeReader
from vllama.chat.replay import Rest, Taken, continue_call
from vllama.chat.request import Call
from vllama.chat.schema_check import SchemaCheck
from vllama.chat.stops import StopFilter
from vllama.chat.tally import Tally
from vllama.chat.thinking_pass import ThinkingPass
from vllama.chat.writer import Writer


class Reply:
    """One answer: what the relay feeds with the engine's bytes."""

    def __init__(
        self,
        writer: Writer,
        filters: Sequence[Filter] = (),
        *,
        stops: StopFilter | None = None,
        prompt_tokens: int | None = None,
        max_tokens: int | None = None,
        reader: GenerateReader | WholeReader | None = None,
        passes: ThinkingPass | None = None,
        tools: Mapping[str, bool] = NO_TOOLS,
    ) -> None:
        """`filters` in order; `stops` comes first, and tells the tally of an end that it makes.

        `reader` is that of an answer that is no stream of events. `passes`: it thinks first, and
        the engine is called twice. `tools`: those of the request, true for custom tools.
        """
        self.writer = writer
        self.tally = Tally(writer.template, prompt_tokens=prompt_tokens, max_tokens=max_tokens)
        self.tally.streams = not isinstance(reader, WholeReader)
        self.count_prompt: Callable[[], Awaitable[int]] | None = None
        """Counts the prompt of an answer that ended before the engine told how long it is."""
        self.prompt_text: str | None = None
        self.continues_prompt = False
        """Whether its text goes on from `prompt_text` as the engine has both."""
        self.collect: Callable[[Any], Awaitable[None]] | None = None
        """Reads what the engine has collected, with its connections, before the end is written."""
        self.check: SchemaCheck | None = None
        self._reader = reader or SseReader()
        self._filters = filters
        self._stops = stops
        self.passes = passes
        self.second_call: Call | None = None  # the first has been answered
        self._tools = tools
        self._deltas, self._held_ns = Deltas(tools), 0
        self.failure: VllamaError | None = None  # raised once all before it is sent
        self.is_done = False  # the engine has said so
        self.resumes_text = False  # the engine is asked for what is still missing of it
        self._taken: Taken | None = None
        self._said = b""  # before that: what the engine was given to go on from
        self._is_behind = False  # replaying: the client has this text already
        self._on_new: Callable[[], None] = lambda: None

    @property
    def content_type(self) -> str:
        """The media type of its bytes."""
        return self.writer.content_type

    @property
    def template(self) -> EventTemplate:
        """The template of its plain events, for the fast path."""
        return self.writer.template

    @property
    def may_cut(self) -> bool:
        """True if it may end the engine's response before the engine does."""
        return self._stops is not None and self._stops.cuts

    def make_resumable(self, on_new: Callable[[], None]) -> None:
        """Keep what comes, so that it can be asked for again.

        `on_new` is called when something new has come after that.
        """
        self._taken, self._on_new = Taken(), on_new
        self.writer.template.taken = self._taken.text

    def keep_text(self) -> None:
        """Keep what comes for `taken_text`."""
        if self._taken is None:
            self.make_resumable(lambda: None)

    @property
    def taken_text(self) -> str | None:
        """The text that follows `prompt_text`, as far as it is known; None if it was cut."""
        if self._taken is None or self.tally.finish_reason is None or self.has_enough:
            return None
        text = (self._said + self._taken.text).decode(errors="surrogatepass")
        return text if self.continues_prompt else ""

    @property
    def is_resumable(self) -> bool:
        """True if it can be asked for again."""
        return self._taken is not None and self.failure is None and not self.has_enough

    @property
    def is_empty(self) -> bool:
        """True while nothing of it has come that was kept."""
        return self._taken is None or (self._taken.is_empty and not self._said)

    def begin_again(self) -> None:
        """Expect the same answer from its beginning."""
        assert self._taken is not None
        self._expect_stream()
        self._taken.rewind()
        self._is_behind = True

    async def begin_second(self) -> None:
        """Expect what follows the thinking."""
        assert self.passes is not None
        if (wait := self.passes.before_second) is not None:
            self.passes.before_second = None
            await wait()
        self._expect_stream()

    def _expect_stream(self) -> None:
        self._reader, self._deltas = SseReader(), Deltas(self._tools)
        self.is_done, self.second_call = False, None
        self.writer.template.forget()

    def make_rest(self, call: Call) -> Rest | None:
        """Return how to go on from what has come of the answer to `call`; None if none can."""
        if self._taken is None or not self.continues_prompt:
            return None
        said = self._taken.text.decode(errors="surrogatepass")
        return continue_call(call, said)

    def go_on(self, rest: Rest, both_tokens: int | None) -> Call:
        """Expect the rest of the answer; return the call for it.

        `both_tokens`: the prompt and what has come, as the engine counts.
        """
        assert self._taken is not None
        self._expect_stream()
        self.failure = None
        self._said += self._taken.text
        self._taken, self._is_behind = Taken(), False
        self.writer.template.taken = self._taken.text
        before = self.tally.moved
        return rest.without(self.tally.move_to_prompt(both_tokens) - before)

    def feed(self, chunk: bytes, now_ns: int) -> bytes:
        """Take bytes of the engine's stream; return what to send now.

        Raises UpstreamError or EngineCrashed for an error in the stream, but first returns what
        came before it in the same read.
        """
        template = self.writer.template
        texts = template.match(chunk)
        if texts is not None:
            template.count(texts, now_ns)
            return template.write(texts, now_ns) if self.writer.streams else b""
        if self.failure is not None:
            raise self.failure
        plain = not self._reader.pending and self._stops is None
        plain = plain and isinstance(self._reader, SseReader) and not self._is_behind
        plain = plain and not [step for step in self._filters if not step.is_idle]
        text: str | None = None  # of the first event
        out: list[bytes] = []
        try:
            for payload in self._reader.feed(chunk):
                event = self._take(payload, now_ns, out)
                if self.passes is not None and self.passes.ends_first(is_done=self.is_done):
                    self._end_first_pass(self.passes, now_ns, out)
                plain = plain and event is not None and event.text is not None
                if plain and text is None and event is not None:
                    text = event.text
        except VllamaError as error:
            plain = False
            template.forget()
            if not self.has_enough:  # else nobody wants to know it
                if not out:
                    raise
                self.failure = error
        written = out[0] if len(out) == 1 else b"".join(out)
        if self._reader.pending:
            template.forget()
        elif plain and text is not None:
            template.learn(chunk, text, written)
        return written

    def finish(self, now_ns: int) -> bytes:
        """Return the rest after the engine's stream has ended.

        Raises UpstreamError or EngineCrashed when the answer is not whole.
        """
        if self.failure is not None:
            raise self.failure
        out: list[bytes] = []
        if not self.has_enough:  # else the engine was cut off, maybe in the midst of an event
            for payload in self._reader.close():
                self._take(payload, now_ns, out)
        for event in self._deltas.release():
            self._pass(event, self._held_ns, out)
        self.tally.complete()
        out.append(self.writer.finish(self.tally, now_ns))
        return b"".join(out)

    def fail(self, error: VllamaError) -> bytes:
        """Return how the dialect reports `error` inside an answer that has begun."""
        out, stops = b"", self._stops
        for event in self._deltas.end(self.tally.unfinished if stops is not None else ()):
            assert stops is not None
            stops.take(event)  # gives what it has held back
            for choice in event.chunk.choices or ():
                choice.finish_reason = None
                if choice.speaks:
                    out += self.writer.write(event, self.tally, self.tally.last_token_ns)
        return out + self.writer.fail(error)

    @property
    def lacks_prompt(self) -> bool:
        """True if the prompt is to be counted, because the engine did not report it."""
        is_midway = not self.has_enough and (self._reader.pending or self._deltas.needs_all)
        if self.count_prompt is None or is_midway:
            return False
        return self.tally.ended and not self.tally.usage.prompt_tokens

    @property
    def has_enough(self) -> bool:
        """True if a stop sequence has ended the response while the engine goes on."""
        return self._stops is not None and self._stops.is_over

    def _take(self, payload: bytes, now_ns: int, out: list[bytes]) -> Event | None:
        """Take one event; None for the end of the stream and what follows it."""
        if self.is_done:
            return None
        template, deltas, tally = self.writer.template, self._deltas, self.tally
        if len(payload) < 16 and payload.strip().upper() == DONE:
            self.is_done = True
            template.forget()
            for last in deltas.release():
                self._pass(last, self._held_ns, out)
            if tally.first_token_ns is not None:
                for last in deltas.end(tally.unfinished):
                    self._pass(last, now_ns, out)
            tally.ended = True
            return None
        event = decode_event(payload or b"{}")
        if event.text is not None and not deltas.needs_all:
            return self._pass(event, now_ns, out)
        passed = None
        for one in deltas.take(event, has_begun=tally.first_token_ns is not None):
            passed = self._pass(one, now_ns if one is event else self._held_ns, out)
        self._held_ns = now_ns
        if deltas.needs_all:  # more than the text of the next event counts
            template.forget()
            if self.passes is None or not self.passes.is_first:
                tally.ended |= deltas.ends(tally.unfinished)
        return passed if passed is event else None

    def _pass(self, event: Event, now_ns: int, out: list[bytes]) -> Event | None:
        """Pass a well-formed event through the filters to the writer; None: it came before."""
        stops, passes = self._stops, self.passes
        if passes is not None:
            stops = None if passes.is_first else stops  # they hold for the response only
            passes.take(event)
        if self._taken is not None and not self._is_new(event, self._taken):
            return None
        if stops is None or not stops.is_over:
            self.tally.count(event.chunk, now_ns)
        if stops is not None:
            stops.take(event)
        self.tally.take(event.chunk, now_ns)
        for step in self._filters:
            step.take(event)
        self.tally.count_thinking(event.chunk)
        if not event.silent and (data := self.writer.write(event, self.tally, now_ns)):
            out.append(data)
        return event

    def _end_first_pass(self, passes: ThinkingPass, now_ns: int, out: list[bytes]) -> None:
        """Make the relay send the second call, or end here."""
        self.is_done, self.tally.ended = True, False
        self.second_call = passes.begin_second()
        if self.second_call is None:
            self._pass(passes.make_end(), now_ns, out)

    def _is_new(self, event: Event, taken: Taken) -> bool:
        """Keep what comes; return whether anything of it has not come before."""
        is_new = True
        if was_behind := taken.is_behind:
            is_new = taken.swallow(event.chunk)
            event.changed, event.text = True, None
        else:
            taken.add(event.chunk)
        if self._is_behind and is_new and not (was_behind and taken.is_behind):
            self._is_behind = False
            self._on_new()
        return is_new
