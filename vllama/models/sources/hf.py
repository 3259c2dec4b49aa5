"""The Hugging Face hub as a source: metadata and addresses; huggingface_hub knows the user's token.

`models.download` fetches the bytes, and `hub_answers` translates refusals and failed connections.

See docs/reference/hub.md#why-downloads-are-our-own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

from vllama import __version__
from vllama.base.errors import ModelNotFound, Offline, SourceError
from vllama.models.limits import MOST_FILE_BYTES, check_registry, decode_json, decode_object
from vllama.models.settings import ModelsSettings
from vllama.models.sources.hub_answers import (
    GO_ONLINE,
    AnswerCache,
    HubRefusal,
    KeptAnswer,
    make_disabled_error,
    translate_errors,
)
from vllama.models.sources.hub_json import (
    has_sizes,
    is_plain,
    parse_wait_s,
    read_listed,
    read_repository,
    read_tree,
)
from vllama.models.types import Listed, Location, Repository, SourceFile
from vllama.net.web.bodies import GZIP, read_body
from vllama.net.web.connections import (
    REDIRECTS,
    BadAddress,
    Connections,
    StreamedResponse,
    find_origin,
)

_ATTEMPTS = 3
_MAX_WAIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class HuggingFace:
    """The hub at `settings.hf_endpoint`."""

    def __init__(self, settings: ModelsSettings) -> None:
        self._endpoint = settings.hub_address
        self._token = settings.hf_token
        self._offline = settings.hf_offline
        self._allowed = settings.allow_registry
        self._connections = Connections(
            connect_s=settings.request_timeout_s,
            silence_s=settings.request_timeout_s,
            check=partial(check_registry, settings.allow_registry),
        )
        self._pauses = [
            settings.backoff_s * 2**n for n in range(min(_ATTEMPTS, settings.attempts) - 1)
        ]
        self._answers = AnswerCache(settings.data_dir / "answers")

    def resolve(self, hub_id: str, revision: str | None = None) -> Repository:
        """Fetch the files at a revision; the returned id has the hub's spelling."""
        path = f"/api/models/{hub_id}"
        if revision:
            path += f"/revision/{quote(revision, safe='')}"
        with translate_errors(self._endpoint, hub_id, revision=revision):
            (row,) = self._get_json(path, [("blobs", "true")])
            if isinstance(row, dict) and row.get("disabled"):
                raise make_disabled_error(self._host, hub_id)
            repository = read_repository(row, revision=revision)
        if not has_sizes(row):  # a mirror without the parameter `blobs`
            files = self._list_files(repository.hub_id, repository.commit)
            with translate_errors(self._endpoint, hub_id):
                repository = read_repository(row, files, revision)
        return repository

    def children(self, hub_id: str, label: str | None = None) -> tuple[Listed, ...]:
        """List the quantizations of `hub_id` (exact case), most downloaded first, at most 100.

        `label` limits them to repositories with that tag, such as `gguf`.
        """
        query = [("filter", f"base_model:quantized:{hub_id}")]
        query += [("filter", label)] if label else []
        query += [("sort", "downloads"), ("limit", str(_MAX_CHILDREN))]
        query += [("expand", name) for name in _ABOUT_CHILDREN]
        return tuple(self._list(hub_id, query, _MAX_CHILDREN))

    def search(self, text: str, limit: int) -> tuple[str, ...]:
        """List the ids of the most downloaded public repositories with `text` in their id."""
        query = [("search", text), ("sort", "downloads"), ("limit", str(limit))]
        found = self._list(text, query, limit)
        return tuple(listed.hub_id for listed in found if not listed.disabled)

    def check_access(self, repository: Repository) -> None:
        """Check whether the user may download the files. Raises AuthRequired."""
        if repository.gated is None:
            return
        try:
            with translate_errors(self._endpoint, repository.hub_id):
                self._get(f"{self._endpoint}/api/models/{repository.hub_id}/auth-check", {})
        except ModelNotFound:  # a mirror without this route: the download will show it
            return

    def read_json(self, repository: Repository, path: str) -> Mapping[str, object]:
        """Read a small JSON file at the repository's commit; empty if it is not an object."""
        if not any(file.path == path for file in repository.files):
            return {}
        with translate_errors(self._endpoint, repository.hub_id, path):
            return decode_object(self._get(self._address(repository, path), {}).body)

    def locate(self, repository: Repository, file: SourceFile) -> Location:
        """Fetch the address, checksum and size of a file at the repository's commit."""
        with translate_errors(self._endpoint, repository.hub_id, file.path):
            headers = self._make_headers()
            response = self._get_head(self._address(repository, file.path), headers)
            found = response.headers
            length = found.get("x-linked-size") or found.get("content-length")
            size = int(length) if length else file.size_bytes
        stated = found.get("x-linked-etag") or found.get("etag") or ""
        etag = stated.removeprefix("W/").strip('"')
        if not is_plain(etag):
            raise SourceError(f"cannot pull '{file.path}' of '{repository.hub_id}': no checksum")
        if not 0 <= size <= MOST_FILE_BYTES:
            raise SourceError(f"cannot pull '{file.path}' of '{repository.hub_id}': invalid size")
        url = found.get("location") or response.url
        same = find_origin(url) == find_origin(self._endpoint)
        return Location(
            url=url,
            etag=etag,
            size_bytes=size,
            headers=headers if same else {"user-agent": headers["user-agent"]},
        )

    def _address(self, repository: Repository, path: str) -> str:
        """Return where the hub answers for a file at the repository's commit."""
        commit = quote(repository.commit, safe="")
        return f"{self._endpoint}/{repository.hub_id}/resolve/{commit}/{quote(path)}"

    def _get_head(self, url: str, headers: Mapping[str, str]) -> StreamedResponse:
        """Send a HEAD; follow redirects within the hub, not the one to the bytes."""
        asked = {**headers, "accept-encoding": "identity"}
        for _ in range(_MAX_REDIRECTS):
            with self._connections.ask(url, asked, method="HEAD", follow=False) as response:
                place = response.headers.get("location", "")
                if response.status >= 400:
                    raise HubRefusal(response)
            if response.status not in REDIRECTS or not place or urlsplit(place).netloc:
                return response
            url = urljoin(url, place)
        raise BadAddress("it redirects endlessly")

    def _list(self, about: str, query: list[tuple[str, str]], most: int) -> list[Listed]:
        with translate_errors(self._endpoint, about):
            pages = self._get_json("/api/models", query, most)
            return [listed for page in pages for listed in read_listed(page)][:most]

    def _list_files(self, hub_id: str, commit: str) -> tuple[SourceFile, ...]:
        path = f"/api/models/{hub_id}/tree/{commit}"
        with translate_errors(self._endpoint, hub_id):
            pages = self._get_json(path, [("recursive", "true"), ("expand", "false")], None)
            return tuple(file for page in pages for file in read_tree(page))

    def _get_json(self, path: str, query: list[tuple[str, str]], most: int | None = 0) -> list[Any]:
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
            response = self._get(url, headers)
            if response.status != 304 or kept is None:
                # only the query of the next address, because mirrors may link to the hub
                link = _NEXT.search(response.headers.get("link", ""))
                kept = KeptAnswer(
                    etag=response.headers.get("etag", ""),
                    body=response.body,
                    next=(urlsplit(link[1]).query or None) if link else None,
                )
                if kept.etag and len(kept.body) <= _MAX_KEPT_BYTES:
                    self._answers.keep(url, token, kept)
            left -= len(kept.body)
            if left < 0 or len(pages) == _MAX_PAGES:
                raise SourceError(f"cannot read {url}: {self._host} returned an endless response")
            try:
                page = decode_json(kept.body)
            except ValueError as error:
                raise SourceError(f"cannot read {url}: {self._host} did not return JSON") from error
            pages.append(page)
            rows, more = rows + (len(page) if isinstance(page, list) else 0), kept.next or ""
        return pages

    def _get(self, url: str, headers: Mapping[str, str]) -> _Answer:
        """Send a GET, with retries while the hub limits the rate or is overloaded."""
        asked = {**self._make_headers(), **headers, **GZIP}
        for pause_s in (*self._pauses, None):
            with self._connections.ask(url, asked) as response:
                if response.status < 400:
                    body = read_body(response, _MAX_BYTES)
                    return _Answer(status=response.status, headers=response.headers, body=body)
            requested_s = parse_wait_s(response.headers)
            transient = response.status == 429 or response.status >= 500
            if not transient or pause_s is None or requested_s > _MAX_WAIT_S:
                raise HubRefusal(response)
            time.sleep(max(pause_s, requested_s))
        raise AssertionError  # the last try returns or raises

    def _make_headers(self) -> dict[str, str]:
        """Return the headers with the user's token, after checking that the hub may be asked."""
        check_registry(self._allowed, self._endpoint)
        if self._offline:
            raise Offline(f"cannot contact {self._host}: offline mode is on", hint=GO_ONLINE)
        from huggingface_hub import constants, utils

        # The library reads this at each request. With telemetry it first calls
        # /api/agent-harnesses, which takes 3 s where a firewall drops packets.
        constants.HF_HUB_DISABLE_TELEMETRY = True
        return utils.build_hf_headers(  # type: ignore[attr-defined]  # documented
            token=False if self._token == "" else self._token,
            library_name="vllama",
            library_version=__version__,
        )

    @property
    def _host(self) -> str:
        return urlsplit(self._endpoint).netloc


_MAX_BYTES = 8 * 1024 * 1024
"""The limit on all pages of one request together; real ones have some 2 MB."""
_MAX_PAGES = 256
_MAX_REDIRECTS = 10
_MAX_KEPT_BYTES = 2 * 1024 * 1024
_MAX_CHILDREN = 100
_ABOUT_CHILDREN = ("siblings", "gated", "downloads", "gguf", "tags", "private", "disabled")

_NEXT = re.compile(r'<([^>]*)>\s*;[^,<]*\brel="?next\b')  # RFC 8288, section 3
