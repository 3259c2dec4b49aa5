"""The hub's answers: kept with their ETags; its refusals and broken connections as our errors.

A kept answer is used only after the server has confirmed it (`If-None-Match`, 304), so it is never
out of date. Each is a file in a folder of vllama's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from vllama.base import private
from vllama.base.errors import (
    AuthRequired,
    ModelNotFound,
    Offline,
    SourceError,
    describe_connection_error,
)
from vllama.models.settings import HUB_ADDRESS
from vllama.models.sources.hub_json import parse_wait_s
from vllama.models.types import Transient
from vllama.net.web.connections import BadAddress, ConnectionBroken, StreamedResponse

GO_ONLINE = "turn hf_offline off ('vllama config' shows where it is set)"

_LOG_IN = "set HF_TOKEN or run: hf auth login"


class HubRefusal(Exception):
    """The hub answered with the status of an error."""

    def __init__(self, answer: StreamedResponse) -> None:
        super().__init__(f"{answer.status} {answer.reason}".rstrip())
        self.status, self.headers = answer.status, answer.headers
        self.code = answer.headers.get("x-error-code", "")
        message = answer.headers.get("x-error-message", "")
        if message == "Access to this resource is disabled.":
            self.code = "Disabled"
        elif (
            self.status == 401
            and not self.code
            and message != "Invalid credentials in Authorization header"
            and _REPOSITORY.match(answer.url)
        ):
            self.code = "RepoNotFound"  # so the hub answers whoever may not know


_REPOSITORY = re.compile(r"https://[^/]+/(api/models/.|.+/resolve/.)")


@contextmanager
def translate_errors(
    endpoint: str, hub_id: str, file: str | None = None, revision: str | None = None
) -> Iterator[None]:
    """Translate Refused and the errors of the connection into ours."""
    host = urlsplit(endpoint).netloc
    try:
        yield
    except HubRefusal as refused:
        raise _make_refused_error(host, hub_id, refused, file, revision) from refused
    except (ConnectionBroken, OSError) as error:
        raise Offline(
            f"cannot reach {host}: {describe_connection_error(error)}",
            hint="check the network, proxy and HF_ENDPOINT",
        ) from error
    except BadAddress as error:
        raise SourceError(
            f"cannot read '{hub_id}' from {host or endpoint}: {error}",
            hint="check HF_ENDPOINT and HF_TOKEN",
        ) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:  # not an answer of a hub
        raise SourceError(
            f"cannot read '{hub_id}': {host} does not respond like the hub",
            hint="check HF_ENDPOINT",
        ) from error


def _make_gated_error(hub_id: str, status: int) -> AuthRequired:
    page = f"{HUB_ADDRESS}/{hub_id}"
    if status == 401:
        hint = f"accept its license at {page}, then {_LOG_IN}"
    else:
        hint = f"your token has no access: accept the license at {page} with its account"
    return AuthRequired(f"cannot download '{hub_id}': its license must be accepted", hint=hint)


def make_disabled_error(host: str, hub_id: str) -> SourceError:
    """Return the error for a repository that the hub has taken out of use."""
    return SourceError(
        f"cannot download '{hub_id}': {host} has disabled it",
        hint="use another repository of the model",
    )


def _make_refused_error(
    host: str, hub_id: str, refused: HubRefusal, file: str | None, revision: str | None
) -> SourceError | ModelNotFound:
    """Return the error for an answer; what is wrong stands in its headers, as a code."""
    match refused.code:
        case "GatedRepo":
            return _make_gated_error(hub_id, refused.status)
        case "Disabled":
            return make_disabled_error(host, hub_id)
        case "RepoNotFound":
            return ModelNotFound(
                hub_id,
                message=f"cannot find '{hub_id}' on {host}: no such repository, or it is private",
                hint=f"check the spelling; for a private repository, {_LOG_IN}",
            )
        case "RevisionNotFound":
            return ModelNotFound(
                hub_id,
                message=f"cannot find '{hub_id}{f'@{revision}' if revision else ''}' "
                f"on {host}: the repository has no such revision",
                hint="use a branch, tag or commit, or omit the @revision",
            )
        case "EntryNotFound":
            return ModelNotFound(
                hub_id,
                message=f"cannot download '{file}' of '{hub_id}': no such file",
                hint="pull again: the repository has changed",
            )
    match refused.status:
        case 401:
            return AuthRequired(
                f"cannot read '{hub_id}': {host} does not accept the token",
                hint="renew the token: https://huggingface.co/settings/tokens",
            )
        case 403:
            return AuthRequired(
                f"cannot read '{hub_id}': the token may not read it",
                hint=f"use a token with read access: {HUB_ADDRESS}/settings/tokens",
            )
        case 404:
            return ModelNotFound(hub_id, message=f"cannot find '{hub_id}' on {host}: not found")
        case 429:
            wait = parse_wait_s(refused.headers)
            return Transient(
                f"cannot read '{hub_id}': rate limited by {host}",
                hint=f"try again in {wait} s" if wait else f"wait a moment; or {_LOG_IN}",
            )
        case status:
            kind = Transient if status >= 500 else SourceError
            return kind(
                f"cannot read '{hub_id}': {host} returned {refused}",
                hint="try again later" if status >= 500 else None,
            )


_MAX_ANSWERS = 256


class KeptAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A body with its ETag; `next` is the query of the next page, if there is one."""

    etag: str
    body: bytes
    next: str | None = None


class AnswerCache:
    """A cache of answers by address in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, url: str, token: str | None) -> KeptAnswer | None:
        """Return the cached answer for an address and token, or None."""
        try:
            return msgspec.msgpack.decode(self._place(url, token).read_bytes(), type=KeptAnswer)
        except (OSError, ValueError):  # msgspec raises ValueErrors
            return None

    def keep(self, url: str, token: str | None, answer: KeptAnswer) -> None:
        """Cache an answer, if the folder can be written."""
        with contextlib.suppress(OSError):
            # private: answers may list private repositories
            private.replace(self._place(url, token), msgspec.msgpack.encode(answer), sync=True)
            self._prune()

    def _place(self, url: str, token: str | None) -> Path:
        return self._folder / hashlib.sha256(f"{token or ''}\n{url}".encode()).hexdigest()

    def _prune(self) -> None:
        files = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in files[:-_MAX_ANSWERS]:
            path.unlink(missing_ok=True)
