"""The listening socket: who has the port, its certificate, its end without a lost connection."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import socket
import ssl
import struct
import sys
import time
from _ssl import _test_decode_cert  # type: ignore[attr-defined]
from pathlib import Path

from vllama.base.errors import ConfigError, PortTaken, VllamaError
from vllama.base.units import rfc3339_local

log = logging.getLogger(__name__)

DAY_S, WARN_DAYS = 86_400.0, 14
BACKLOG = 2048  # connections that wait to be accepted, for instance while the server starts
PROBE_LIMIT_S = 1.0
PROBE_BYTES = 4096
SO_ATTACH_FILTER = 26  # asm-generic/socket.h
NO_NEW = (
    (0x30, 0, 0, 13),  # load the byte with the flags of the TCP header
    (0x54, 0, 0, 0x12),  # of which SYN and ACK
    (0x15, 0, 1, 0x02),  # if it is SYN alone, a new connection,
    (0x06, 0, 0, 0),  # drop the packet,
    (0x06, 0, 0, 0xFFFF_FFFF),  # else keep it
)
"""A filter in the language of socket filters: Linux, Documentation/networking/filter."""


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket, so that a taken port is reported before anything slow.

    Raises PortTaken, which names an Ollama server if that is the owner, ConfigError for what can
    never work, and VllamaError for an address that this machine lacks, perhaps only for now.
    """
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(
            f"cannot listen on '{host}': {error.strerror}", hint="give an address of this machine"
        ) from error
    listener = socket.socket(family, kind, proto)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(where)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            owner = "".join(find_port_owner(host, port))
            raise PortTaken(
                f"cannot listen on {host}:{port}: {owner} uses it",
                hint="stop it, or choose another port with --port or OLLAMA_HOST",
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM):
            raise ConfigError(
                f"cannot listen on {host}:{port}: permission denied",
                hint="choose a port above 1023 with --port",
            ) from error
        raise VllamaError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="give an address of this machine with --host",
        ) from error
    listener.setblocking(False)
    return listener


def find_port_owner(host: str, port: int, limit_s: float = PROBE_LIMIT_S) -> tuple[str, str]:
    """Return a name for the server that listens there already, with its " (pid 1, name)".

    The second is "" where the system does not tell.
    """
    where = "127.0.0.1" if host in ("", "0.0.0.0") else "::1" if host == "::" else host
    answer = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((where, port), timeout=limit_s) as probe,
    ):
        probe.sendall(b"GET /api/version HTTP/1.0\r\nhost: localhost\r\n\r\n")
        while len(answer) < PROBE_BYTES and (data := probe.recv(PROBE_BYTES)):
            answer += data  # head and body may arrive separately
    if b'"vllama"' in answer:
        return "another vllama", _find_listener(port)
    owner = "an Ollama server" if b'"version"' in answer else "another program"
    return owner, _find_listener(port)


def _find_listener(port: int) -> str:
    import psutil  # slow to import, and seldom needed

    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.pid and one.status == "LISTEN" and one.laddr and one.laddr.port == port:
                return f" (pid {one.pid}, {psutil.Process(one.pid).name()})"
    return ""


def refuse_new_connections(listener: socket.socket) -> bool:
    """Let no new connection begin, so that those that have can all be accepted before the end.

    A system closes a listening socket with a reset of what nobody has accepted yet, and a proxy may
    have sent a request there, which it does not repeat. A connection that begins now is tried again
    by its client's system, which is then told that nobody listens. Returns False where the system
    cannot do that.
    """
    if not sys.platform.startswith("linux") or listener.family == socket.AF_UNIX:
        return False
    steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in NO_NEW))
    program = struct.pack("HL", len(NO_NEW), ctypes.addressof(steps))
    try:
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
    except OSError:
        return False
    return True


class Certificate:
    """A certificate chain and its private key in PEM; with `key` None both are in one file.

    `context` is for the listening socket. Raises ConfigError if the files cannot be used.
    """

    def __init__(self, chain: Path, key: Path | None) -> None:
        self._chain, self._key = chain, key
        self._current = self._load()
        self.context = self._load()
        # OpenSSL calls this in every handshake, even if the client names no host
        self.context.sni_callback = self._choose

    async def watch(self) -> None:
        """Warn once a day of a certificate that expires soon, until canceled."""
        while True:
            if self.expires_s < time.time() + WARN_DAYS * DAY_S:
                until = rfc3339_local(self.expires_s)
                log.warning("the certificate '%s' expires at %s: renew it", self._chain, until)
            await asyncio.sleep(DAY_S)

    def reload(self) -> None:
        """Read the files again for new connections. If that fails, keep the old pair and raise."""
        self._current = self._load()

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            # without a password here OpenSSL would prompt for one on the terminal
            context.load_cert_chain(self._chain, self._key, password="")
            # the public API of `ssl` decodes certificates of peers and authorities only
            self.expires_s = ssl.cert_time_to_seconds(_test_decode_cert(self._chain)["notAfter"])
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise ConfigError(
                f"cannot use the certificate {self._files}: {self._reason(error)}",
                hint="give a certificate and its own private key without a password, in PEM",
            ) from error
        return context

    @property
    def _files(self) -> str:
        return f"'{self._chain}'" + (f" with the key '{self._key}'" if self._key else "")

    def _reason(self, error: Exception) -> str:
        if isinstance(error, ssl.SSLError):
            reason = (error.reason or "").replace("_", " ").lower()
            return reason or "a file is not PEM, or the key has a password"
        for path in filter(None, (self._chain, self._key)):
            try:
                path.read_bytes()
            except OSError as failure:  # OpenSSL does not say which file it is
                return f"'{path}': {failure.strerror}"
        return str(error)
