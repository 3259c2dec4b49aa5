"""The budget of bytes for all connections: requests that wait, and answers that are not taken.

The first `GRANTED_BYTES` of a connection are counted but never refused, so that ordinary requests
are served while others use up the budget.
"""

from __future__ import annotations

from vllama.base.errors import Busy

GRANTED_BYTES = 64 * 1024
RETRY_AFTER_S = 10  # by then the connections that make no progress are closed: `Server._sweep`


class BuffersFull(Busy):
    """A request or its answer does not fit into the budget."""

    def __init__(self) -> None:
        super().__init__(
            "cannot take this request: other requests and unsent answers fill max_buffer_size",
            retry_after_s=RETRY_AFTER_S,
            hint="try again soon",
        )


class Budget:
    """The sum of the bytes that are held for all connections, and its limit."""

    def __init__(self, limit_bytes: float) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.is_short = False  # something has been refused since the last sweep

    def fits(self, size_bytes: int = 0) -> bool:
        """Return whether `size_bytes` more are allowed."""
        fits = self.used_bytes + size_bytes <= self.limit_bytes
        self.is_short |= not fits
        return fits
