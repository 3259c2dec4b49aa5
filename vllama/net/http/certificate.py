"""The server's TLS certificate, and its replacement while connections are open."""

from __future__ import annotations

import ssl
from pathlib import Path

from vllama.base.errors import ConfigError


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
