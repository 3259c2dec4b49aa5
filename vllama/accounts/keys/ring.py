"""All keys of a server: the plain ones of its settings, and the named ones of its file."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path

from msgspec.structs import replace

from vllama.accounts.keys.key import (
    ApiKey,
    Scope,
    digest_secret,
    index_keys,
    make_node_key,
    make_plain_keys,
)
from vllama.accounts.keys.store import NO_FILE, KeyFile, read_file
from vllama.base.clock import Clock
from vllama.base.errors import ConfigError, Forbidden, Unauthorized

log = logging.getLogger(__name__)

KEY_VARIABLES = "OLLAMA_API_KEY, VLLAMA_CLIENT_KEY, VLLAMA_API_KEY or VLLAMA_API_KEY_FILE"
"""Where the commands take their key from."""
ADD_ADMIN = "vllama keys add NAME --scope admin"


Signature = tuple[int, int, int]
"""Inode, size and time of change in ns: a replaced file differs in the first."""


class KeyRing:
    """Finds the key that a request shows."""

    def __init__(
        self,
        plain: tuple[str, ...],
        file: Path | None,
        clock: Clock,
        *,
        required: bool = False,
        node: str | None = None,
    ) -> None:
        """`plain` are the secrets of the settings. Raises ConfigError for a file without sense.

        `node` is the secret of the head, if this server is a node of a cluster.
        `required`: requests need a key even if there is none, as after the loss of the file.
        """
        self._node = make_node_key(node) if node else None
        self.use_plain(plain)
        self._named = WatchedKeys(file) if file is not None else None
        self._clock = clock
        self._required = required
        if required and not self._has_any():
            log.error("all requests are rejected: '%s' has no key; restore the file", file)

    def refresh(self) -> None:
        """Take note of a change of the file, as `find` does once for each request."""
        if self._named is not None:
            self._named.refresh()

    def use_plain(self, secrets: tuple[str, ...]) -> None:
        """Replace the plain keys."""
        self._plain: dict[str, ApiKey] = dict(make_plain_keys(secrets))
        if self._node is not None:
            self._plain[self._node.digest] = self._node

    @property
    def is_required(self) -> bool:
        """True if requests need a key."""
        return bool(self._plain) or self.stays_required

    @property
    def stays_required(self) -> bool:
        """True if they need one without the plain keys, too, even if the file is gone."""
        return self._required or (self._named is not None and not self._named.is_open)

    def _has_any(self) -> bool:
        """Tell whether there is a key that could be shown."""
        named = self._named.keys.values() if self._named is not None else ()
        now_s = self._clock.time()
        return bool(self._plain) or any(key.find_fault(now_s) is None for key in named)

    def find(self, authorization: str, api_key: str) -> ApiKey | None:
        """Return the key that the headers show, which may have expired; None if there is none.

        `authorization` is that of RFC 6750, `Bearer SECRET`; `api_key` is `x-api-key`, where
        Anthropic's clients put it. The look-up compares digests, so the time that it takes tells
        nothing about a secret.
        """
        self.refresh()
        named: Mapping[str, ApiKey] = self._named.keys if self._named is not None else {}
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

    def find_owner(self, owner: str, name: str) -> ApiKey | None:
        """Return the key of an owner, for what goes on after its request; None if it is gone."""
        owner, _, user = owner.partition(" ")  # as of `RunningRequest.owner`
        named = self._named.keys.values() if self._named is not None else ()
        now_s = self._clock.time()
        return next(
            (
                replace(key, user=user) if user else key
                for key in (*named, *self._plain.values())
                if (key.owner, key.name) == (owner, name) and key.find_fault(now_s) is None
            ),
            None,
        )

    def admits(self, key: ApiKey | None) -> bool:
        """Return whether a request that shows `key` is accepted."""
        if key is None:
            return not self.is_required
        return key.find_fault(self._clock.time()) is None

    def check(self, key: ApiKey | None) -> None:
        """Raise Unauthorized unless a request that shows `key` is accepted."""
        if self.admits(key):
            return
        if key is not None and (fault := key.find_fault(self._clock.time())):
            raise Unauthorized(f"unauthorized: {fault}", hint="ask the operator for a new one")
        if self._has_any():
            raise Unauthorized(
                "unauthorized: the request has no valid key for this server",
                hint=f"send 'Authorization: Bearer KEY'; commands read {KEY_VARIABLES}",
            )
        way = "" if self._required else "; or accept requests without a key: vllama keys open"
        raise Unauthorized(
            "unauthorized: this server requires a key, but no key exists",
            hint=f"add one on the server's machine: {ADD_ADMIN}{way}",
        )


class WatchedKeys:
    """The keys of a file by digest; a change of the file is noticed by the next `refresh`.

    A file that can no longer be read, or that vanishes, changes nothing: a server that wanted keys
    must not be open to everybody because of that.
    """

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if the file exists and cannot be read."""
        self._path = path
        self._file = os.fspath(path)  # which a path makes anew each time
        self._signature = self._read_signature()
        self._use(read_file(path))

    def refresh(self) -> None:
        """Read the file again if it has changed."""
        signature = self._read_signature()
        if signature != self._signature:
            self._signature = signature
            self._read_again()

    def _read_again(self) -> None:
        try:
            content = read_file(self._path)
        except ConfigError as error:
            log.error("the keys are unchanged: %s", error.sentence())
            return
        if content is NO_FILE:
            log.error("the keys are unchanged: '%s' does not exist", self._path)
            return
        self._use(content)
        told = "requests need a key" if not content.open else "requests need no key"
        log.info("keys reloaded: %d in '%s'; %s", len(content.keys), self._path, told)

    def _use(self, content: KeyFile) -> None:
        self.keys, self.is_open = index_keys(content.keys), content.open

    def _read_signature(self) -> Signature | None:
        try:
            status = os.stat(self._file)  # noqa: PTH116 - runs for each request, and is quicker
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns


