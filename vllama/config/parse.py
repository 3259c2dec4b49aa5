"""The kinds of values that single settings take: text → value, or ValueError with the reason."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from vllama.base.kinds import (
    TEXT_SCHEMA,
    Folder,
    find_kind,
    many,
    read_number,
    read_path,
    read_text,
    text,
)
from vllama.config import address
from vllama.models.names.ref import HUB_HOSTS
from vllama.models.names.variants import CONFIG_FILES

_HOSTS = tuple(f"{host}/" for host in HUB_HOSTS)


def read_registry(text: str) -> str:
    """Accept `host` or `host:port`, in lower case; of a URL take the host."""
    host = read_text(text).lower().partition("://")[2] or text.lower()
    host = host.rstrip("/")
    if not re.fullmatch(r"(?:[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", host):
        raise ValueError("not a host, or a host and its port")
    return host


def read_model(text: str) -> str:
    """Accept a model's name."""
    return whole_path(read_text(text))


def whole_path(name: str) -> str:
    """Return a model's name as typed in a shell, with a relative path made absolute.

    What exists here is a path: a `.gguf` file, a name with a slash, and a folder that holds a
    model. The server, for one, may work in another folder.
    """
    return str(Path(name).expanduser().absolute()) if _is_path(name) else name


def _is_path(name: str) -> bool:
    if name.startswith(("./", "../", "~/")) or name in (".", ".."):
        return True
    if not name.strip() or "://" in name or name.lower().startswith(_HOSTS):
        return False
    try:
        here = Path(name)
        return (here.exists() and "/" in name) or is_gguf(here) or holds_model(here)
    except (OSError, ValueError):  # too long for a path, or a zero byte in it
        return False


def is_gguf(path: Path) -> bool:
    """Tell whether this is the path of a GGUF file."""
    return path.name.lower().endswith(".gguf") and path.is_file()


def holds_model(folder: Path) -> bool:
    """Tell whether a folder has a model's files in it."""
    has_config = any((folder / name).is_file() for name in CONFIG_FILES)
    return has_config or any(folder.glob("*.gguf"))


def read_captures(text: str) -> int | Path:
    """Accept how many captures to keep, or the folder to keep them in."""
    return read_number(0)(text) if text.strip().lstrip("-").isdecimal() else read_path(text)


def read_layers(text: str) -> int:
    """Accept a number of layers, `all` for -1."""
    return -1 if text.lower() == "all" else read_number(-1)(text)


def write_layers(value: int) -> str:
    """Write a number of layers."""
    return "all" if value == -1 else str(value)


def split_paths(text: str) -> list[str]:
    """Split as `PATH` is split; empty items are dropped."""
    return [item for item in text.split(os.pathsep) if item]


def read_host(text: str) -> address.Address:
    """Accept an address with or without a port; a wrong port is an error here."""
    parts = address.parse_address(read_text(text))
    if parts.bad_port is not None:
        raise ValueError(f'no such port: "{parts.bad_port}"')
    return parts


_COUNT = {"type": "integer", "minimum": 0}
_LAYERS = {"anyOf": [{"type": "integer", "minimum": -1}, {"const": "all"}]}
Captures = Annotated[int | Path, text("N|DIR", read_captures, {"anyOf": [_COUNT, TEXT_SCHEMA]})]
Folders = Annotated[tuple[Path, ...], many(find_kind(Folder), split_paths, os.pathsep.join)]
Layers = Annotated[int, text("N", read_layers, _LAYERS, write_layers)]
ListeningAddress = Annotated[str, text("ADDRESS", read_host)]
ModelArgument = Annotated[str, text("NAME", read_model)]
Registry = Annotated[str, text("HOST", read_registry)]
