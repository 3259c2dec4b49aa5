"""A model as Ollama keeps it: a manifest over blobs.

See docs/reference/ollama-api.md#store.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
IMAGE = "application/vnd.ollama.image."
PARAMS = {"temperature": 0.5, "stop": ["<|im_start|>", "<|im_end|>"], "num_ctx": 2048}


def sha256(content: bytes | Path) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class OllamaModel:
    """`layers` are (kind, content); texts may be given as str, params and messages as values."""

    def __init__(
        self,
        layers: Sequence[tuple[str, Any]],
        config: Mapping[str, Any] | None = None,
    ) -> None:
        default = {"model_format": "gguf", "model_family": "llama", "file_type": "F16"}
        about = json.dumps({**default, **(config or {})}).encode()
        self.blobs: dict[str, bytes | Path] = {}
        rows = [self._row(IMAGE + kind, _content(value)) for kind, value in layers]
        self.document: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._row(CONFIG, about),
            "layers": rows,
        }

    def _row(self, media: str, content: bytes | Path) -> dict[str, Any]:
        digest = sha256(content)
        self.blobs[digest] = content
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": size}

    @property
    def manifest(self) -> bytes:
        return json.dumps(self.document).encode()

    @property
    def digest(self) -> str:
        return sha256(self.manifest)

    @property
    def size(self) -> int:
        rows = [*self.document["layers"], self.document["config"]]
        return sum({row["digest"]: row["size"] for row in rows}.values())

    def layer(self, kind: str) -> str:
        """Return the digest of the first layer of a kind."""
        rows = self.document["layers"]
        found = next(row["digest"] for row in rows if row["mediaType"] == IMAGE + kind)
        return str(found).removeprefix("sha256:")


def _content(value: Any) -> bytes | Path:
    if isinstance(value, bytes | Path):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def store(folder: Path, name: str, model: OllamaModel, *, dash: str = "-") -> Path:
    """Put a model where Ollama would have; `name` is the full one. Return its manifest's file."""
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    for digest, content in model.blobs.items():
        path = folder / "blobs" / f"sha256{dash}{digest}"
        if path.exists():
            continue
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.symlink_to(content)
    plain, _, tag = name.rpartition(":")
    path = folder / "manifests" / plain / tag
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.manifest)
    return path