current_key: ContextVar[ApiKey | None] = ContextVar("current_key", default=None)


def may_use(*names: str) -> bool:
    """Return whether the request may use a model that has one of `names`."""
    key = current_key.get()
    return key is None or key.may_use(*names)


def check_model(*names: str) -> None:
    """Raise Forbidden unless the request may use a model that has one of `names`."""
    if not may_use(*names):
        key = current_key.get()
        assert key is not None
        raise Forbidden(
            f"cannot use the model '{names[0]}': key '{key.name}' does not allow it",
            hint=f"allowed models: {', '.join(key.models)}",
        )


def check_load_option(name: str) -> None:
    """Raise Forbidden unless the request may set how a model is loaded, beyond Ollama's options."""
    key = current_key.get()
    if key is not None and not key.allows(Scope.ADMIN):
        raise Forbidden(
            f"cannot use the option '{name}': key '{key.name}' does not allow it",
            hint="omit it, or use a key with the scope 'admin'",
        )


def check_scopes(key: ApiKey | None, scopes: Sequence[Scope]) -> None:
    """Raise Forbidden if `key` has none of `scopes`; none are needed where there are none."""
    if key is None or not scopes or any(map(key.allows, scopes)):
        return
    needed = " or ".join(f"'{scope}'" for scope in scopes)
    raise Forbidden(
        f"cannot do this with key '{key.name}': it needs the scope {needed}",
        hint="ask the operator, who can run: vllama keys change",
    )


def check_path(name: str) -> None:
    """Raise Forbidden unless the request may name a model by its path, whatever lies there."""
    key = current_key.get()
    if key is not None and not key.allows(Scope.ADMIN):
        raise Forbidden(
            f"cannot use the path '{name}': key '{key.name}' allows models only by name",
            hint="use a name from 'vllama list', or a key with the scope 'admin'",
        )
