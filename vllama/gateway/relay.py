"""The one streaming loop: engine → translator → client.

The commit point: nothing is sent before the first translated bytes exist, because some engines
report an error after their 200. Before it an error is raised, so that the caller answers with
status and body of the dialect; after it the dialect's in-stream error is sent and the answer
ends. A client that leaves cuts the engine's connection, which stops the generation.

Bytes are pushed: `on_data` runs in the upstream's callback, translates what one read brought
and writes it, past ASGI where that is possible, else by driving `send()` by hand. uvicorn's
`send()` suspends only while its client is not reading; then the upstream is paused and this
coroutine finishes the send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from types import CoroutineType
from typing import Any, Protocol

from vllama.errors import VllamaError
from vllama.gateway.connection import Connection, ConnectionLost
from vllama.gateway.direct import Writer, chunk_writer, hold_head
from vllama.gateway.http import ClientGone, Message, Request, now_ns
from vllama.gateway.lane import Lane
from vllama.gateway.upstream import Upstream
from vllama.gateway.watch import Watch
from vllama.translate.faults import clean_engine_error
from vllama.translate.stopping import StoppedReply
from vllama.translate.types import Call, Usage
from vllama.translate.usual import Usual

MAX_ERROR_BYTES = 64 * 1024


class Reply(Protocol):
    """A translator of one answer."""

    content_type: str
    ended: bool

    @property
    def usual(self) -> Usual | None:
        """What is known of plain tokens; None if all must go through `feed`."""
        ...

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        ...

    def feed(self, chunk: bytes, now_ns: int) -> bytes:
        """Take upstream bytes, return the client's; b"" if there is nothing to say yet."""
        ...

    def finish(self, now_ns: int) -> bytes:
        """Return the last bytes. Raises EngineCrashed if the answer is not complete."""
        ...

    def fail(self, error: VllamaError) -> bytes:
        """Return the dialect's in-stream error."""
        ...


