"""A cable to a server that a test can cut: nothing passes any more, and nobody is told."""

from __future__ import annotations

import contextlib
import select
import socket
import threading

from tests.server_process import LIMIT_S


class Cable:
    """Passes on all connections to `port`, by threads of its own. Use it as a context manager."""

    def __init__(self, port: int) -> None:
        self._there = ("127.0.0.1", port)
        self._whole = threading.Event()
        self._whole.set()
        self._closing = False
        self._sockets: list[socket.socket] = []
        self._passing: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._accepts = True
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def url(self) -> str:
        """Where clients find the server."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Cable:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._whole.set()
        self._stop_accepting()
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._passing:
            thread.join()
        for each in (self._listener, *self._sockets):
            each.close()

    def cut(self, *, connects: bool = True) -> None:
        """Pass nothing on from now on; without `connects` new connections hang for ever."""
        self._whole.clear()
        if not connects:
            self._stop_accepting()
            self._listener.listen(0)  # room for one connection, which nobody will accept
            self._connect()
            assert select.select([self._listener], [], [], LIMIT_S)[0]

    def mend(self) -> None:
        """Pass all on again, also what has come meanwhile."""
        self._whole.set()

    def _connect(self) -> None:
        each = socket.socket()
        each.setblocking(False)
        each.connect_ex(("127.0.0.1", self.port))
        self._sockets.append(each)

    def _stop_accepting(self) -> None:
        if self._accepts:
            self._accepts = False
            self._connect()  # wakes the thread
            self._accepting.join()

    def _accept(self) -> None:
        while self._accepts:
            here, _ = self._listener.accept()
            self._sockets.append(here)
            thread = threading.Thread(target=self._connect_through, args=(here,))
            self._passing.append(thread)
            thread.start()

    def _connect_through(self, here: socket.socket) -> None:
        self._whole.wait()
        with contextlib.suppress(OSError):
            there = socket.create_connection(self._there)
            self._sockets.append(there)
            if not self._closing:
                back = threading.Thread(target=self._pass_on, args=(there, here))
                back.start()
                self._pass_on(here, there)
                back.join()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._whole.wait()
                sink.sendall(data)
        if not self._closing:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
