"""Parses the hub's JSON. Pure, and trusts nothing, because a mirror may omit fields.

The fields are those of the hub's `/api/models` routes. A field that is missing or has a wrong type
counts as unknown; only indispensable fields are required.

See docs/reference/hub.md#hub-api.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from vllama.models.limits import MOST_FILE_BYTES
from vllama.models.names.variants import choose_safetensors_files, group_ggufs
from vllama.models.types import Format, Listed, Repository, SourceFile, Variant

_MAX_FILES = 10_000
_MAX_PATH = 1024
_PACKED = frozenset({"I8", "U8", "I32", "U32", "F8_E4M3", "F8_E5M2", "F4"})


class NotTheHub(ValueError):
    """The JSON is not an answer of the hub."""


def read_repository(
    row: object, files: tuple[SourceFile, ...] | None = None, revision: str | None = None
) -> Repository:
    """Parse a repository's own page at `revision`, by default the branch main.

    `files` replace those on the page. Raises NotTheHub.
    """
    about = _object(row)
    hub_id, commit = _text(about.get("id")), _text(about.get("sha"))
    if hub_id is None or not _is_id(hub_id) or commit is None or not is_plain(commit):
        raise NotTheHub("it has no repository or commit")
    files = read_files(row) if files is None else files
    weights = _object(about.get("safetensors"))
    is_packed = not _PACKED.isdisjoint(_object(weights.get("parameters")))
    return Repository(
        hub_id=hub_id,
        commit=commit,
        branch=revision or "main",
        gated=_read_gate(about),
        variants=build_variants(files),
        files=files,
        license=read_license(about),
        bases=read_bases(about),
        pipeline=_text(about.get("pipeline_tag")),
        # meaningless if several parameters are packed into one number
        parameter_count=_gguf_total(about) or (None if is_packed else _count(weights.get("total"))),
    )


def read_listed(page: object) -> list[Listed]:
    """Parse one page of a list; rows without a repository are skipped. Raises NotTheHub."""
    if not isinstance(page, list):
        raise NotTheHub("it has no list of repositories")
    return [listed for row in page if (listed := _read_listed(_object(row))) is not None]


def _read_listed(about: Mapping[str, Any]) -> Listed | None:
    hub_id = _text(about.get("id"))
    if hub_id is None or not _is_id(hub_id):
        return None
    names = (_text(_name(item)) for item in _list(about.get("siblings")))
    return Listed(
        hub_id=hub_id,
        gated=_read_gate(about),
        disabled=bool(about.get("disabled") or about.get("private")),
        parameter_count=_gguf_total(about),
        paths=tuple(name for name in names if name is not None),
    )


def has_sizes(row: object) -> bool:
    """Return whether a repository's page has the sizes of its files (a mirror may omit them)."""
    siblings = _object(row).get("siblings")
    return isinstance(siblings, list) and all(
        _count(_object(item).get("size"), least=0) is not None for item in siblings
    )


def read_files(row: object) -> tuple[SourceFile, ...]:
    """Parse the files on a repository's page. Raises NotTheHub."""
    siblings = _list(_object(row).get("siblings"))
    if len(siblings) > _MAX_FILES:
        raise NotTheHub("it has too many files")
    return tuple(
        _file(_name(item), item, _object(_object(item).get("lfs")).get("sha256"), "blobId")
        for item in siblings
    )


def read_tree(rows: object) -> tuple[SourceFile, ...]:
    """Parse one page of a list of files. Raises NotTheHub."""
    if not isinstance(rows, list) or len(rows) > _MAX_FILES:
        raise NotTheHub("it has no list of files, or too many files")
    return tuple(
        _file(_object(row).get("path"), row, _object(_object(row).get("lfs")).get("oid"), "oid")
        for row in rows
        if _object(row).get("type") == "file"
    )


