"""The Hugging Face hub as a source: metadata, addresses and errors through huggingface_hub.

The bytes are fetched by `models.download`. All exceptions of huggingface_hub and its HTTP library
are mapped to ours here and only here.

See docs/reference/hub.md#why-downloads-are-our-own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from types import ModuleType
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import httpx2

from vllama import __version__
from vllama.errors import AuthRequired, ModelNotFound, Offline, SourceError
from vllama.models.limits import MOST_FILE_BYTES, check_registry, decode_json
from vllama.models.settings import HUB_ADDRESS, ModelsSettings
from vllama.models.sources.base import Listed, Location, Repository, Transient
from vllama.models.sources.hub_json import (
    has_sizes,
    is_plain,
    parse_wait_s,
    read_listed,
    read_repository,
    read_tree,
)
from vllama.models.sources.responses import GZIP, AnswerCache, KeptAnswer, read_body
from vllama.models.types import SourceFile

_TRIES = 3
_LONGEST_WAIT_S = 30.0
_LOG_IN = "set HF_TOKEN or run: hf auth login"


class HuggingFace:
    """The hub at `settings.hf_endpoint`."""

    def __init__(self, settings: ModelsSettings) -> None:
        self._endpoint = settings.hub_address
        self._token = settings.hf_token
        self._offline = settings.offline
        self._allowed = settings.allowed_registries
        self._timeout_s = settings.request_timeout_s
        self._pauses = [
            settings.backoff_s * 2**n for n in range(min(_TRIES, settings.attempts) - 1)
        ]
        self._answers = AnswerCache(settings.data_dir / "answers" if settings.data_dir else None)

    def resolve(self, hub_id: str, revision: str | None = None) -> Repository:
        """Ask for the files at a revision; the id comes back in the hub's own spelling."""
        hub = self._library()
        path = f"/api/models/{hub_id}"
        if revision:
            path += f"/revision/{quote(revision, safe='')}"
        with self._mapped(hub, hub_id, revision=revision):
            (row,) = self._ask(hub, path, [("blobs", "true")])
            if isinstance(row, dict) and row.get("disabled"):
                raise self._disabled(hub_id)
            found = read_repository(row, revision=revision)
        if not has_sizes(row):  # a mirror without blobs
            files = self._tree(hub, found.hub_id, found.commit)
            with self._mapped(hub, hub_id):
                found = read_repository(row, files, revision)
        return found

    def children(self, hub_id: str, label: str | None = None) -> tuple[Listed, ...]:
        """List what says that it was quantised from `hub_id`, most loaded first.

        Follows pages up to 100 repositories: the rest are hardly ever loaded.
        """
        query = [("filter", f"base_model:quantized:{hub_id}")]
        query += [("filter", label)] if label else []
        query += [("sort", "downloads"), ("limit", str(_MOST_CHILDREN))]
        query += [("expand", name) for name in _ABOUT_CHILDREN]
        return tuple(self._list(hub_id, query, _MOST_CHILDREN))

    def search(self, text: str, limit: int) -> tuple[str, ...]:
        """List the ids of the most loaded repositories that have `text` in their id."""
        query = [("search", text), ("sort", "downloads"), ("limit", str(limit))]
        return tuple(listed.hub_id for listed in self._list(text, query, limit))

    def check_access(self, repository: Repository) -> None:
        """Ask whether this user may fetch the files; raise AuthRequired."""
        if repository.gated is None:
            return
        hub = self._library()
        try:
            with self._mapped(hub, repository.hub_id):
                self._get(hub, f"{self._endpoint}/api/models/{repository.hub_id}/auth-check", {})
        except ModelNotFound:  # a mirror that does not know the question: the download will tell
            return

    def read_json(self, repository: Repository, path: str) -> Mapping[str, object]:
        """Read a small JSON file at the repository's commit; empty if it is no such object."""
        if not any(file.path == path for file in repository.files):
            return {}
        hub = self._library()
        url = hub.hf_hub_url(
            repository.hub_id, path, revision=repository.commit, endpoint=self._endpoint
        )
        with self._mapped(hub, repository.hub_id, path):
            content = self._get(hub, url, {}).content
        try:
            value = decode_json(content)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def locate(self, repository: Repository, file: SourceFile) -> Location:
        """Ask for a file's address, checksum and size at the repository's commit."""
        hub = self._library()
        url = hub.hf_hub_url(
            repository.hub_id, file.path, revision=repository.commit, endpoint=self._endpoint
        )
        with self._mapped(hub, repository.hub_id, file.path):
            found = hub.get_hf_file_metadata(
                url, token=self._token, timeout=self._timeout_s, endpoint=self._endpoint, **_US
            )
            headers = hub.utils.build_hf_headers(token=self._token, **_US)
        size = found.size if found.size is not None else file.size_bytes
        if not found.etag or not is_plain(found.etag):
            raise SourceError(f"cannot fetch '{file.path}' of '{repository.hub_id}': no checksum")
        if not 0 <= size <= MOST_FILE_BYTES:
            raise SourceError(f"cannot fetch '{file.path}' of '{repository.hub_id}': no such size")
        same = _origin(found.location) == _origin(self._endpoint)
        return Location(
            url=found.location,
            etag=found.etag,
            size_bytes=size,
            commit=found.commit_hash or repository.commit,
            headers=headers if same else {"user-agent": headers["user-agent"]},
        )

    def _list(self, about: str, query: list[tuple[str, str]], most: int) -> list[Listed]:
        hub = self._library()
        with self._mapped(hub, about):
            pages = self._ask(hub, "/api/models", query, most)
            return [listed for page in pages for listed in read_listed(page)][:most]

    def _tree(self, hub: ModuleType, hub_id: str, commit: str) -> tuple[SourceFile, ...]:
        path = f"/api/models/{hub_id}/tree/{commit}"
        with self._mapped(hub, hub_id):
            pages = self._ask(hub, path, [("recursive", "true"), ("expand", "false")], None)
            return tuple(file for page in pages for file in read_tree(page))

    def _ask(
        self, hub: ModuleType, path: str, query: list[tuple[str, str]], most: int | None = 0
    ) -> list[Any]:
        """Return the JSON of an API route, page by page up to `most` rows (0: one page).

        An answer that is kept here and has not changed is not sent again.
        """
        token = self._token if isinstance(self._token, str) else None
        pages: list[Any] = []
        rows, more, left = 0, urlencode(query), _MOST_BYTES
        while more and (not pages or most is None or rows < most):
            url = f"{self._endpoint}{path}?{more}"
            kept = self._answers.load(url, token)
            headers = {"if-none-match": kept.etag} if kept else {}
            response = self._get(hub, url, headers)
            if response.status_code != 304 or kept is None:
                # only the query of the next address: a mirror may name the hub it mirrors
                link = response.links.get("next", {}).get("url", "")
                kept = KeptAnswer(
                    etag=response.headers.get("etag", ""),
                    body=response.content,
                    next=urlsplit(link).query or None,
                )
                if kept.etag and len(kept.body) <= _MOST_KEPT_BYTES:
                    self._answers.keep(url, token, kept)
            left -= len(kept.body)
            if left < 0 or len(pages) == _MOST_PAGES:
                raise SourceError(f"cannot read {url}: {self._host} answers without end")
            try:
                page = decode_json(kept.body)
            except ValueError as error:
                raise SourceError(f"cannot read {url}: {self._host} answered no JSON") from error
            pages.append(page)
            rows, more = rows + (len(page) if isinstance(page, list) else 0), kept.next or ""
        return pages

    def _get(self, hub: ModuleType, url: str, headers: Mapping[str, str]) -> httpx2.Response:
        """Ask once, and again where the hub says that it will do better soon."""
        own = hub.utils.build_hf_headers(token=self._token, **_US)
        session: httpx2.Client = hub.utils.get_session()
        for pause_s in (*self._pauses, None):
            asked = {**own, **headers, **GZIP}
            with self._answered(session, url, asked) as streamed:
                response = _whole(streamed)
            if response.status_code != 429 and response.status_code < 500:
                break
            asked_s = parse_wait_s(response.headers)
            if pause_s is None or asked_s > _LONGEST_WAIT_S:
                break
            time.sleep(max(pause_s, asked_s))
        if response.status_code != 304:
            hub.utils.hf_raise_for_status(response)
        return response

    @contextmanager
    def _answered(
        self, session: httpx2.Client, url: str, headers: Mapping[str, str]
    ) -> Iterator[httpx2.Response]:
        """Ask, and follow redirects to where models may be had from; the token stays at the hub."""
        request = session.build_request("GET", url, headers=headers, timeout=self._timeout_s)
        for _ in range(_MOST_REDIRECTS):
            with closing(session.send(request, stream=True, follow_redirects=False)) as response:
                if response.next_request is None:
                    yield response
                    return
                request = response.next_request
            check_registry(self._allowed, str(request.url))
        raise httpx2.TooManyRedirects("redirects without end", request=request)

    def _library(self) -> ModuleType:
        """Return the hub's library; whoever asks the hub anything needs it."""
        check_registry(self._allowed, self._endpoint)
        if self._offline:
            raise Offline(
                f"cannot ask {self._host}: offline mode is on",
                hint="unset HF_HUB_OFFLINE, or use a model that is here already",
            )
        import huggingface_hub
        import huggingface_hub.errors  # both are used as attributes of the package
        import huggingface_hub.utils
        from huggingface_hub import constants

        # read at each request; otherwise it asks /api/agent-harnesses first, and a host where
        # packets vanish costs 3 s
        constants.HF_HUB_DISABLE_TELEMETRY = True
        return huggingface_hub

    @property
    def _host(self) -> str:
        return urlsplit(self._endpoint).netloc

    @contextmanager
    def _mapped(
        self, hub: ModuleType, hub_id: str, file: str | None = None, revision: str | None = None
    ) -> Iterator[None]:
        """Turn what huggingface_hub raises into our errors. Order matters: subclasses first."""
        errors = hub.errors
        try:
            yield
        except errors.GatedRepoError as error:
            raise self._gated(hub_id, error.response.status_code) from error
        except errors.DisabledRepoError as error:
            raise self._disabled(hub_id) from error
        except errors.RepositoryNotFoundError as error:
            raise ModelNotFound(
                hub_id,
                message=f"cannot find '{hub_id}' on {self._host}: "
                "there is no such repository, or it is private",
                hint=f"check the spelling; for a private one {_LOG_IN}",
            ) from error
        except errors.RevisionNotFoundError as error:
            raise ModelNotFound(
                hub_id,
                message=f"cannot find '{hub_id}{f'@{revision}' if revision else ''}' "
                f"on {self._host}: the repository has no such revision",
                hint="name a branch, a tag or a commit of it, or leave the @revision out",
            ) from error
        except errors.RemoteEntryNotFoundError as error:
            raise ModelNotFound(
                hub_id,
                message=f"cannot fetch '{file}' of '{hub_id}': there is no such file",
                hint="pull again: the repository changed meanwhile",
            ) from error
        except errors.HfHubHTTPError as error:
            raise self._refused(hub_id, error.response) from error
        except errors.HFValidationError as error:
            raise ModelNotFound(
                hub_id, message=f"cannot find '{hub_id}': not a name that the hub allows"
            ) from error
        except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
            raise Offline(
                f"cannot ask {self._host}: offline mode is on", hint="unset HF_HUB_OFFLINE"
            ) from error
        except (httpx2.TransportError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise Offline(
                f"cannot reach {self._host}: {reason}",
                hint="check the network, proxy and HF_ENDPOINT",
            ) from error
        except httpx2.TooManyRedirects as error:
            raise SourceError(
                f"cannot read '{hub_id}': {self._host} redirects without end",
                hint="check HF_ENDPOINT",
            ) from error
        except httpx2.InvalidURL as error:
            raise SourceError(
                f"cannot use the hub's address '{self._endpoint}': {error}",
                hint="check HF_ENDPOINT",
            ) from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:  # not the hub's answers
            raise SourceError(
                f"cannot read '{hub_id}': {self._host} does not answer as a hub does",
                hint="check HF_ENDPOINT",
            ) from error

    def _gated(self, hub_id: str, status: int) -> AuthRequired:
        page = f"{HUB_ADDRESS}/{hub_id}"
        if status == 401:
            hint = f"accept its licence at {page}, then {_LOG_IN}"
        else:
            hint = f"your token has no access: accept the licence at {page} with its account"
        return AuthRequired(f"cannot fetch '{hub_id}': its licence must be accepted", hint=hint)

    def _disabled(self, hub_id: str) -> SourceError:
        return SourceError(
            f"cannot fetch '{hub_id}': {self._host} has disabled it",
            hint="take another repository of the model",
        )

    def _refused(self, hub_id: str, response: httpx2.Response) -> SourceError | ModelNotFound:
        match response.status_code:
            case 401:
                return AuthRequired(
                    f"cannot read '{hub_id}': {self._host} does not accept the token",
                    hint="renew the token: https://huggingface.co/settings/tokens",
                )
            case 403:
                return AuthRequired(
                    f"cannot read '{hub_id}': the token may not read it",
                    hint=f"use a token with read access: {HUB_ADDRESS}/settings/tokens",
                )
            case 404:
                return ModelNotFound(
                    hub_id, message=f"cannot find '{hub_id}' on {self._host}: not found"
                )
            case 429:
                wait = parse_wait_s(response.headers)
                return Transient(
                    f"cannot read '{hub_id}': {self._host} limits the rate of requests",
                    hint=f"try again in {wait} s" if wait else f"wait a little; or {_LOG_IN}",
                )
            case status:
                kind = Transient if status >= 500 else SourceError
                said = f"{status} {response.reason_phrase}".rstrip()
                return kind(
                    f"cannot read '{hub_id}': {self._host} answered {said}",
                    hint="try again later" if status >= 500 else None,
                )


_MOST_BYTES = 8 * 1024 * 1024
"""Of one question's answers, all pages together; real ones have some 2 MB."""
_MOST_PAGES = 256
_MOST_REDIRECTS = 10
_MOST_KEPT_BYTES = 2 * 1024 * 1024
_MOST_ERROR_BYTES = 64 * 1024
_MOST_CHILDREN = 100
_ABOUT_CHILDREN = ("siblings", "gated", "downloads", "gguf", "tags", "private", "disabled")

_US = {"library_name": "vllama", "library_version": __version__}


def _whole(streamed: httpx2.Response) -> httpx2.Response:
    """Read a streamed answer with a limit; return it as one that has been read."""
    fine = streamed.status_code < 400
    try:
        body = read_body(streamed, _MOST_BYTES if fine else _MOST_ERROR_BYTES)
    except SourceError:
        if fine:
            raise
        body = b""  # the status says enough
    about = ("content-encoding", "content-length", "transfer-encoding")
    headers = [(name, value) for name, value in streamed.headers.multi_items() if name not in about]
    return httpx2.Response(
        streamed.status_code, headers=headers, content=body, request=streamed.request
    )


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc
