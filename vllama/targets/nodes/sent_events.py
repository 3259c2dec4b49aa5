"""The events of a stream that its client has: another node makes them again if the first is lost.

It gets the same request with the same seed, like a restarted engine (`chat.replay`). A forwarded
stream is not decoded, so whole events are compared, but for ids and times.
"""

from __future__ import annotations

import re
from collections import deque

from vllama.chat.replay import Departed

MAX_KEPT_BYTES = 1 << 20
"""A longer stream is not resumed: some 5,000 tokens."""
# not `call_id`: the client may have answered to it by the end, which has it again
_VARYING = re.compile(rb'"(id|created|created_at|completed_at)": ?("[^"]*"|[0-9]+)')


class SentEvents:
    """The whole events of one stream."""

    def __init__(self) -> None:
        self.end = b""  # of each
        self.build: str | None = None  # who may go on with it (`REPLAYS_HEADER`); None: nobody
        self.left: deque[bytes] = deque()  # what another node still has to make again
        self._kept = bytearray()

    @property
    def is_complete(self) -> bool:
        """True if another node may go on with it."""
        return bool(self.build and self.end) and len(self._kept) <= MAX_KEPT_BYTES

    def add(self, events: bytes) -> None:
        """Keep events that are sent."""
        if self.is_complete:
            self._kept += events

    def rewind(self) -> None:
        """Expect the stream from its beginning."""
        self.left = deque(bytes(self._kept).split(self.end)[:-1])

    def take(self, events: bytes) -> bytes:
        """Return the new ones of whole events. Raises Departed for what differs."""
        while self.left and events:
            event, _, events = events.partition(self.end)
            if _VARYING.sub(rb"\1", event) != _VARYING.sub(rb"\1", self.left.popleft()):
                raise Departed
        return events
