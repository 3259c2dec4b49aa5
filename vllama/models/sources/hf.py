"""The Hugging Face hub as a source: metadata, addresses and errors through huggingface_hub.

The bytes are fetched by `models.download` (why: docs/decisions; research/model-sources.md §1.4).
All exceptions of huggingface_hub and its HTTP library are mapped to ours here and only here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from urllib.parse import urlsplit

import httpx2

from vllama import __version__
from vllama.errors import AuthRequired, ModelNotFound, Offline, SourceError
from vllama.models.settings import ModelsSettings
from vllama.models.sources.base import Location, Repository, Transient
from vllama.models.types import Format, SourceFile, Variant
from vllama.models.variants import group_ggufs, safetensors_files

_WEB = "https://huggingface.co"
_LOG_IN = "set HF_TOKEN or run: hf auth login"


class HuggingFace:
    """The hub at `settings.hf_endpoint`."""

    def __init__(self, settings: ModelsSettings) -> None:
        self._endpoint = (settings.hf_endpoint or _WEB).rstrip("/")
        self._token = settings.hf_token
        self._offline = settings.offline
        self._timeout_s = settings.request_timeout_s

    def resolve(self, hub_id: str) -> Repository:
        """Ask for the files of `main`; the id comes back in the hub's own spelling."""
        hub = self._library()
        with self._mapped(hub, hub_id):
            api = hub.HfApi(endpoint=self._endpoint, token=self._token, **_US)
            info = api.model_info(hub_id, files_metadata=True, timeout=self._timeout_s)
        files = tuple(
            SourceFile(
                path=sibling.rfilename,
                size_bytes=sibling.size or 0,
                etag=sibling.lfs.sha256 if sibling.lfs else sibling.blob_id,
                sha256=sibling.lfs.sha256 if sibling.lfs else None,
            )
            for sibling in info.siblings or []
        )
        if not info.sha:
            raise SourceError(f"cannot read '{hub_id}': the hub named no commit")
        return Repository(
            hub_id=info.id,
            commit=info.sha,
            gated=info.gated or None,
            variants=variants_of(files),
        )

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
        if not found.etag:
            raise SourceError(f"cannot fetch '{file.path}' of '{repository.hub_id}': no checksum")
        same = _origin(found.location) == _origin(self._endpoint)
        return Location(
            url=found.location,
            etag=found.etag,
            size_bytes=size,
            commit=found.commit_hash or repository.commit,
            headers=headers if same else {"user-agent": headers["user-agent"]},
        )

    def _library(self) -> ModuleType:
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
    def _mapped(self, hub: ModuleType, hub_id: str, file: str | None = None) -> Iterator[None]:
        """Turn what huggingface_hub raises into our errors. Order matters: subclasses first."""
        errors = hub.errors
        try:
            yield
        except errors.GatedRepoError as error:
            raise self._gated(hub_id, error.response.status_code) from error
        except errors.RepositoryNotFoundError as error:
            raise ModelNotFound(
                hub_id,
                message=f"cannot find '{hub_id}' on {self._host}: "
                "there is no such repository, or it is private",
                hint=f"check the spelling; for a private one {_LOG_IN}",
            ) from error
        except errors.RevisionNotFoundError as error:
            raise ModelNotFound(
                hub_id, message=f"cannot read '{hub_id}': it has no such revision"
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
        except httpx2.InvalidURL as error:
            raise SourceError(
                f"cannot use the hub's address '{self._endpoint}': {error}",
                hint="check HF_ENDPOINT",
            ) from error

    def _gated(self, hub_id: str, status: int) -> AuthRequired:
        page = f"{_WEB}/{hub_id}"
        if status == 401:
            hint = f"accept its licence at {page}, then {_LOG_IN}"
        else:
            hint = f"your token has no access: accept the licence at {page} with its account"
        return AuthRequired(f"cannot fetch '{hub_id}': its licence must be accepted", hint=hint)

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
                    hint=f"use a token with read access: {_WEB}/settings/tokens",
                )
            case 404:
                return ModelNotFound(
                    hub_id, message=f"cannot find '{hub_id}' on {self._host}: not found"
                )
            case 429:
                wait = response.headers.get("retry-after")
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


_US = {"library_name": "vllama", "library_version": __version__}


def variants_of(files: tuple[SourceFile, ...]) -> tuple[Variant, ...]:
    """Sort a repository's files into the models that can be served from them."""
    by_path = {file.path: file for file in files}
    variants: list[Variant] = []
    for group in group_ggufs(by_path):
        paths = (*group.paths, group.projector) if group.projector else group.paths
        variants.append(
            Variant(
                format=Format.GGUF,
                quant=group.quant,
                files=tuple(by_path[path] for path in paths),
                label=group.label or "latest",
            )
        )
    whole = safetensors_files(by_path)
    if whole:
        variants.append(
            Variant(
                format=Format.SAFETENSORS, quant=None, files=tuple(by_path[path] for path in whole)
            )
        )
    return tuple(variants)


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc
