"""Pulls a model from a registry with Ollama's protocol into Ollama's own layout.

1. Fetch the manifest, and refuse a model that no engine can serve before downloading gigabytes.
2. Download the missing blobs, and verify them during the download.
3. Write the manifest last, so that Ollama and vllama never see an incomplete model. Then delete the
   blobs that only the previous manifest needed.

The protocol is Docker's registry API v2 with Ollama's media types. `models.download` fetches the
bytes of blobs; `locate` finds the address of the storage first, because the registry's credentials
must not be sent there. Blocking. The statuses are Ollama's.

See docs/reference/ollama-api.md#model-management, #registry.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

import msgspec

from vllama import __version__
from vllama.base.errors import (
    AuthRequired,
    Cancelled,
    ModelNotFound,
    NoPlan,
    Offline,
    SourceError,
    describe_connection_error,
)
from vllama.models.download.fetch import check_space, fetch_files, map_disk_errors
from vllama.models.download.file_download import open_client, open_connections
from vllama.models.names.ref import ModelRef
from vllama.models.ollama.layout import OllamaModels, RegistryTarget
from vllama.models.ollama.manifest import (
    MANIFEST_TYPE,
    Manifest,
    explain_unservable,
    find_digests,
    parse_manifest,
)
from vllama.models.settings import ModelsSettings
from vllama.models.types import Format, Location, Progress, PullEvent, SourceFile, Transient
from vllama.net.web.bodies import GZIP, read_body
from vllama.net.web.connections import (
    REDIRECTS,
    BadAddress,
    ConnectionBroken,
    Connections,
    StreamedResponse,
    find_origin,
)

ATTEMPTS = 3


def pull_model(
    target: RegistryTarget,
    models: OllamaModels,
    settings: ModelsSettings,
    *,
    formats: Sequence[Format],
    progress: Progress,
    cancel: threading.Event,
) -> ModelRef:
    """Download `target` into `models`, or update it; return its name there.

    `progress` may be called from several threads. Raises ModelNotFound, NoPlan (for a format that
    no engine reads), AuthRequired, Canceled, ChecksumMismatch, DiskFull, Offline, SourceError.
    """
    what = target.name.display
    with (
        open_client(settings) as client,
        open_connections(settings) as connections,
        map_disk_errors(models, what),
    ):
        registry = OllamaRegistry(client, target)
        content = _fetch_manifest(registry, settings, cancel)
        manifest = _check_manifest(content, what, formats)
        files = [
            SourceFile(
                path=f"{what} (blob {blob.digest[:12]})",
                size_bytes=blob.size_bytes,
                etag=blob.digest,
                sha256=blob.digest,
            )
            for blob in manifest.blobs
        ]
        models.prepare()
        name = models.match_spelling(target.name)
        for _ in range(ATTEMPTS):
            check_space(models, files, what)
            fetch_files(
                files,
                place=models,
                locate=registry.locate,
                connections=connections,
                settings=settings,
                progress=progress,
                cancel=cancel,
            )
            progress(PullEvent(status="verifying sha256 digest"))  # done during the download
            with models.locked():
                # the blob of another model may have been removed together with it meanwhile
                if all(models.has_blob(blob.digest, blob.size_bytes) for blob in manifest.blobs):
                    _publish(models, name, content, progress)
                    return name
    raise SourceError(f"cannot pull '{what}': its files are deleted right after the download")


def _fetch_manifest(
    registry: OllamaRegistry, settings: ModelsSettings, cancel: threading.Event
) -> bytes:
    """Fetch the manifest, with retries while the registry is overloaded."""
    for pause in range(ATTEMPTS - 1):
        try:
            return registry.manifest()
        except Transient as error:
            if cancel.wait(settings.backoff_s * 2**pause):
                raise Cancelled("cannot continue: canceled", hint=error.message) from error
    return registry.manifest()


def _publish(models: OllamaModels, name: ModelRef, content: bytes, progress: Progress) -> None:
    progress(PullEvent(status="writing manifest"))
    path = models.manifest(name)
    before = find_digests(path.read_bytes()) if path.exists() else set()
    models.write_manifest(name, content)
    if unused := before - find_digests(content):
        progress(PullEvent(status="removing unused layers"))
        models.prune(unused)


def _check_manifest(content: bytes, what: str, formats: Sequence[Format]) -> Manifest:
    try:
        manifest = parse_manifest(content)
    except ValueError as error:
        raise SourceError(f"cannot pull '{what}': {error}") from None
    if reason := explain_unservable(manifest, {}):
        raise NoPlan(
            f"cannot pull '{what}': {reason}",
            hint="pull a GGUF of it from the Hugging Face hub: vllama pull hf.co/org/repo",
        )
    if Format.GGUF not in formats:
        raise NoPlan(
            f"cannot serve '{what}' here: it is GGUF, but {' or '.join(formats)} is required",
            hint="install an engine that supports it: vllama engines",
        )
    return manifest


MAX_MANIFEST = 4 * 1024 * 1024
_MAX_TOKEN_ANSWER = 256 * 1024
_MAX_REDIRECTS = 5
_AGENT = {"user-agent": f"vllama/{__version__}"}
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")  # characters that are allowed in a header
_LOGIN = "only public models can be pulled: vllama has no account on that registry"


class _TokenAnswer(msgspec.Struct):
    token: str = ""
    access_token: str = ""


class OllamaRegistry:
    """One model at its registry. Thread-safe if `client` is."""

    def __init__(self, client: Connections, target: RegistryTarget) -> None:
        self._client, self._target = client, target
        _, namespace, model, _ = target.name.parts
        self._base = f"{target.address}/v2/{namespace}/{model}"
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
        url, headers = f"{self._base}/blobs/sha256:{file.etag}", _AGENT
        with self._translate_errors():
            for _ in range(_MAX_REDIRECTS):
                # One byte, because some registries would send the whole blob; uncompressed, because
                # a range of compressed bytes is useless.
                asked = {"range": "bytes=0-0", "accept-encoding": "identity"}
                with self._open(url, asked, follow=False) as answer:
                    if answer.status not in REDIRECTS:
                        self._check(answer, (200, 206, 416))
                        headers = self._make_headers()
                        break
                    url = urljoin(url, answer.headers.get("location", ""))
                if find_origin(url) != find_origin(self._base):
                    break
            else:
                raise SourceError(f"{self._cannot}: {self._host} redirects endlessly")
        return Location(url=url, etag=file.etag, size_bytes=file.size_bytes, headers=headers)

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
                f"{self._cannot}: {self._host} requires a token from another host, "
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
                f"{self._cannot}: {self._host} returned no token ({status})", hint=_LOGIN
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
                f"{self._cannot}: {self._host} is missing one of its files",
                hint="pull again; if that fails too, the model is damaged on the registry",
            )
        said = f"{status} {answer.reason}".rstrip()
        if status == 429 or status >= 500:
            raise Transient(f"{self._cannot}: {self._host} returned {said}", hint="try again later")
        raise SourceError(f"{self._cannot}: {self._host} returned {said}")

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
                hint="check the network and proxy settings",
            ) from error
        except BadAddress as error:
            raise SourceError(f"{self._cannot}: {error}") from error
