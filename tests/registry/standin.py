"""A stand-in registry with faults: what a real one cannot be made to do at the right moment.

Its answers are those of docker-registry 2.8 and of the protocol's token part; the servers below
it (faults, log, ranges) are the stand-in hub's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.hub.repos import HubFile
from tests.hub.server import StandInHub, _Cdn, _Handler, _Server
from tests.registry.models import MANIFEST, OllamaModel


class StandInRegistry(StandInHub):
    """`host` is the registry; blobs come from it, or with `redirect` from another origin.

    With `wanted` every request needs that token; `realm` is where it sends clients for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._hub.server_close()
        self._hub = _Server(("127.0.0.1", 0), _Registry, self)
        self.url = f"http://127.0.0.1:{self._hub.server_port}"
        self._cdn.RequestHandlerClass = _Storage
        self.host = f"127.0.0.1:{self._hub.server_port}"
        self.models: dict[str, OllamaModel] = {}
        self.redirect = False
        self.wanted: str | None = None
        self.given: str | None = None
        self.realm = f"{self.url}/token"

    def add(self, name: str, model: OllamaModel) -> OllamaModel:
        """Publish a model under `namespace/model:tag`."""
        self.models[name] = model
        return model

    def file(self, digest: str) -> HubFile | None:
        """Return a blob by its 64 hex digits."""
        for model in self.models.values():
            content: bytes | Path | None = model.blobs.get(digest)
            if content is not None:
                return HubFile(f"{digest}.bin", content)
        return None


class _Storage(_Cdn):
    def handle_route(self) -> None:
        registry: Any = self.hub
        # a real registry names the file in its storage: …/sha256/b1/<hex>/data
        digest = re.search(r"[0-9a-f]{64}", self.route)
        file = registry.file(digest[0]) if digest else None
        if file is None:
            self.answer(404, {"error": "no such blob"})
        elif self.query.get("signature", [self.hub.signature]) != [self.hub.signature]:
            self.answer(403, {"error": "Request has expired"})
        else:
            self.send_file(file, {})


class _Registry(_Handler):
    name = "hub"

    def handle_route(self) -> None:
        self.registry: Any = self.hub
        wanted = self.registry.wanted
        if self.route == "/token":
            self.answer(200, {"token": self.registry.given or wanted})
        elif wanted and self.headers.get("authorization") != f"Bearer {wanted}":
            scope = "repository:library/tiny:pull"
            challenge = f'Bearer realm="{self.registry.realm}",service="here",scope="{scope}"'
            self.answer(
                401, {"errors": [{"code": "UNAUTHORIZED"}]}, {"WWW-Authenticate": challenge}
            )
        else:
            self._model(self.route.split("/"))

    def _model(self, parts: list[str]) -> None:
        match parts:
            case ["", "v2", *name, "manifests", tag]:
                self._manifest(f"{'/'.join(name)}:{tag}")
            case ["", "v2", *_, "blobs", digest]:
                self._blob(digest.removeprefix("sha256:"))
            case _:
                self.answer(404, {})

    def _manifest(self, name: str) -> None:
        model = self.registry.models.get(name)
        if self.headers.get("accept") != MANIFEST:
            self.answer(400, {"errors": [{"code": "MANIFEST_INVALID"}]})
        elif model is None:
            self.answer(404, {"errors": [{"code": "MANIFEST_UNKNOWN"}]})
        else:
            body = model if isinstance(model, bytes) else model.manifest
            self.send_file(HubFile("manifest.bin", body), {"Content-Type": MANIFEST})

    def _blob(self, digest: str) -> None:
        file = self.registry.file(digest)
        if file is None:
            self.answer(404, {"errors": [{"code": "BLOB_UNKNOWN"}]})
        elif self.registry.redirect:
            where = f"{self.hub.cdn_url}/blobs/{digest}?signature={self.hub.signature}"
            self.answer(307, {}, {"Location": where})
        else:
            self.send_file(file, {"Docker-Content-Digest": f"sha256:{digest}"})
