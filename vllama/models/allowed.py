"""What the user allows to be fetched: from which registries, and how large a file. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from vllama.errors import Forbidden
from vllama.models.ref import HUB_HOSTS
from vllama.units import format_bytes_decimal

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
            f"cannot fetch '{path}': it has {format_bytes_decimal(size_bytes)}, and no more than "
            f"{format_bytes_decimal(most_bytes)} are allowed",
            hint="choose a smaller model, or raise the setting max_blob_size (vllama serve "
            "--max-blob-size SIZE)",
        )


def _canonical(host: str) -> str:
    host = host.lower()
    for port in _DEFAULT_PORTS:
        host = host.removesuffix(port)
    return _HUB if host in HUB_HOSTS else host