class Rest:
    """What is left of a coroutine that was started by hand and suspended on `waiting_for`."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], waiting_for: object) -> None:
        self._coroutine = coroutine
        self._waiting_for = waiting_for

    def __await__(self) -> Generator[Any, Any, None]:
        """Go on until the coroutine returns."""
        waiting_for = self._waiting_for
        while True:
            thrown: BaseException | None = None
            value: Any = None
            try:
                value = yield waiting_for
            except BaseException as error:
                thrown = error
            try:
                if thrown is None:
                    waiting_for = self._coroutine.send(value)
                else:
                    waiting_for = self._coroutine.throw(thrown)
            except StopIteration:
                return


class Relay:
    """One answer on its way; a sink of the upstream connection."""

    def __init__(
        self, request: Request, reply: Reply, *, whole: bool, headers: Mapping[str, str]
    ) -> None:
        self._request = request
        self.reply = reply
        self._whole = whole
        self._headers = headers
        self._connection: Connection | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._status = 0
        self._error_body = b""
        self._error: VllamaError | None = None
        self._ended = False
        self._gone = False
        self._writer: Writer | None = None
        if isinstance(reply, StoppedReply):
            reply.enough = self.cut
        self._usual = reply.usual
        self._diverted = False
        self._rest: Awaitable[None] | None = None
        self._behind: list[bytes] = []
        self._tail = b""

    async def run(
        self,
        upstream: Upstream,
        call: Call,
        before_finish: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Send `call`, relay its answer. Raises ClientGone, or an error before the commit point.

        `before_finish` is awaited when the engine is done and before the last bytes are made.
        """
        loop = asyncio.get_running_loop()
        connection = self._connection = await upstream.connect()
        watch = Watch(self._request, self._client_left)
        try:
            watch.begin()
            connection.request(upstream.encode(call), self)
            while not (self._ended or self._error or self._gone):
                if self._rest is None:
                    self._waiter = loop.create_future()
                    await self._waiter
                await self._catch_up()
            if self._gone:
                raise ClientGone
            await self._catch_up()
            await self._end(before_finish)
        finally:
            watch.end()
            connection.release()

    # -- sink ---------------------------------------------------------------------------------

    def on_head(self, status: int) -> None:
        """Keep the engine's status."""
        self._status = status

    def on_data(self, data: bytes) -> None:
        """Translate one read and push it on."""
        out = self._translated(data)
        if not out:
            return
        writer = self._writer
        if writer is None or self._rest is not None or not writer(out):
            self._push(out)
        elif not self._diverted and self._usual is not None and self._usual.tail:
            assert self._connection is not None
            self._connection.divert(Lane(self._connection, self._usual, writer))
            self._diverted = True

    def on_last(self, data: bytes) -> None:
        """Translate the last read, and keep it for `_end` to send together with what follows."""
        out = self._translated(data)
        if self._rest is None:
            self._tail = out
        elif out:
            self._behind.append(out)

    def _translated(self, data: bytes) -> bytes:
        if self._status != 200:
            if len(self._error_body) < MAX_ERROR_BYTES:
                self._error_body += data
            return b""
        if self._error is not None:
            return b""
        try:
            return self.reply.feed(data, now_ns())
        except VllamaError as error:
            self._error = error
            self._leave_lane()
            self._wake()
            return b""

    def on_end(self) -> None:
        """Note the end of the engine's answer."""
        self._ended = True
        self._wake()

    def on_lost(self, error: ConnectionLost) -> None:
        """Note the loss of the engine; an answer that was complete by then is fine."""
        if not self.reply.ended:
            self._error = error
        self._ended = True
        self._wake()

    def cut(self) -> None:
        """End the engine's answer here: its reply has all that it wants."""
        self._ended = True
        if self._connection:
            self._connection.abort()
        self._wake()

    # -- to the client ------------------------------------------------------------------------

    def _push(self, out: bytes) -> None:
        """Send now if the client keeps up, else keep it for `_catch_up`."""
        if self._rest is not None:
            self._behind.append(out)
            return
        if not self._request.status and not self._start():
            self._behind.append(out)
            return
        if self._drive({"type": "http.response.body", "body": out, "more_body": True}):
            self._writer = chunk_writer(self._request.send)

    def _start(self) -> bool:
        """Send the head; False if that suspended."""
        kind = self.reply.content_type.encode()
        hold_head(self._request.send)
        return self._drive(self._request.head(200, kind, None, self._headers))

    def _drive(self, message: Message) -> bool:
        """Run `send()` by hand; True if it finished at once."""
        coroutine = self._request.send(message)
        if type(coroutine) is not CoroutineType:  # a server whose send() is something else
            self._suspend(coroutine)
            return False
        try:
            waiting_for = coroutine.send(None)
        except StopIteration:
            return True
        self._suspend(Rest(coroutine, waiting_for))
        return False

    def _suspend(self, rest: Awaitable[None]) -> None:
        self._rest = rest
        self._leave_lane()
        if self._connection:
            self._connection.pause()
        self._wake()

    def _leave_lane(self) -> None:
        """See to it that nothing overtakes what has to wait."""
        if self._diverted and self._connection:
            self._connection.divert(None)
            self._diverted = False

    async def _catch_up(self) -> None:
        """Finish a suspended send, write all that piled up in one go, resume the engine."""
        while self._rest is not None:
            await self._rest
            behind, self._behind = b"".join(self._behind), []
            if behind:
                await self._request.send(
                    {"type": "http.response.body", "body": behind, "more_body": True}
                )
            if not self._behind:
                self._rest = None
                if self._connection and not self._ended:
                    self._connection.resume()

    def _client_left(self) -> None:
        self._gone = True
        if self._connection:
            self._connection.abort()
        self._wake()

    def _wake(self) -> None:
        """Let `run` look what has happened."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the end ------------------------------------------------------------------------------

    async def _end(self, before_finish: Callable[[], Awaitable[None]] | None) -> None:
        """Send the last bytes, or the error in the way that the commit point demands."""
        error = self._error
        last = b""
        if self._tail and before_finish:
            self._push(self._tail)
            self._tail = b""
            await self._catch_up()
        if error is None and self._status != 200:
            error = clean_engine_error(self._status, self._error_body)
        if error is None:
            try:
                if before_finish:
                    await before_finish()
                last = self.reply.finish(now_ns())
            except VllamaError as failure:
                error = failure
        if error is not None:
            if not self._request.status and not self._tail:
                raise error
            last = self.reply.fail(error)
        if self._whole:
            kind = self.reply.content_type.encode()
            await self._request.respond(200, last, kind, self._headers)
            return
        if not self._request.status:
            kind = self.reply.content_type.encode()
            hold_head(self._request.send)
            await self._request.send(self._request.head(200, kind, None, self._headers))
        await self._request.send({"type": "http.response.body", "body": self._tail + last})
