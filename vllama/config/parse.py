"""Parsers of single settings: text → value, or ValueError with the reason. Pure."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from vllama.base.units import parse_bytes, parse_keep_alive
from vllama.config import address
from vllama.models.names.ref import HUB_HOSTS
from vllama.models.names.variants import CONFIG_FILES

_HOSTS = tuple(f"{host}/" for host in HUB_HOSTS)


def plain(text: str) -> str:
    """Accept any text but an empty one."""
    if not text:
        raise ValueError("it is empty")
    return text


def key(text: str) -> str:
    """Accept one word of printable ASCII, as a header can hold it."""
    if not plain(text).isascii() or not text.isprintable() or " " in text:
        raise ValueError("not one word of printable ASCII")
    return text


def registry(text: str) -> str:
    """Accept `host` or `host:port`, in lower case; of a URL take the host."""
    host = plain(text).lower().partition("://")[2] or text.lower()
    host = host.rstrip("/")
    if not re.fullmatch(r"(?:[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", host):
        raise ValueError("not a host, or a host and its port")
    return host


def http_url(text: str) -> str:
    """Accept the address of an HTTP server."""
    try:
        parts = urlsplit(plain(text))
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("not an address like http://host:port")
    return text


def model(text: str) -> str:
    """Accept a model's name."""
    return whole_path(plain(text))


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


def path(text: str) -> Path:
    """Accept a path; `~` is the home folder. It holds for engines too, which run elsewhere."""
    return Path(plain(text)).expanduser().absolute()


def captures(text: str) -> int | Path:
    """Accept how many captures to keep, or the folder to keep them in."""
    return whole(0)(text) if text.strip().lstrip("-").isdecimal() else path(text)


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """Make a parser of whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError("not a whole number") from None
        if number < low:
            raise ValueError(f"less than {low}")
        if high is not None and number > high:
            raise ValueError(f"more than {high}")
        return number

    return parse


def context(text: str) -> int:
    """Accept a number of tokens, `8k` for 8192."""
    shorthand = text[-1:].lower() == "k" and text[:-1].isdigit()
    return whole(1)(text[:-1]) * 1024 if shorthand else whole(1)(text)


def layers(text: str) -> int:
    """Accept a number of layers, `all` for -1."""
    return -1 if text.lower() == "all" else whole(-1)(text)


def boolean(text: str) -> bool:
    """Accept the usual words for true and false."""
    if text.lower() in ("1", "t", "true", "yes", "y", "on"):
        return True
    if text.lower() in ("0", "f", "false", "no", "n", "off"):
        return False
    raise ValueError("neither true nor false")


def size_or_switch(text: str) -> int | bool:
    """Accept true, false and sizes."""
    return text == "true" if text in ("true", "false") else parse_bytes(text)


def duration(text: str) -> float:
    """Accept `5m`, `1h30m` or seconds; negative is `math.inf`."""
    try:
        seconds = float(text)
    except ValueError:
        return parse_keep_alive(text) or 0.0
    if not math.isfinite(seconds):
        raise ValueError("not a finite number")
    return math.inf if seconds < 0 else seconds


def timeout(text: str) -> float | None:
    """Accept a duration; zero or less means no limit, None."""
    seconds = duration(text)
    return None if seconds == 0 or math.isinf(seconds) else seconds


def by_comma(text: str) -> list[str]:
    """Split `a, b`; empty items are dropped."""
    return [item.strip() for item in text.split(",") if item.strip()]


def by_pathsep(text: str) -> list[str]:
    """Split as `PATH` is split; empty items are dropped."""
    return [item for item in text.split(os.pathsep) if item]


def host(text: str) -> address.Address:
    """Accept an address with or without a port; a wrong port is an error here."""
    parts = address.parse_address(plain(text))
    if parts.bad_port is not None:
        raise ValueError(f'no such port: "{parts.bad_port}"')
    return parts
