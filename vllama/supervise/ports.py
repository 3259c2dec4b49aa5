"""A free loopback port that nobody else is given before the child has it.

Asking for a free port, closing it and passing the number on is a race: the kernel may hand the
same number to somebody else meanwhile. So the port stays bound here until the child is ready:

* On Linux two sockets that both set SO_REUSEADDR (or both SO_REUSEPORT, same user) may be bound to
  one port as long as at most one listens. Ours never listens, so the child can bind and listen,
  and all connections are the child's. The kernel gives a bound port to no `bind(0)` or `connect`.
  uvicorn, asyncio and http.server set SO_REUSEADDR, cpp-httplib (llama-server) SO_REUSEPORT.
* Elsewhere (macOS) the second bind is refused. That is found by trying it once; then the port is
  released right before the spawn, and a lost race is an early exit whose `Diagnosis.retryable`
  leads to another start with another port.

Knows no process.
"""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self

from vllama.errors import EngineStartFailed


def _bound(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def _shareable(host: str, port: int) -> bool:
    """Try whether a second socket may bind to and listen on the port."""
    try:
        with _bound(host, port) as second:
            second.listen(1)
    except OSError:
        return False
    return True


class PortReservation:
    """A port that is ours from construction until `release`; a context manager.

    `shareable` tells whether a child can bind it while it is held.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        try:
            self._socket: socket.socket | None = _bound(host, 0)
        except OSError as error:
            raise EngineStartFailed(
                f"no port of {host} can be had: {error.strerror}",
                hint="wait until other programs close connections, or see which hold them: ss -tan",
            ) from error
        if hasattr(socket, "SO_REUSEPORT"):
            # After the bind, so that the kernel chose a port that no such socket had already.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        self.shareable = _shareable(host, self.port)

    @property
    def held(self) -> bool:
        """Whether the port is still bound here."""
        return self._socket is not None

    def before_spawn(self, *, hold: bool = True) -> None:
        """Let go of the port if the child could not bind it otherwise (or `hold` is False)."""
        if not (hold and self.shareable):
            self.release()

    def release(self) -> None:
        """Let go of the port, whoever listens there now; may be called twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release the port."""
        self.release()
