"""All keys of a server: the plain ones of its settings, and the named ones of its file."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from vllama.accounts.keys.key import Key, digest_secret, make_plain_keys
from vllama.accounts.keys.store import WatchedKeys
from vllama.base.clock import Clock
from vllama.base.errors import Unauthorized

log = logging.getLogger(__name__)

KEY_VARIABLES = "OLLAMA_API_KEY, VLLAMA_CLIENT_KEY, VLLAMA_API_KEY or VLLAMA_API_KEY_FILE"
"""Where the commands take their key from."""
ADD_ADMIN = "vllama keys add NAME --scope admin"


class KeyRing:
    """Finds the key that a request shows."""

    def __init__(
        self, plain: tuple[str, ...], file: Path | None, clock: Clock, *, required: bool = False
    ) -> None:
        """`plain` are the secrets of the settings. Raises ConfigError for a file without sense.

        `required`: requests need a key even if there is none, as after the loss of the file.
        """
        self._plain: Mapping[str, Key] = make_plain_keys(plain)
        self._named = WatchedKeys(file) if file is not None else None
        self._clock = clock
        self._required = required
        if required and not self._has_any():
            log.error("no request is accepted: there is no key in '%s'; put the file back", file)

    def use_plain(self, secrets: tuple[str, ...]) -> None:
        """Replace the plain keys."""
        self._plain = make_plain_keys(secrets)

    @property
    def is_required(self) -> bool:
        """Whether requests need a key."""
        return bool(self._plain) or self.stays_required

    @property
    def stays_required(self) -> bool:
        """Whether they need one without the plain keys, too, even if the file is gone."""
        if self._named is not None:
            self._named.get()
        return self._required or (self._named is not None and not self._named.is_open)

    def _has_any(self) -> bool:
        """Tell whether there is a key that could be shown."""
        named = self._named.get().values() if self._named is not None else ()
        now_s = self._clock.time()
        return bool(self._plain) or any(key.find_fault(now_s) is None for key in named)

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
        if self._has_any():
            raise Unauthorized(
                "unauthorized: the request has no valid key for this server",
                hint=f"send 'Authorization: Bearer KEY'; the commands read {KEY_VARIABLES}",
            )
        way = "" if self._required else "; or let everybody in again: vllama keys open"
        raise Unauthorized(
            "unauthorized: this server requires a key, and has none",
            hint=f"add one on its machine: {ADD_ADMIN}{way}",
        )