def _file(path: object, row: object, sha256: object, plain: str) -> SourceFile:
    # the etag of an LFS file is its SHA-256, that of a small file is its id in git
    name, sum256 = _text(path), _text(sha256)
    if name is None or not _stays_inside(name):
        raise NotTheHub("it has a file without a name, or a path outside the repository")
    about = _object(row)
    etag, size = sum256 or _text(about.get(plain)), _count(about.get("size")) or 0
    if etag is not None and not is_plain(etag):
        raise NotTheHub("it has a file with an invalid checksum")
    if size > MOST_FILE_BYTES:
        raise NotTheHub("it has a file with an impossible size")
    return SourceFile(path=name, size_bytes=size, etag=etag, sha256=sum256)


def read_license(about: Mapping[str, Any]) -> str | None:
    """Return the name of the license, from the card or else from the tag `license:…`."""
    card = _object(about.get("cardData"))
    name = card.get("license_name") or card.get("license")
    named = next(iter(_texts(name)), None)
    return named or next(_find_tag(about, "license:"), None)


def read_bases(about: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the repositories that one was made from, from its tags or else its card."""
    for relation in ("quantized", "adapter"):
        if tagged := tuple(_find_tag(about, f"base_model:{relation}:")):
            return tagged
    return _texts(_object(about.get("cardData")).get("base_model"))


def parse_wait_s(headers: Mapping[str, str]) -> int:
    """Return the seconds to wait: `Retry-After`, or t in `RateLimit: "api";r=0;t=55`; or 0."""
    after = re.fullmatch(r"\s*(\d{1,9})(?:\.\d*)?\s*", headers.get("retry-after", ""))
    limit = re.search(r"\bt=(\d{1,9})\b", headers.get("ratelimit", ""))
    match = after or limit
    return int(match[1]) if match else 0


def build_variants(files: tuple[SourceFile, ...]) -> tuple[Variant, ...]:
    """Group a repository's files into servable variants."""
    by_path = {file.path: file for file in files}
    variants: list[Variant] = []
    for group in group_ggufs(by_path):
        variants.append(
            Variant(
                format=Format.GGUF,
                quant=group.quant,
                files=tuple(by_path[path] for path in group.all_paths),
                label=group.label,
            )
        )
    whole = choose_safetensors_files(by_path)
    if whole:
        variants.append(
            Variant(
                format=Format.SAFETENSORS, quant=None, files=tuple(by_path[path] for path in whole)
            )
        )
    return tuple(variants)


def _read_gate(about: Mapping[str, Any]) -> str | None:
    gated = about.get("gated")
    return gated if isinstance(gated, str) and gated else "auto" if gated is True else None


def _gguf_total(about: Mapping[str, Any]) -> int | None:
    """Return the number of parameters that the hub has read from one of the GGUF files."""
    return _count(_object(about.get("gguf")).get("total"))


def _find_tag(about: Mapping[str, Any], prefix: str) -> Any:
    return (t.removeprefix(prefix) for t in _texts(about.get("tags")) if t.startswith(prefix))


def _name(item: object) -> object:
    return _object(item).get("rfilename")


def is_plain(name: str) -> bool:
    """Return whether a checksum or a commit is safe as the name of a file."""
    return re.fullmatch(r"\w[\w.+=-]{0,199}", name, re.ASCII) is not None


def _is_id(hub_id: str) -> bool:
    """Return whether this is a valid repository id: `org/repo`, or an old one without `org/`."""
    return re.fullmatch(r"(\w[\w.-]{0,95}/)?\w[\w.-]{0,95}", hub_id, re.ASCII) is not None


def _stays_inside(name: str) -> bool:
    path = PurePosixPath(name)
    inside = not path.is_absolute() and ".." not in path.parts and "\0" not in name
    return inside and len(name) <= _MAX_PATH


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _texts(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(text for text in map(_text, values) if text is not None)


def _count(value: object, *, least: int = 1) -> int | None:
    return value if isinstance(value, int) and value >= least else None
