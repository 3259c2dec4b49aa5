"""Limits: what foreign files and servers may contain, and what the user allows to be pulled.

A number from an upload, a download, a hub or a registry is compared with a limit before anything is
allocated or counted by it. Each limit is far above what real models need and far below what hurts a
server.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vllama.base.errors import Forbidden
from vllama.base.units import format_bytes_decimal
from vllama.models.names.ref import HUB_HOSTS

MOST_LAYERS = 4096
MOST_HEADS = 65_536
MOST_NUMBER = 2**32 - 1
"""Of lengths and widths: a context, an embedding, a vocabulary."""
MOST_WEIGHTS = 2**44
"""In one tensor."""
MOST_FILE_BYTES = 2**43
MOST_TEMPLATE_CHARS = 256 * 1024
"""In a chat template, which is searched for what it tells in the server's loop."""
MOST_JSON_BYTES = 32 * 1024 * 1024
MOST_VALUES = 400_000
"""In one text of JSON: a value of one byte takes up to a hundred in memory."""


def decode_json(content: bytes) -> Any:
    """Decode JSON. Raises ValueError, also for what is nested deeply or has too many values."""
    if sum(map(content.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise ValueError("it has too many values")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def decode_object(content: bytes) -> dict[str, Any]:
    """Decode a JSON object; empty if it is anything else."""
    try:
        value = decode_json(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def read_limited(path: Path, most_bytes: int = MOST_JSON_BYTES) -> bytes:
    """Return a file's content. Raises OSError, ValueError for one that is longer."""
    if path.stat().st_size > most_bytes:
        raise ValueError(f"it is longer than {most_bytes} bytes")
    return path.read_bytes()


_HUB = "huggingface.co"
_DEFAULT_PORTS = (":443", ":80")


def check_registry(allowed: Sequence[str], address: str) -> None:
    """Raise Forbidden unless `address` (a URL) is at one of the `allowed` hosts; none: at any.

    Only registries are asked about this: where one of them keeps its files is its own business,
    since what comes from there is compared with its checksums.
    """
    host = _canonical(urlsplit(address).netloc.rpartition("@")[2])
    if allowed and host not in map(_canonical, allowed):
        raise Forbidden(
            f"cannot pull from {host}: models may be pulled from {', '.join(allowed)} only",
            hint=f"add {host} to the setting allow_registry (vllama serve --allow-registry {host})",
        )


def check_size(path: str, size_bytes: int, most_bytes: int | None) -> None:
    """Raise Forbidden for a file that is larger than the user allows; None: any size."""
    if most_bytes is not None and size_bytes > most_bytes:
        raise Forbidden(
            f"cannot download '{path}': its size is {format_bytes_decimal(size_bytes)}; the limit "
            f"is {format_bytes_decimal(most_bytes)}",
            hint="choose a smaller model, or increase max_blob_size (vllama serve --max-blob-size "
            "SIZE)",
        )


def _canonical(host: str) -> str:
    host = host.lower()
    for port in _DEFAULT_PORTS:
        host = host.removesuffix(port)
    return _HUB if host in HUB_HOSTS else host
