"""A free loopback port that stays reserved until the child uses it.

To bind a free port, close it and pass its number on is a race, because the kernel may give the same
number to another program meanwhile. Therefore the port stays bound here until the child is ready:

* On Linux, two sockets that both set SO_REUSEADDR (or both SO_REUSEPORT, same user) may be bound to
  one port as long as at most one listens. Ours never listens, so the child can bind and listen,
  and gets all connections. The kernel gives a bound port to no `bind(0)` or `connect`. uvicorn,
  asyncio and http.server set SO_REUSEADDR, cpp-httplib (llama-server) sets SO_REUSEPORT.
* Elsewhere (macOS) the second bind fails. `PortReservation` tries it once; if it fails, the port is
  released just before the spawn. Should another program take the port in between, the engine exits,
  and its `Diagnosis.retryable` leads to another start with another port.

Knows no process.
"""

from __future__ import annotations

import socket
from typing import Self

from vllama.base.errors import EngineStartFailed


def _bind(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def _is_shareable(host: str, port: int) -> bool:
    """Return whether a second socket can bind to the port and listen on it."""
    try:
        with _bind(host, port) as second:
            second.listen(1)
    except OSError:
        return False
    return True


class PortReservation:
    """A port that is reserved from construction until `release`; a context manager.

    `shareable`: a child can bind it while it is reserved.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        try:
            self._socket: socket.socket | None = _bind(host, 0)
        except OSError as error:
            raise EngineStartFailed(
                f"no free port on {host}: {error.strerror}",
                hint="wait until other programs close connections; list them with ss -tan",
            ) from error
        if hasattr(socket, "SO_REUSEPORT"):
            # only after the bind, so that the kernel has chosen a port that no other socket has
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        self.shareable = _is_shareable(host, self.port)

    @property
    def held(self) -> bool:
        """True if the port is still bound here."""
        return self._socket is not None

    def before_spawn(self) -> None:
        """Release the port if the child could not bind it otherwise."""
        if not self.shareable:
            self.release()

    def release(self) -> None:
        """Release the port; may be called twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the port."""
        self.release()
