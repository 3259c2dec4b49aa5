"""What the stand-in hub holds: repositories, commits, files and their checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

LFS_SUFFIXES = (".gguf", ".safetensors", ".bin", ".onnx", ".pt")
CHUNK = 1024 * 1024


class HubFile:
    """A file's content, as bytes or as a path, with the checksums that the hub tells."""

    def __init__(self, name: str, content: bytes | Path) -> None:
        self.name, self.content = name, content
        self.lfs = name.endswith(LFS_SUFFIXES)

    @cached_property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    @cached_property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        for chunk in self.read(0, self.size):
            digest.update(chunk)
        return digest.hexdigest()

    @cached_property
    def pointer(self) -> bytes:
        return (
            "version https://git-lfs.github.com/spec/v1\n"
            f"oid sha256:{self.sha256}\nsize {self.size}\n"
        ).encode()

    @cached_property
    def blob_id(self) -> str:
        """The git blob's SHA-1; for an LFS file that of its pointer."""
        size = len(self.pointer) if self.lfs else self.size
        digest = hashlib.sha1(f"blob {size}\0".encode())
        if self.lfs:
            digest.update(self.pointer)
        else:
            for chunk in self.read(0, self.size):
                digest.update(chunk)
        return digest.hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.blob_id

    def read(self, start: int, end: int) -> Iterator[bytes]:
        if isinstance(self.content, bytes):
            for offset in range(start, end, CHUNK):
                yield self.content[offset : min(offset + CHUNK, end)]
            return
        with self.content.open("rb") as file:
            file.seek(start)
            left = end - start
            while left > 0 and (chunk := file.read(min(CHUNK, left))):
                left -= len(chunk)
                yield chunk

    def lfs_json(self, id_key: str) -> dict[str, Any]:
        return {id_key: self.sha256, "size": self.size, "pointerSize": len(self.pointer)}


Content = bytes | Path | HubFile


@dataclass
class HubRepo:
    id: str
    gated: str | bool = False
    private: bool = False
    disabled: bool = False
    tags: tuple[str, ...] = ()
    downloads: int = 0
    pipeline_tag: str | None = "text-generation"
    library_name: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)  # gguf, safetensors, config, cardData
    refs: dict[str, str] = field(default_factory=dict)
    snapshots: dict[str, dict[str, HubFile]] = field(default_factory=dict)

    def commit(self, files: Mapping[str, Content], branch: str = "main") -> str:
        """Publish a revision; its id follows from the content."""
        content = {
            path: data if isinstance(data, HubFile) else HubFile(path, data)
            for path, data in sorted(files.items())
        }
        text = "".join(f"{path} {file.etag}\n" for path, file in content.items())
        commit = hashlib.sha1((self.id + self.refs.get(branch, "") + text).encode()).hexdigest()
        self.snapshots[commit] = content
        self.refs[branch] = commit
        return commit

    def resolve(self, revision: str) -> str | None:
        commit = self.refs.get(revision, revision)
        return commit if commit in self.snapshots else None

    def info(self, commit: str, blobs: bool, expand: list[str]) -> dict[str, Any]:
        files = self.snapshots[commit]
        siblings: list[dict[str, Any]] = []
        for path, file in files.items():
            entry: dict[str, Any] = {"rfilename": path}
            if blobs:
                entry |= {"size": file.size, "blobId": file.blob_id}
                entry |= {"lfs": file.lfs_json("sha256")} if file.lfs else {}
            siblings.append(entry)
        ids = {"_id": hashlib.sha1(self.id.encode()).hexdigest()[:24], "id": self.id}
        whole = self.listed() | {
            "author": self.id.split("/")[0],
            "sha": commit,
            "disabled": self.disabled,
            "siblings": siblings,
            "usedStorage": sum(file.size for file in files.values()),
            **self.extra,
        }
        return ids | {key: whole[key] for key in expand if key in whole} if expand else whole

    def listed(self) -> dict[str, Any]:
        return {
            "_id": hashlib.sha1(self.id.encode()).hexdigest()[:24],
            "id": self.id,
            "modelId": self.id,
            "private": self.private,
            "gated": self.gated,
            "downloads": self.downloads,
            "tags": list(self.tags),
            "pipeline_tag": self.pipeline_tag,
            "library_name": self.library_name,
            "lastModified": "2026-01-02T03:04:05.000Z",
            "createdAt": "2026-01-01T00:00:00.000Z",
        }

    def matches(self, query: Mapping[str, list[str]]) -> bool:
        """Apply the filters of `GET /api/models`."""
        words = " ".join(query.get("search", [])).lower().split()
        labels = {*self.tags, self.pipeline_tag, self.library_name}
        filters = [item for entry in query.get("filter", []) for item in entry.split(",")]
        return all(word in self.id.lower() for word in words) and all(
            item in labels for item in filters
        )

    def tree(self, commit: str, folder: str, recursive: bool) -> list[dict[str, Any]]:
        prefix = folder.strip("/") + "/" if folder.strip("/") else ""
        entries: dict[str, dict[str, Any]] = {}
        for path, file in self.snapshots[commit].items():
            if not path.startswith(prefix):
                continue
            parts = path[len(prefix) :].split("/")
            for depth in range(1, len(parts)):
                name = prefix + "/".join(parts[:depth])
                entry = {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
                if recursive or depth == 1:
                    entries[name] = entry
            if recursive or len(parts) == 1:
                entries[path] = tree_entry(path, file)
        return list(entries.values())


def tree_entry(path: str, file: HubFile) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "oid": file.blob_id, "size": file.size, "path": path}
    return entry | ({"lfs": file.lfs_json("oid")} if file.lfs else {})
