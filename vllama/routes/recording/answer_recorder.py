"""Records the bytes of an answer with the time of each part, while they are sent.

That happens for every token, so nothing is done here that can be done after the answer.
"""

from __future__ import annotations

from time import monotonic_ns

from vllama.base.clock import EPOCH_NS
from vllama.chat.request import Call
from vllama.net.http.framing import unframe

MAX_REQUEST_BYTES = 16 * 1024**2
MAX_ANSWER_BYTES = 8 * 1024**2


class AnswerRecorder:
    """Records the answer to one request; `body` is the body of the request."""

    def __init__(self, body: bytes) -> None:
        self.body = body[:MAX_REQUEST_BYTES]
        self.body_bytes = len(body)
        self.call: Call | None = None
        """What was sent to the engine last."""
        self.content_type = ""
        self._parts: list[tuple[int, bytes, bool]] = []  # monotonic time in ns, whether framed
        self._room_bytes = MAX_ANSWER_BYTES
        self.left_out_bytes = 0

    def take_head(self, content_type: bytes) -> None:
        """Note the head of the answer."""
        self.content_type = content_type.decode("latin-1")

    def take_part(self, part: bytes) -> None:
        """Note a part of the answer, as far as it is within the limit."""
        if len(part) > self._room_bytes:
            self.left_out_bytes += len(part) - self._room_bytes
            part = part[: self._room_bytes]
        if part:
            self._room_bytes -= len(part)
            self._parts.append((monotonic_ns(), part, False))

    def take_chunk(self, chunk: bytes) -> None:
        """Note a part of the answer that is framed as a chunk."""
        if len(chunk) > self._room_bytes:
            self.take_part(unframe(chunk))
            return
        self._room_bytes -= len(chunk)
        self._parts.append((monotonic_ns(), chunk, True))

    @property
    def memory_bytes(self) -> int:
        """The memory that the record takes, in bytes."""
        return len(self.body) + MAX_ANSWER_BYTES - self._room_bytes

    def list_parts(self) -> list[tuple[int, bytes]]:
        """Return the parts without frames, each with its Unix time in ns."""
        return [
            (EPOCH_NS + at_ns, unframe(part) if is_framed else part)
            for at_ns, part, is_framed in self._parts
        ]
