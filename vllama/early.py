"""Listens before anything heavy is imported, so that a client need not wait for `vllama serve`.

Python and our imports take most of a start; connections made meanwhile wait in the kernel's queue
instead of being refused. Only plain cases are decided here: an IPv4 address from the flags or from
`OLLAMA_HOST`, and no file of settings. Whatever is not plain, or fails, is left to
`gateway.serve.bind`, which also words the errors. Imports nothing that Python has not loaded.
"""

import _socket
import os
from collections.abc import Mapping, Sequence

BACKLOG = 2048
_OTHERS = ("VLLAMA_HOST", "VLLAMA_PORT", "VLLAMA_CONFIG")
_CONFIG_HOMES = (".config", "Library/Application Support")

_listening: dict[tuple[str, int], int] = {}


def listen(argv: Sequence[str]) -> None:
    """Listen where `vllama serve` with these arguments will, if that is plain to see."""
    place = where(argv, os.environ)
    if place is None or place in _listening:
        return
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
    else:
        _listening[place] = listener.detach()


def take(host: str, port: int) -> int | None:
    """Return the file descriptor that listens there, if there is one; close all others."""
    found = _listening.pop((host, port), None)
    while _listening:
        os.close(_listening.popitem()[1])
    return found


def where(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the address that these arguments and this environment mean; None if not plain."""
    if not argv or argv[0] != "serve" or any(environ.get(name) for name in _OTHERS):
        return None
    flags = {"--host": "", "--port": ""}
    rest = iter(argv[1:])
    for word in rest:
        name, equals, value = word.partition("=")
        if word in ("--help", "-h") or name == "--config":
            return None
        if word == "--":
            break
        if name in flags:
            flags[name] = value if equals else next(rest, "")
    host, colon, port = environ.get("OLLAMA_HOST", "").strip().partition(":")
    host = flags["--host"] or host or ("127.0.0.1" if not colon else "")
    port = flags["--port"] or (port if colon else "11434")
    digits = host.split(".")
    ipv4 = len(digits) == 4 and all(part.isdecimal() and int(part) < 256 for part in digits)
    if not ipv4 or not port.isdecimal() or not 0 < int(port) < 65536 or _has_file(environ):
        return None
    return host, int(port)


def _has_file(environ: Mapping[str, str]) -> bool:
    """Tell whether there may be a file of settings."""
    home = environ.get("HOME")
    if not home or os.name != "posix":
        return True
    places = [environ.get("XDG_CONFIG_HOME") or home, *(f"{home}/{name}" for name in _CONFIG_HOMES)]
    # without pathlib, whose import takes as long as all the rest
    return any(os.path.exists(f"{place}/vllama/config.toml") for place in places)  # noqa: PTH110
