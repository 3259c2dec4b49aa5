"""All keys of a server: the plain ones of its settings, and the named ones of its file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vllama.clock import Clock
from vllama.errors import Unauthorized
from vllama.keys.key import Key, digest_secret, make_plain_keys
from vllama.keys.store import WatchedKeys


class KeyRing:
    """Finds the key that a request shows."""

    def __init__(self, plain: tuple[str, ...], file: Path | None, clock: Clock) -> None:
        """`plain` are the secrets of the settings. Raises ConfigError for a file without sense."""
        self._plain: Mapping[str, Key] = make_plain_keys(plain)
        self._named = WatchedKeys(file) if file is not None else None
        self._clock = clock

    def use_plain(self, secrets: tuple[str, ...]) -> None:
        """Replace the plain keys."""
        self._plain = make_plain_keys(secrets)

    @property
    def is_required(self) -> bool:
        """Whether requests need a key. A file of keys requires one even if no key is left in it."""
        return bool(self._plain) or self.has_named

    @property
    def has_named(self) -> bool:
        """Whether there is a file of named keys, or was one."""
        if self._named is None:
            return False
        self._named.get()
        return self._named.exists

    def find(self, authorization: str, api_key: str) -> Key | None:
        """Return the key that the headers show, which may have expired; None if there is none.

        `authorization` is that of RFC 6750, `Bearer SECRET`; `api_key` is `x-api-key`, where
        Anthropic's clients put it. The look-up compares digests, so the time that it takes tells
        nothing about a secret.
        """
        named: Mapping[str, Key] = self._named.get() if self._named is not None else {}
        if not (self._plain or named):
            return None
        scheme, _, bearer = authorization.partition(" ")
        shown = (bearer.strip() if scheme.lower() == "bearer" else "", api_key.strip())
        digests = [digest_secret(secret) for secret in shown if secret]
        found = [key for d in digests if (key := self._plain.get(d) or named.get(d)) is not None]
        now_s = self._clock.time()
        return next((key for key in found if key.find_fault(now_s) is None), None) or (
            found[0] if found else None
        )

    def admits(self, key: Key | None) -> bool:
        """Return whether a request that shows `key` is accepted."""
        if key is None:
            return not self.is_required
        return key.find_fault(self._clock.time()) is None

    def check(self, key: Key | None) -> None:
        """Raise Unauthorized unless a request that shows `key` is accepted."""
        if self.admits(key):
            return
        if key is not None and (fault := key.find_fault(self._clock.time())):
            raise Unauthorized(f"unauthorized: {fault}", hint="ask the operator for another one")
        raise Unauthorized(
            "unauthorized: the request shows no key of this server",
            hint="send 'Authorization: Bearer KEY'; the commands take it from OLLAMA_API_KEY",
        )
