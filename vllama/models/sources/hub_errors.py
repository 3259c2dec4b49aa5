"""The errors of huggingface_hub and its HTTP library, translated into ours here and only here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from urllib.parse import urlsplit

import httpx2

from vllama.errors import AuthRequired, ModelNotFound, Offline, SourceError
from vllama.models.settings import HUB_ADDRESS
from vllama.models.sources.base import Transient
from vllama.models.sources.hub_json import parse_wait_s

_LOG_IN = "set HF_TOKEN or run: hf auth login"


@contextmanager
def translate_errors(
    hub: ModuleType,
    endpoint: str,
    hub_id: str,
    file: str | None = None,
    revision: str | None = None,
) -> Iterator[None]:
    """Translate the errors of huggingface_hub into ours. Order matters: subclasses first."""
    errors, host = hub.errors, urlsplit(endpoint).netloc
    try:
        yield
    except errors.GatedRepoError as error:
        raise _make_gated_error(hub_id, error.response.status_code) from error
    except errors.DisabledRepoError as error:
        raise make_disabled_error(host, hub_id) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFound(
            hub_id,
            message=f"cannot find '{hub_id}' on {host}: "
            "there is no such repository, or it is private",
            hint=f"check the spelling; for a private one {_LOG_IN}",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelNotFound(
            hub_id,
            message=f"cannot find '{hub_id}{f'@{revision}' if revision else ''}' "
            f"on {host}: the repository has no such revision",
            hint="name a branch, a tag or a commit of it, or omit the @revision",
        ) from error
    except errors.RemoteEntryNotFoundError as error:
        raise ModelNotFound(
            hub_id,
            message=f"cannot fetch '{file}' of '{hub_id}': there is no such file",
            hint="pull again: the repository changed meanwhile",
        ) from error
    except errors.HfHubHTTPError as error:
        raise _make_refused_error(host, hub_id, error.response) from error
    except errors.HFValidationError as error:
        raise ModelNotFound(
            hub_id, message=f"cannot find '{hub_id}': not a name that the hub allows"
        ) from error
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        raise Offline(
            f"cannot contact {host}: offline mode is on", hint="unset HF_HUB_OFFLINE"
        ) from error
    except (httpx2.TransportError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise Offline(
            f"cannot reach {host}: {reason}",
            hint="check the network, proxy and HF_ENDPOINT",
        ) from error
    except httpx2.TooManyRedirects as error:
        raise SourceError(
            f"cannot read '{hub_id}': {host} redirects without end",
            hint="check HF_ENDPOINT",
        ) from error
    except httpx2.InvalidURL as error:
        raise SourceError(
            f"cannot use the hub's address '{endpoint}': {error}",
            hint="check HF_ENDPOINT",
        ) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:  # not an answer of a hub
        raise SourceError(
            f"cannot read '{hub_id}': {host} does not answer like the hub",
            hint="check HF_ENDPOINT",
        ) from error


def _make_gated_error(hub_id: str, status: int) -> AuthRequired:
    page = f"{HUB_ADDRESS}/{hub_id}"
    if status == 401:
        hint = f"accept its licence at {page}, then {_LOG_IN}"
    else:
        hint = f"your token has no access: accept the licence at {page} with its account"
    return AuthRequired(f"cannot fetch '{hub_id}': its licence must be accepted", hint=hint)


def make_disabled_error(host: str, hub_id: str) -> SourceError:
    """Return the error for a repository that the hub has taken out of use."""
    return SourceError(
        f"cannot fetch '{hub_id}': {host} has disabled it",
        hint="use another repository of the model",
    )


def _make_refused_error(
    host: str, hub_id: str, response: httpx2.Response
) -> SourceError | ModelNotFound:
    match response.status_code:
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
            wait = parse_wait_s(response.headers)
            return Transient(
                f"cannot read '{hub_id}': {host} limits the rate of requests",
                hint=f"try again in {wait} s" if wait else f"wait a little; or {_LOG_IN}",
            )
        case status:
            kind = Transient if status >= 500 else SourceError
            said = f"{status} {response.reason_phrase}".rstrip()
            return kind(
                f"cannot read '{hub_id}': {host} answered {said}",
                hint="try again later" if status >= 500 else None,
            )
