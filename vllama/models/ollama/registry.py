"""A registry of models that speaks Ollama's protocol: manifests, where blobs are, tokens.

The protocol is Docker's registry API v2 with Ollama's media types. The bytes are fetched by
`models.download`: `locate` finds the storage's own address first, as the registry's credentials
must not go there. All exceptions of the HTTP library are mapped to ours here.

See docs/reference/ollama-api.md#registry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urljoin, urlsplit

import httpx2
import msgspec

from vllama import __version__
from vllama.errors import AuthRequired, ModelNotFound, Offline, SourceError
from vllama.models.ollama.layout import RegistryTarget
from vllama.models.ollama.manifest import MANIFEST_TYPE
from vllama.models.sources.base import Location, Transient
from vllama.models.sources.responses import GZIP, read_body
from vllama.models.types import SourceFile

MAX_MANIFEST = 4 * 1024 * 1024
_MAX_TOKEN_ANSWER = 256 * 1024
_MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_AGENT = {"user-agent": f"vllama/{__version__}"}
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")  # what can stand in a header
_PORTS = {"http": 80, "https": 443}
_LOGIN = "only models that everybody may pull can be pulled: vllama has no account there"


class _TokenAnswer(msgspec.Struct):
    token: str = ""
    access_token: str = ""


class OllamaRegistry:
    """One model at its registry. `client` makes the requests; may be used by many threads."""

    def __init__(self, client: httpx2.Client, target: RegistryTarget) -> None:
        self._client, self._target = client, target
        name = target.name
        self._base = f"{target.address}/v2/{name.namespace}/{name.model}"
        self._host = urlsplit(target.address).netloc
        self._token: str | None = None

    def manifest(self) -> bytes:
        """Return the manifest's very bytes.

        Raises ModelNotFound in Ollama's words, AuthRequired, Offline, Transient, SourceError.
        """
        url = f"{self._base}/manifests/{self._target.name.tag}"
        with self._mapped(), self._open(url, {"accept": MANIFEST_TYPE}, follow=True) as answer:
            if answer.status_code == 404:
                raise ModelNotFound(
                    self._target.name.display,
                    message="pull model manifest: file does not exist",
                )
            self._check(answer, (200,))
            return self._body(answer, MAX_MANIFEST)

    def locate(self, file: SourceFile) -> Location:
        """Ask where a blob's bytes are: here, or at the storage that the registry points to."""
        assert file.etag is not None  # a manifest names all digests
        url = f"{self._base}/blobs/sha256:{file.etag}"
        with self._mapped():
            for _ in range(_MAX_REDIRECTS):
                # one byte: some registries would send the whole blob
                # (and those as they are: a range of compressed bytes would be of no use)
                asked = {"range": "bytes=0-0", "accept-encoding": "identity"}
                with self._open(url, asked, follow=False) as answer:
                    if answer.status_code not in _REDIRECTS:
                        self._check(answer, (200, 206, 416))
                        return self._location(file, url, self._headers())
                    url = urljoin(url, answer.headers.get("location", ""))
                if _origin(url) != _origin(self._base):
                    return self._location(file, url, _AGENT)
        raise SourceError(f"{self._cannot}: {self._host} redirects without end")

    def _location(self, file: SourceFile, url: str, headers: Mapping[str, str]) -> Location:
        assert file.etag is not None
        return Location(
            url=url, etag=file.etag, size_bytes=file.size_bytes, commit="", headers=headers
        )

    def _headers(self) -> dict[str, str]:
        token = {"authorization": f"Bearer {self._token}"} if self._token else {}
        return {**_AGENT, **token}

    @contextmanager
    def _open(
        self, url: str, headers: Mapping[str, str], *, follow: bool
    ) -> Iterator[httpx2.Response]:
        """Ask; if the registry wants a token, fetch one and ask once more."""
        for again in (False, True):
            request = {**self._headers(), **GZIP, **headers}
            with self._client.stream(
                "GET", url, headers=request, follow_redirects=follow
            ) as answer:
                if answer.status_code != 401 or again:
                    yield answer
                    return
                challenge = answer.headers.get("www-authenticate", "")
            self._token = self._fetch_token(challenge)

    def _fetch_token(self, challenge: str) -> str:
        """Ask for a token as everybody may have it (docs.docker.com, registry token protocol)."""
        kind, _, rest = challenge.partition(" ")
        said = dict(_CHALLENGE.findall(rest))
        realm = said.get("realm", "")
        if kind.lower() != "bearer" or not realm:
            raise AuthRequired(f"{self._cannot}: {self._host} wants a login", hint=_LOGIN)
        downgraded = self._base.startswith("https:") and not realm.lower().startswith("https:")
        if _origin(realm)[1:] != _origin(self._base)[1:] or downgraded:
            # as Ollama does: a registry must not send its clients to ask elsewhere
            raise AuthRequired(
                f"{self._cannot}: {self._host} sends its clients to another host for a token, "
                f"{urlsplit(realm).netloc}"
            )
        query = [("service", said["service"])] if said.get("service") else []
        query += [("scope", scope) for scope in said.get("scope", "").split()]
        url = str(httpx2.URL(realm).copy_merge_params(query))
        with self._client.stream(
            "GET", url, headers={**_AGENT, **GZIP}, follow_redirects=False
        ) as answer:
            status = answer.status_code
            content = self._body(answer, _MAX_TOKEN_ANSWER) if status == 200 else b""
        try:
            reply = msgspec.json.decode(content, type=_TokenAnswer)
        except (ValueError, RecursionError):  # msgspec's own are ValueErrors
            reply = _TokenAnswer()
        token = reply.token or reply.access_token
        if not token or not _TOKEN.fullmatch(token):
            raise AuthRequired(
                f"{self._cannot}: {self._host} gave no token ({status})", hint=_LOGIN
            )
        return token

    def _body(self, answer: httpx2.Response, most_bytes: int) -> bytes:
        try:
            return read_body(answer, most_bytes)
        except SourceError as error:
            raise SourceError(f"{self._cannot}: {error.message}") from error

    def _check(self, answer: httpx2.Response, fine: tuple[int, ...]) -> None:
        status = answer.status_code
        if status in fine:
            return
        if status in (401, 403):
            raise AuthRequired(f"{self._cannot}: {self._host} does not allow it", hint=_LOGIN)
        if status == 404:
            raise SourceError(
                f"{self._cannot}: {self._host} lacks one of its blobs",
                hint="pull again; if that fails too, the model is damaged there",
            )
        said = f"{status} {answer.reason_phrase}".rstrip()
        if status == 429 or status >= 500:
            raise Transient(f"{self._cannot}: {self._host} answered {said}", hint="try again later")
        raise SourceError(f"{self._cannot}: {self._host} answered {said}")

    @property
    def _cannot(self) -> str:
        return f"cannot pull '{self._target.name.display}'"

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except httpx2.TransportError as error:
            reason = str(error) or type(error).__name__
            raise Offline(
                f"cannot reach {self._host}: {reason}", hint="check the network and the proxy"
            ) from error
        except (httpx2.RequestError, httpx2.InvalidURL) as error:  # redirects without end …
            raise SourceError(f"{self._cannot}: {error}") from error


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:  # no number
        port = None
    return parts.scheme, parts.hostname, port or _PORTS.get(parts.scheme)
