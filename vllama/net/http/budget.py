"""The budget of bytes for all connections: requests that wait, and answers that are not taken.

The first `GRANTED_BYTES` of a connection are counted but never refused, so that ordinary requests
are served while others use up the budget. One API key gets a part of it.
"""

from __future__ import annotations

from collections import Counter

from vllama.base.errors import Busy

OWNERS_SHARE = 0.5
GRANTED_BYTES = 64 * 1024
RETRY_AFTER_S = 10  # by then the connections that make no progress are closed: `HttpServer._sweep`


class BuffersFull(Busy):
    """A request or its answer does not fit into the budget."""

    def __init__(self) -> None:
        super().__init__(
            "cannot accept this request: other requests and unsent responses fill max_buffer_size",
            retry_after_s=RETRY_AFTER_S,
            hint="try again soon",
        )


class Budget:
    """The sum of the bytes that are held for all connections, and its limit."""

    def __init__(self, limit_bytes: float) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._of_owners = Counter[str]()
        self.is_short = False  # something has been refused since the last sweep

    def count(self, size_bytes: int, owner: str) -> None:
        """Count bytes that are held, or, below 0, no longer are; `owner` "": without a key."""
        self.used_bytes += size_bytes
        self._of_owners[owner] += size_bytes

    def fits(self, size_bytes: int, owner: str) -> bool:
        """Return whether `size_bytes` more are allowed."""
        fits = self.used_bytes + size_bytes <= self.limit_bytes
        most_of_owner = self.limit_bytes * (OWNERS_SHARE if owner else 1)
        fits &= self._of_owners[owner] + size_bytes <= most_of_owner
        self.is_short |= not fits
        return fits
