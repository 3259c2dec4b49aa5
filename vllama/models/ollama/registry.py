"""The client of registries with Ollama's protocol: manifests, the locations of blobs, tokens.

The protocol is Docker's registry API v2 with Ollama's media types. `models.download` fetches the
bytes of blobs; `locate` finds the address of the storage first, because the registry's credentials
must not be sent there. All exceptions of the HTTP library are translated here.

See docs/reference/ollama-api.md#registry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

import msgspec

from vllama import __version__
from vllama.base.errors import (
    AuthRequired,
    ModelNotFound,
    Offline,
    SourceError,
    describe_connection_error,
)
from vllama.models.ollama.layout import RegistryTarget
from vllama.models.ollama.manifest import MANIFEST_TYPE
from vllama.models.sources.base import Location, Transient
from vllama.models.types import SourceFile
from vllama.net.web.bodies import GZIP, read_body
from vllama.net.web.connections import (
    REDIRECTS,
    BadAddress,
    ConnectionBroken,
    Connections,
    StreamedResponse,
    find_origin,
)

MAX_MANIFEST = 4 * 1024 * 1024
_MAX_TOKEN_ANSWER = 256 * 1024
_MAX_REDIRECTS = 5
_AGENT = {"user-agent": f"vllama/{__version__}"}
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")  # characters that are allowed in a header
_LOGIN = "only public models can be pulled: vllama has no account there"


class _TokenAnswer(msgspec.Struct):
    token: str = ""
    access_token: str = ""


class OllamaRegistry:
    """One model at its registry. Thread-safe if `client` is."""

    def __init__(self, client: Connections, target: RegistryTarget) -> None:
        self._client, self._target = client, target
        name = target.name
        self._base = f"{target.address}/v2/{name.namespace}/{name.model}"
        self._host = urlsplit(target.address).netloc
        self._token: str | None = None

    def manifest(self) -> bytes:
        """Return the manifest byte for byte.

        Raises ModelNotFound with Ollama's text, AuthRequired, Offline, Transient, SourceError.
        """
        url = f"{self._base}/manifests/{self._target.name.tag}"
        with (
            self._translate_errors(),
            self._open(url, {"accept": MANIFEST_TYPE}, follow=True) as answer,
        ):
            if answer.status == 404:
                raise ModelNotFound(
                    self._target.name.display,
                    message="pull model manifest: file does not exist",
                )
            self._check(answer, (200,))
            return self._read_body(answer, MAX_MANIFEST)

    def locate(self, file: SourceFile) -> Location:
        """Find the location of a blob: the registry, or the storage that it redirects to."""
        assert file.etag is not None  # a manifest names all digests
        url = f"{self._base}/blobs/sha256:{file.etag}"
        with self._translate_errors():
            for _ in range(_MAX_REDIRECTS):
                # One byte, because some registries would send the whole blob; uncompressed, because
                # a range of compressed bytes is useless.
                asked = {"range": "bytes=0-0", "accept-encoding": "identity"}
                with self._open(url, asked, follow=False) as answer:
                    if answer.status not in REDIRECTS:
                        self._check(answer, (200, 206, 416))
                        return self._make_location(file, url, self._make_headers())
                    url = urljoin(url, answer.headers.get("location", ""))
                if find_origin(url) != find_origin(self._base):
                    return self._make_location(file, url, _AGENT)
        raise SourceError(f"{self._cannot}: {self._host} redirects without end")

    def _make_location(self, file: SourceFile, url: str, headers: Mapping[str, str]) -> Location:
        assert file.etag is not None
        return Location(
            url=url, etag=file.etag, size_bytes=file.size_bytes, commit="", headers=headers
        )

    def _make_headers(self) -> dict[str, str]:
        token = {"authorization": f"Bearer {self._token}"} if self._token else {}
        return {**_AGENT, **token}

    @contextmanager
    def _open(
        self, url: str, headers: Mapping[str, str], *, follow: bool
    ) -> Iterator[StreamedResponse]:
        """Send a GET; if the registry requires a token, fetch one and send it again."""
        for again in (False, True):
            request = {**self._make_headers(), **GZIP, **headers}
            with self._client.ask(url, request, follow=follow) as answer:
                if answer.status != 401 or again:
                    yield answer
                    return
                challenge = answer.headers.get("www-authenticate", "")
            self._token = self._fetch_token(challenge)

    def _fetch_token(self, challenge: str) -> str:
        """Fetch an anonymous token (docs.docker.com, registry token protocol)."""
        kind, _, rest = challenge.partition(" ")
        parameters = dict(_CHALLENGE.findall(rest))
        realm = parameters.get("realm", "")
        if kind.lower() != "bearer" or not realm:
            raise AuthRequired(f"{self._cannot}: {self._host} requires a login", hint=_LOGIN)
        downgraded = self._base.startswith("https:") and not realm.lower().startswith("https:")
        if find_origin(realm)[1:] != find_origin(self._base)[1:] or downgraded:
            # as in Ollama, a registry must not send its clients to another host
            raise AuthRequired(
                f"{self._cannot}: {self._host} sends its clients to another host for a token, "
                f"{urlsplit(realm).netloc}"
            )
        query = [("service", parameters["service"])] if parameters.get("service") else []
        query += [("scope", scope) for scope in parameters.get("scope", "").split()]
        place = urlsplit(realm)
        kept = [pair for pair in parse_qsl(place.query) if pair[0] not in dict(query)]
        url = urlunsplit(place._replace(query=urlencode(kept + query)))
        with self._client.ask(url, {**_AGENT, **GZIP}, follow=False) as answer:
            status = answer.status
            content = self._read_body(answer, _MAX_TOKEN_ANSWER) if status == 200 else b""
        try:
            reply = msgspec.json.decode(content, type=_TokenAnswer)
        except (ValueError, RecursionError):  # msgspec raises ValueErrors
            reply = _TokenAnswer()
        token = reply.token or reply.access_token
        if not token or not _TOKEN.fullmatch(token):
            raise AuthRequired(
                f"{self._cannot}: {self._host} gave no token ({status})", hint=_LOGIN
            )
        return token

    def _read_body(self, answer: StreamedResponse, most_bytes: int) -> bytes:
        try:
            return read_body(answer, most_bytes)
        except SourceError as error:
            raise SourceError(f"{self._cannot}: {error.message}") from error

    def _check(self, answer: StreamedResponse, fine: tuple[int, ...]) -> None:
        status = answer.status
        if status in fine:
            return
        if status in (401, 403):
            raise AuthRequired(f"{self._cannot}: {self._host} does not allow it", hint=_LOGIN)
        if status == 404:
            raise SourceError(
                f"{self._cannot}: {self._host} lacks one of its blobs",
                hint="pull again; if that fails too, the model is damaged there",
            )
        said = f"{status} {answer.reason}".rstrip()
        if status == 429 or status >= 500:
            raise Transient(f"{self._cannot}: {self._host} answered {said}", hint="try again later")
        raise SourceError(f"{self._cannot}: {self._host} answered {said}")

    @property
    def _cannot(self) -> str:
        return f"cannot pull '{self._target.name.display}'"

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except ConnectionBroken as error:
            raise Offline(
                f"cannot reach {self._host}: {describe_connection_error(error)}",
                hint="check the network and the proxy",
            ) from error
        except BadAddress as error:
            raise SourceError(f"{self._cannot}: {error}") from error
