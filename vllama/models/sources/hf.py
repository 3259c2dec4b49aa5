"""The Hugging Face hub as a source: metadata, addresses and errors through huggingface_hub.

`models.download` fetches the bytes, and `hub_errors` translates what huggingface_hub and its HTTP
library raise.

See docs/reference/hub.md#why-downloads-are-our-own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from types import ModuleType
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

import httpx2

from vllama import __version__
from vllama.errors import ModelNotFound, Offline, SourceError
from vllama.models.limits import MOST_FILE_BYTES, check_registry, decode_json
from vllama.models.settings import ModelsSettings
from vllama.models.sources.base import Listed, Location, Repository
from vllama.models.sources.hub_errors import make_disabled_error, translate_errors
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

_ATTEMPTS = 3
_MAX_WAIT_S = 30.0


class HuggingFace:
    """The hub at `settings.hf_endpoint`."""

    def __init__(self, settings: ModelsSettings) -> None:
        self._endpoint = settings.hub_address
        self._token = settings.hf_token
        self._offline = settings.offline
        self._allowed = settings.allowed_registries
        self._timeout_s = settings.request_timeout_s
        self._pauses = [
            settings.backoff_s * 2**n for n in range(min(_ATTEMPTS, settings.attempts) - 1)
        ]
        self._answers = AnswerCache(settings.data_dir / "answers" if settings.data_dir else None)

    def resolve(self, hub_id: str, revision: str | None = None) -> Repository:
        """Fetch the files at a revision; the returned id has the hub's spelling."""
        hub = self._library()
        path = f"/api/models/{hub_id}"
        if revision:
            path += f"/revision/{quote(revision, safe='')}"
        with translate_errors(hub, self._endpoint, hub_id, revision=revision):
            (row,) = self._get_json(hub, path, [("blobs", "true")])
            if isinstance(row, dict) and row.get("disabled"):
                raise make_disabled_error(self._host, hub_id)
            repository = read_repository(row, revision=revision)
        if not has_sizes(row):  # a mirror without the parameter `blobs`
            files = self._list_files(hub, repository.hub_id, repository.commit)
            with translate_errors(hub, self._endpoint, hub_id):
                repository = read_repository(row, files, revision)
        return repository

    def children(self, hub_id: str, label: str | None = None) -> tuple[Listed, ...]:
        """List the quantisations of `hub_id`, most downloaded first, at most 100."""
        query = [("filter", f"base_model:quantized:{hub_id}")]
        query += [("filter", label)] if label else []
        query += [("sort", "downloads"), ("limit", str(_MAX_CHILDREN))]
        query += [("expand", name) for name in _ABOUT_CHILDREN]
        return tuple(self._list(hub_id, query, _MAX_CHILDREN))

    def search(self, text: str, limit: int) -> tuple[str, ...]:
        """List the ids of the most downloaded repositories with `text` in their id."""
        query = [("search", text), ("sort", "downloads"), ("limit", str(limit))]
        return tuple(listed.hub_id for listed in self._list(text, query, limit))

    def check_access(self, repository: Repository) -> None:
        """Check whether the user may download the files. Raises AuthRequired."""
        if repository.gated is None:
            return
        hub = self._library()
        try:
            with translate_errors(hub, self._endpoint, repository.hub_id):
                self._get(hub, f"{self._endpoint}/api/models/{repository.hub_id}/auth-check", {})
        except ModelNotFound:  # a mirror without this route: the download will show it
            return

    def read_json(self, repository: Repository, path: str) -> Mapping[str, object]:
        """Read a small JSON file at the repository's commit; empty if it is not an object."""
        if not any(file.path == path for file in repository.files):
            return {}
        hub = self._library()
        with translate_errors(hub, self._endpoint, repository.hub_id, path):
            content = self._get(hub, self._address(repository, path), {}).content
        try:
            value = decode_json(content)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def locate(self, repository: Repository, file: SourceFile) -> Location:
        """Fetch the address, checksum and size of a file at the repository's commit."""
        # not huggingface_hub's get_hf_file_metadata: its module takes 0.1 s to import
        hub = self._library()
        with translate_errors(hub, self._endpoint, repository.hub_id, file.path):
            headers = hub.utils.build_hf_headers(token=self._token, **_US)
            response = self._get_head(hub, self._address(repository, file.path), headers)
            found = response.headers
            length = found.get("x-linked-size") or found.get("content-length")
            size = int(length) if length else file.size_bytes
        stated = found.get("x-linked-etag") or found.get("etag") or ""
        etag = stated.removeprefix("W/").strip('"')
        if not is_plain(etag):
            raise SourceError(f"cannot fetch '{file.path}' of '{repository.hub_id}': no checksum")
        if not 0 <= size <= MOST_FILE_BYTES:
            raise SourceError(f"cannot fetch '{file.path}' of '{repository.hub_id}': no such size")
        url = found.get("location") or str(response.request.url)
        same = _origin(url) == _origin(self._endpoint)
        return Location(
            url=url,
            etag=etag,
            size_bytes=size,
            commit=found.get("x-repo-commit") or repository.commit,
            headers=headers if same else {"user-agent": headers["user-agent"]},
        )

    def _address(self, repository: Repository, path: str) -> str:
        """Return where the hub answers for a file at the repository's commit."""
        commit = quote(repository.commit, safe="")
        return f"{self._endpoint}/{repository.hub_id}/resolve/{commit}/{quote(path)}"

    def _get_head(self, hub: ModuleType, url: str, headers: Mapping[str, str]) -> httpx2.Response:
        """Send a HEAD; follow redirects within the hub, not the one to the bytes."""
        session: httpx2.Client = hub.utils.get_session()
        asked = {**headers, "accept-encoding": "identity"}
        for _ in range(_MAX_REDIRECTS):
            response = session.request(
                "HEAD", url, headers=asked, timeout=self._timeout_s, follow_redirects=False
            )
            place = response.headers.get("location", "")
            if not response.is_redirect or urlsplit(place).netloc:
                if response.status_code >= 400:
                    hub.utils.hf_raise_for_status(response)
                return response
            url = urljoin(url, place)
        raise httpx2.TooManyRedirects("redirects without end", request=response.request)

    def _list(self, about: str, query: list[tuple[str, str]], most: int) -> list[Listed]:
        hub = self._library()
        with translate_errors(hub, self._endpoint, about):
            pages = self._get_json(hub, "/api/models", query, most)
            return [listed for page in pages for listed in read_listed(page)][:most]

    def _list_files(self, hub: ModuleType, hub_id: str, commit: str) -> tuple[SourceFile, ...]:
        path = f"/api/models/{hub_id}/tree/{commit}"
        with translate_errors(hub, self._endpoint, hub_id):
            pages = self._get_json(hub, path, [("recursive", "true"), ("expand", "false")], None)
            return tuple(file for page in pages for file in read_tree(page))

    def _get_json(
        self, hub: ModuleType, path: str, query: list[tuple[str, str]], most: int | None = 0
    ) -> list[Any]:
        """Return the JSON pages of an API route, up to `most` rows (0: one page; None: all).

        A cached answer that has not changed is not transferred again.
        """
        token = self._token if isinstance(self._token, str) else None
        pages: list[Any] = []
        rows, more, left = 0, urlencode(query), _MAX_BYTES
        while more and (not pages or most is None or rows < most):
            url = f"{self._endpoint}{path}?{more}"
            kept = self._answers.load(url, token)
            headers = {"if-none-match": kept.etag} if kept else {}
            response = self._get(hub, url, headers)
            if response.status_code != 304 or kept is None:
                # only the query of the next address, because mirrors may link to the hub
                link = response.links.get("next", {}).get("url", "")
                kept = KeptAnswer(
                    etag=response.headers.get("etag", ""),
                    body=response.content,
                    next=urlsplit(link).query or None,
                )
                if kept.etag and len(kept.body) <= _MAX_KEPT_BYTES:
                    self._answers.keep(url, token, kept)
            left -= len(kept.body)
            if left < 0 or len(pages) == _MAX_PAGES:
                raise SourceError(f"cannot read {url}: {self._host} answers without end")
            try:
                page = decode_json(kept.body)
            except ValueError as error:
                raise SourceError(f"cannot read {url}: {self._host} did not return JSON") from error
            pages.append(page)
            rows, more = rows + (len(page) if isinstance(page, list) else 0), kept.next or ""
        return pages

    def _get(self, hub: ModuleType, url: str, headers: Mapping[str, str]) -> httpx2.Response:
        """Send a GET, with retries while the hub limits the rate or is overloaded."""
        own = hub.utils.build_hf_headers(token=self._token, **_US)
        session: httpx2.Client = hub.utils.get_session()
        for pause_s in (*self._pauses, None):
            with self._stream(session, url, {**own, **headers, **GZIP}) as streamed:
                response = _read_response(streamed)
            if response.status_code != 429 and response.status_code < 500:
                break
            requested_s = parse_wait_s(response.headers)
            if pause_s is None or requested_s > _MAX_WAIT_S:
                break
            time.sleep(max(pause_s, requested_s))
        if response.status_code != 304:
            hub.utils.hf_raise_for_status(response)
        return response

    @contextmanager
    def _stream(
        self, session: httpx2.Client, url: str, headers: Mapping[str, str]
    ) -> Iterator[httpx2.Response]:
        """Send a GET and follow redirects to allowed registries; the token stays at the hub."""
        request = session.build_request("GET", url, headers=headers, timeout=self._timeout_s)
        for _ in range(_MAX_REDIRECTS):
            with closing(session.send(request, stream=True, follow_redirects=False)) as response:
                if response.next_request is None:
                    yield response
                    return
                request = response.next_request
            check_registry(self._allowed, str(request.url))
        raise httpx2.TooManyRedirects("redirects without end", request=request)

    def _library(self) -> ModuleType:
        """Return huggingface_hub, after checking that the hub may be contacted."""
        check_registry(self._allowed, self._endpoint)
        if self._offline:
            raise Offline(
                f"cannot contact {self._host}: offline mode is on",
                hint="unset HF_HUB_OFFLINE, or use a model that is here already",
            )
        import huggingface_hub
        import huggingface_hub.errors  # used as an attribute of the package, as is `utils`
        import huggingface_hub.utils
        from huggingface_hub import constants

        # The library reads this at each request. With telemetry it first calls
        # /api/agent-harnesses, which takes 3 s where a firewall drops packets.
        constants.HF_HUB_DISABLE_TELEMETRY = True
        return huggingface_hub

    @property
    def _host(self) -> str:
        return urlsplit(self._endpoint).netloc


_MAX_BYTES = 8 * 1024 * 1024
"""The limit on all pages of one request together; real ones have some 2 MB."""
_MAX_PAGES = 256
_MAX_REDIRECTS = 10
_MAX_KEPT_BYTES = 2 * 1024 * 1024
_MAX_ERROR_BYTES = 64 * 1024
_MAX_CHILDREN = 100
_ABOUT_CHILDREN = ("siblings", "gated", "downloads", "gguf", "tags", "private", "disabled")

_US = {"library_name": "vllama", "library_version": __version__}


def _read_response(streamed: httpx2.Response) -> httpx2.Response:
    """Read a streamed response with a limit; return it as a response with a body."""
    succeeded = streamed.status_code < 400
    try:
        body = read_body(streamed, _MAX_BYTES if succeeded else _MAX_ERROR_BYTES)
    except SourceError:
        if succeeded:
            raise
        body = b""  # the status is enough
    framing = ("content-encoding", "content-length", "transfer-encoding")
    headers = [
        (name, value) for name, value in streamed.headers.multi_items() if name not in framing
    ]
    return httpx2.Response(
        streamed.status_code, headers=headers, content=body, request=streamed.request
    )


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc
