"""The relay of one answer from the engine to the client, as a state machine.

The commit point: nothing is sent before the first bytes for the client exist, because some engines
report an error after a status of 200. Before the commit point an error is raised, so that the
caller can answer with the right status and the dialect's body. After it, the dialect's in-stream
error is sent and the answer ends. When the client disconnects, the connection to the engine is
closed, which stops the generation.

Bytes are pushed: `on_data` runs in the callback of the upstream connection, and translates and
writes the bytes of one read there, because a task switch per token would cost more than the
translation. While the client does not keep up, reading from the engine is paused.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from vllama.base.clock import now_ns
from vllama.base.errors import EngineCrashed, EngineError, VllamaError
from vllama.chat.engine.refusals import clean_engine_error
from vllama.chat.reply import Reply
from vllama.chat.request import Call
from vllama.net.fast_path import make_fast_path
from vllama.net.http.request import ClientGone, Request
from vllama.net.relay_types import TRANSITIONS, Finish, Prepare, RelayState
from vllama.net.resumption import Resumer, Resumption
from vllama.net.upstream.connection import Connection, ConnectionLost
from vllama.net.upstream.pool import Upstream

T = TypeVar("T")
COUNT_HEADER = "x-vllama-token-count"
ESTIMATE = "estimate"
MAX_ERROR_BYTES = 64 * 1024
LAST_BYTES_S = 0.2  # for what ends an answer on its connection, so that this may be used again


_OPEN = (RelayState.CONNECTING, RelayState.AWAITING_HEAD, RelayState.STREAMING)


class Relay:
    """The relay of one answer; the sink of its upstream connection."""

    wants_headers = False  # but for those of failures

    __slots__ = (
        "_again", "_before_finish", "_connection", "_deliver", "_error", "_error_body",
        "_error_headers", "_failure", "_finding", "_headers", "_request", "_state", "_status",
        "_tail", "_upstream", "_waiter", "_was_sent", "_whole", "before_first", "reply",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        reply: Reply,
        *,
        whole: bool,
        headers: Mapping[str, str],
        deliver: Callable[[bytes], None] | None = None,
    ) -> None:
        """Prepare; `whole` asks for one body instead of a stream.

        `deliver` receives the whole body, or the last bytes of the stream. Without it, they end the
        answer to `request`.
        """
        self._request = request
        self.reply = reply
        self.before_first: Callable[[], None] | None = None  # may raise what fails the answer
        self._whole = whole
        self._headers = headers
        self._deliver = deliver
        self._state = RelayState.CONNECTING
        self._upstream: Upstream | None = None
        self._connection: Connection | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._before_finish: Finish | None = None
        self._status = 0
        self._error_body = b""
        self._error_headers: Mapping[str, str] = {}
        self._error: VllamaError | None = None
        self._again: Resumption | None = None
        self._was_sent = False  # before the last error
        self._failure: Exception | None = (
            None  # raised by `_conclude` in a callback; `run` raises it
        )
        self._tail = b""
        self._finding: asyncio.Future[Any] | None = None  # an engine to go on with

    async def run(
        self,
        upstream: Upstream,
        call: Call,
        before_finish: Finish | None = None,
        resumer: Resumer | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        """Send `call` and relay its answer.

        `before_finish` is awaited after the engine has finished, before the last bytes are made.
        `prepare` is awaited before each time that the call is sent.
        With a `resumer` an answer whose engine dies is asked for again, and what has been taken of
        it before is left out. Raises ClientGone, and the errors that occur before the commit point.
        """
        again = Resumption(self.reply, call, resumer, prepare)
        self._again = again if resumer or self.reply.passes else None
        call = await again.begin(upstream)
        span = upstream.begin_call(call)
        if span is None:
            await self._run(upstream, upstream.encode(call), before_finish)
            return
        sent_ns = now_ns()
        with span:
            try:
                await self._run(upstream, upstream.encode(call, span), before_finish)
            finally:
                first_ns = self.reply.tally.first_token_ns
                first_s = None if first_ns is None else (first_ns - sent_ns) / 1e9
                span.note_answer(self._status, first_s, self._error)

    @property
    def upstream(self) -> Upstream | None:
        """The connection that answered last: its engine may have ended, and another gone on."""
        return self._upstream

    async def _run(self, upstream: Upstream, data: bytes, before_finish: Finish | None) -> None:
        request = self._request
        self._upstream = upstream
        self._before_finish = before_finish
        connection = self._connection = await upstream.connect()
        try:
            request.writes = self
            request.watch(self._client_left)
            if self._state is RelayState.CONNECTING:  # else the client has left
                self._send(connection, upstream, data)
            await self._wait()
            while self._state is RelayState.RESUMING:
                connection.release()
                connection = self._connection = await self._ask_again(connection)
                await self._wait()
            if self._failure is not None:
                raise self._failure
            if self._state is RelayState.DRAINING:
                if before_finish is not None or self.reply.lacks_prompt:
                    await self._before_end(before_finish)
                self._conclude()
            if self._state is RelayState.ABORTED:
                raise ClientGone
        finally:
            request.writes = None
            request.unwatch(self._client_left)
            connection.release()

    async def _wait(self) -> None:
        """Wait until the engine has finished, or is lost."""
        if self._state in _OPEN:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _send(self, connection: Connection, upstream: Upstream, data: bytes) -> None:
        """Send an encoded call."""
        self._status, self._error_body, self._tail = 0, b"", b""
        self._enter(RelayState.AWAITING_HEAD)
        most_bytes = upstream.most_answer_bytes if self._whole else math.inf
        connection.request(data, self, most_bytes)

    async def _ask_again(self, lost: Connection) -> Connection:
        """Ask an engine again; return its connection, or the one `lost` if there is none."""
        again, error, was_sent = self._again, self._error, self._was_sent
        assert again is not None
        self._error, self._was_sent = None, False
        try:
            found = await self._wait_for_engine(again.find(error, was_sent=was_sent))
        except VllamaError as failure:
            ended = isinstance(failure, ConnectionLost) and failure.unsent and failure is not error
            if again.is_suspended and not isinstance(failure, EngineCrashed):
                self._request.note_disconnect()  # it is asked from its beginning
            elif ended:
                self._error = failure  # the engine has ended again
            elif self._state is RelayState.RESUMING:
                self._error = failure
                self._drain()
            return lost
        if found is None:
            return lost
        self._upstream, call, connection = found
        if self._state is RelayState.RESUMING and not again.is_suspended:
            self._send(connection, self._upstream, self._upstream.encode(call))
        return connection

    async def _wait_for_engine(self, resuming: Awaitable[T]) -> T | None:
        """Wait for an engine; None if suspended meanwhile."""
        waiting = self._finding = asyncio.ensure_future(resuming)
        try:
            await asyncio.wait({waiting})
        finally:
            waiting.cancel()
        return None if waiting.cancelled() else waiting.result()

    def _enter(self, state: RelayState) -> None:
        assert state in TRANSITIONS[self._state], f"{self._state} -> {state}"
        self._state = state

    def _drain(self) -> None:
        """Accept nothing more from the engine, and wake `run` to send the end."""
        if self._state in _OPEN or self._state is RelayState.RESUMING:
            self._enter(RelayState.DRAINING)
        self._wake()

    def _wake(self) -> None:
        """Make `run` look at the state."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- sink ---------------------------------------------------------------------------------

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Store the engine's status, and what it says of a failure."""
        self._status, self._error_headers = status, headers
        if self._state is RelayState.AWAITING_HEAD:
            self._enter(RelayState.STREAMING)

    def on_data(self, data: bytes) -> None:
        """Translate one read and write it to the client."""
        out = self._translate(data)
        self._write(out)
        if self.reply.second_call is not None:
            self._interrupt()
            return
        if self.reply.is_done and self._waiter is not None:
            # it is over with its last event, not with its connection
            self._waiter.get_loop().call_later(LAST_BYTES_S, self._cut_if_open)
        if not out:
            return
        if self._request.paused:
            self.pause()
        elif self._state is RelayState.STREAMING and self.reply.template.tail:
            self._enter_fast_path()

    def _write(self, out: bytes) -> None:
        if out:
            if not self._request.status:
                self._start()
            self._request.write(out)

    def on_last(self, data: bytes) -> None:
        """Translate the last read; `_end` sends it together with the last bytes, in one write."""
        self._tail = self._translate(data)

    def _translate(self, data: bytes) -> bytes:
        if self._status != 200:
            if len(self._error_body) < MAX_ERROR_BYTES:
                self._error_body += data
            return b""
        if self._state is not RelayState.STREAMING:
            return b""
        reply = self.reply
        try:
            if self.before_first is not None:
                self.before_first()
            out = reply.feed(data, now_ns())
        except Exception as error:  # whatever an engine sends, it ends its own answer at once
            if isinstance(error, VllamaError):
                self._error = error
            else:
                self._failure = error
            self._leave_fast_path()
            self._drain()
            return b""
        if reply.has_enough:
            self.cut()
        return out

    def _cut_if_open(self) -> None:
        if self._state is RelayState.STREAMING:
            self.cut()

    def on_end(self) -> None:
        """End the answer, within this callback if possible, which saves a task switch."""
        if self._state is RelayState.ABORTED or self._failure is not None:
            return
        if self._state in _OPEN and self.reply.second_call is not None:
            self._write(self._tail)
            self._tail = b""
            self._interrupt()
            return
        if self._state in _OPEN:
            self._enter(RelayState.DRAINING)
        if self._before_finish is None and not self.reply.lacks_prompt:
            try:
                self._conclude()
            except Exception as error:
                self._failure = error
        self._drain()

    def end(self, error: VllamaError) -> bool:
        """End the answer here with `error`; False if it has not begun, or is over."""
        if self._state not in (RelayState.AWAITING_HEAD, RelayState.STREAMING):
            return False
        self._error = error
        self._leave_fast_path()
        self.cut()
        return True

    @property
    def has_begun(self) -> bool:
        """True once a token has come."""
        return self.reply.tally.has_begun

    @property
    def is_waiting(self) -> bool:
        """True while it waits for an engine to go on with."""
        return self._state is RelayState.RESUMING

    @property
    def tokens(self) -> int:
        """The tokens of the response that have come."""
        counted = self.reply.tally.usage.completion_tokens
        path = self._connection.fast_path if self._connection else None
        return max(counted, path.tokens) if path is not None else counted

    @property
    def span_ns(self) -> int:
        """Time from the first token of the answer to the last."""
        tally = self.reply.tally
        return max(0, tally.last_token_ns - (tally.first_token_ns or tally.last_token_ns))

    def on_lost(self, error: EngineError) -> None:
        """Note that the engine's connection was lost; a complete answer is no error.

        An error that the engine has sent before says more.
        """
        if not self.reply.tally.ended:
            self._error, self._was_sent = self._error or self.reply.failure or error, True
            is_open = self._state in _OPEN
            if self._again is not None and is_open and self.reply.is_resumable:
                self._enter(RelayState.RESUMING)
                self._wake()
                return
        self._drain()

    def suspend(self) -> bool:
        """Stop the engine; the answer goes on when the resumer says so. False if it cannot."""
        if self.reply.tally.finish_reason is not None:
            return True  # it is about to end
        may = self._state in (*_OPEN, RelayState.RESUMING)
        if self._again is None or not may or not self._again.suspend():
            return False
        if self._state is not RelayState.RESUMING:
            self._interrupt()
        elif self._finding is not None:
            self._finding.cancel()
        return True

    def _interrupt(self) -> None:
        """Stop the engine; `run` asks for what follows."""
        self._leave_fast_path()
        if self._connection is not None:
            self._connection.abort()
        self._enter(RelayState.RESUMING)
        self._wake()

    def cut(self) -> None:
        """End the engine's answer early, because the reply needs no more of it."""
        if self._connection:
            self._connection.abort()
        self._drain()

    # -- the fast path ------------------------------------------------------------------------

    def _enter_fast_path(self) -> None:
        """Move plain tokens to the fast path, if the answer is sent in chunks."""
        write, connection = self._request.get_chunk_writer(), self._connection
        if write is not None and connection is not None and connection.fast_path is None:
            path = make_fast_path(connection, self.reply.template, write)
            connection.divert(path)

    def _leave_fast_path(self) -> None:
        """Return to decoding, so that no later token overtakes bytes that have to wait."""
        if self._connection and self._connection.fast_path is not None:
            self._connection.divert(None)

    # -- the client ---------------------------------------------------------------------------

    def pause(self) -> None:
        """Pause reading from the engine, because the client does not keep up."""
        self._leave_fast_path()
        if self._connection and self._state in _OPEN:
            self._connection.pause()

    def resume(self) -> None:
        """Read from the engine again."""
        if self._connection and self._state in _OPEN:
            self._connection.resume()

    def _client_left(self) -> None:
        if self._state in (RelayState.DONE, RelayState.ABORTED):
            return
        self.reply.tally.left = self._state is not RelayState.CONNECTING
        self._enter(RelayState.ABORTED)
        if self._connection:
            self._connection.abort()
        self._drain()

    def _start(self) -> None:
        """Send the head of a stream.

        A header has to say now whether the counts at its end will be estimates.
        """
        counted = self._upstream is not None and self._upstream.tells_counts
        if self.reply.may_cut or not counted:
            self._request.set_header(COUNT_HEADER, ESTIMATE)
        self._request.start(200, self.reply.content_type.encode(), None, self._headers)

    # -- the end ------------------------------------------------------------------------------

    async def _before_end(self, before_finish: Finish | None) -> None:
        """Send everything that is ready, then await `before_finish` and what is to be counted."""
        self._write(self._tail)
        self._tail = b""
        if self._error is None and self._status == 200:
            try:
                if before_finish is not None:
                    await self._finish_by(before_finish)
                if self.reply.lacks_prompt and self.reply.count_prompt is not None:
                    self.reply.tally.prompt_tokens = await self.reply.count_prompt()
            except VllamaError as error:
                self._error = error

    async def _finish_by(self, before_finish: Finish) -> None:
        """Await `before_finish`, also with the engine that is started after a crash meanwhile."""
        while True:
            assert self._upstream is not None
            try:
                return await before_finish(self._upstream)
            except ConnectionLost as error:
                resumer = self._again.resumer if self._again is not None else None
                if resumer is None or not error.unsent:
                    raise
                self._upstream = await resumer.resume(error, self.reply, was_sent=False)

    def _conclude(self) -> None:
        """Send the end, once."""
        if self._state is RelayState.DRAINING:
            self._enter(RelayState.DONE)
            self._end()

    def _end(self) -> None:
        """Send the last bytes; or the error, raised or in the stream as the commit point says."""
        request, error, upstream = self._request, self._error, self._upstream
        assert upstream is not None
        last = b""
        if error is None and self._status != 200:
            body = upstream.hide_key(self._error_body)
            error = clean_engine_error(self._status, body, self._error_headers)
        if error is None:
            try:
                last = self.reply.finish(now_ns())
                self._check_counts()
            except VllamaError as failure:
                error = failure
        if error is not None:
            error.message = upstream.hide_key(error.message.encode()).decode()
            if upstream.crashes is not None:
                error = upstream.crashes.explain(error)
            if not request.status and not self._tail:
                raise error
            request.failure = error
            last = self.reply.fail(error)
        if self._whole:
            if self._deliver is not None:
                self._deliver(last)
            else:
                kind = self.reply.content_type.encode()
                request.respond(200, last, kind, self._headers)
            return
        if not request.status:
            self._start()
        (self._deliver or request.end)(self._tail + last)

    def _check_counts(self) -> None:
        """Mark estimated counts in the head of a whole answer; a stream's head was sent long ago.

        Also remember whether the engine reports counts, for the heads of later streams.
        """
        reply, upstream = self.reply, self._upstream
        estimated = reply.tally.usage.estimated
        if estimated and self._whole:
            self._request.set_header(COUNT_HEADER, ESTIMATE)
        if upstream is not None and estimated and not reply.has_enough:
            upstream.tells_counts = False
