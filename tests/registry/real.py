"""Debian's docker-registry: the server behind real registries of models."""

from __future__ import annotations

import http.client
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from tests.registry.models import MANIFEST, OllamaModel

LIMIT_S = 240.0
CONFIG = """\
version: 0.1
log: {{level: info}}
storage: {{filesystem: {{rootdirectory: {data}}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:0", secret: x}}
"""
REDIRECT = """\
middleware: {{storage: [{{name: redirect, options: {{baseurl: "{url}/"}}}}]}}
"""


def find_registry() -> str | None:
    """Return the program: on PATH, or where `.ci/run` has unpacked it."""
    unpacked = Path(sys.prefix) / "registry" / "usr" / "bin" / "docker-registry"
    return shutil.which("docker-registry") or (str(unpacked) if unpacked.exists() else None)


class RealRegistry:
    """A running registry with an empty data folder; `redirect` is where it sends for blobs."""

    def __init__(self, program: str, folder: Path, *, redirect: str | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.data = folder / "data"
        self.host = ""
        text = CONFIG.format(data=self.data)
        text += REDIRECT.format(url=redirect) if redirect else ""
        config = folder / "config.yml"
        config.write_text(text)
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [program, "serve", str(config)], stdout=self._log, stderr=subprocess.STDOUT
        )

    def __enter__(self) -> RealRegistry:
        deadline = time.monotonic() + LIMIT_S
        while True:
            said = Path(self._log.name).read_text()
            if found := re.search(r"listening on (127\.0\.0\.1:\d+)", said):
                self.host = found[1]
                return self
            assert self._process.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(LIMIT_S)
        self._log.close()

    def request(
        self, method: str, path: str, body: bytes | None = None, kind: str = ""
    ) -> tuple[int, str]:
        """Return status and Location of one request."""
        connection = http.client.HTTPConnection(self.host, timeout=LIMIT_S)
        try:
            headers = {"Content-Type": kind} if kind else {}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status, answer.headers.get("location", "")
        finally:
            connection.close()

    def blob(self, digest: str) -> Path:
        """Return where the registry keeps a blob."""
        folder = self.data / "docker" / "registry" / "v2" / "blobs" / "sha256"
        return folder / digest[:2] / digest / "data"


def push(registry: RealRegistry, name: str, model: OllamaModel) -> None:
    """Push as Ollama does: start an upload, send the blob, close it with its digest; manifest."""
    plain, _, tag = name.rpartition(":")
    for digest, content in model.blobs.items():
        status, location = registry.request("POST", f"/v2/{plain}/blobs/uploads/")
        assert status == 202
        data = content if isinstance(content, bytes) else content.read_bytes()
        parts = urlsplit(location)
        path = f"{parts.path}?{parts.query}&digest=sha256:{digest}"
        status, _ = registry.request("PUT", path, data, "application/octet-stream")
        assert status == 201
    status, _ = registry.request("PUT", f"/v2/{plain}/manifests/{tag}", model.manifest, MANIFEST)
    assert status == 201
