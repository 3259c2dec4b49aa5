"""Records the bytes of an answer with the time of each part, while they are sent."""

from __future__ import annotations

from vllama.chat.request import Call
from vllama.clock import now_ns

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
        self.parts: list[tuple[int, bytes]] = []  # with the time of each, in ns
        self.size_bytes = 0
        self.kept_bytes = 0

    def take_head(self, content_type: bytes) -> None:
        """Note the head of the answer."""
        self.content_type = content_type.decode("latin-1")

    def take_part(self, part: bytes) -> None:
        """Note a part of the answer, as far as it is within the limit."""
        self.size_bytes += len(part)
        if kept := part[: MAX_ANSWER_BYTES - self.kept_bytes]:
            self.parts.append((now_ns(), kept))
            self.kept_bytes += len(kept)
