"""`list`, `show` and `ps` by a running server of the data folder, before anything slow is imported.

The parser and the settings take most of the time of these commands. A server responds if it has the
same settings. The command itself, which prints the same, does all that is unusual.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllama import __version__
from vllama.base.folders import default_data_dir
from vllama.base.servers import COMMANDS, RunningServer, find_servers
from vllama.cli.command_index import ALIASES, QUICK

LIMIT_S = 0.1
READ_BYTES = 65_536
VARIABLES = (
    "VLLAMA_",
    "OLLAMA_",
    "HF_",
    "HUGGINGFACE_",
    "OTEL_",
    "XDG_",
    "PYTHONPATH",
    "HOME",
    "TZ",
)
"""Beginnings of the names of variables that settings are read from."""


def answer(argv: Sequence[str]) -> bool:
    """Print what a server tells, and return True; False if the command has to run."""
    command = ALIASES.get(argv[0], argv[0])
    flag, *flags = [word for word in argv[1:] if word.startswith("-")] or [""]
    name, *names = [word for word in argv[1:] if not word.startswith("-")] or [""]
    if flags or names or flag not in ("", *QUICK[command]):
        return False
    if command == "show" and (name[:1] in ".~" or "://" in name or os.path.lexists(name)):
        return False  # a path, perhaps
    if (told := _ask(command, name)) is None:
        return False
    from vllama.cli.model_output import show_loaded, show_model, show_models

    as_json = flag == "--json"
    match command:
        case "list":
            show_models(told, name, as_json=as_json)
        case "ps":
            show_loaded(told, name, as_json=as_json)
        case _:
            show_model(told, "" if as_json else flag.removeprefix("--"), as_json=as_json)
    return True


def _ask(command: str, name: str) -> Any:
    """Return the response of the first server that has the settings of this process, else None."""
    environ = {key: text for key, text in os.environ.items() if key.startswith(VARIABLES)}
    if any(map(_is_relative, environ.values())):
        return None
    given = environ.get("VLLAMA_DATA_DIR", "")
    folder = Path(given) if given else default_data_dir()
    body = {"command": command, "model": name, "environ": environ}
    body |= {"prefix": sys.prefix, "version": __version__}
    until_s = time.monotonic() + LIMIT_S
    with contextlib.suppress(OSError, ValueError):
        if os.geteuid() == 0 != folder.stat().st_uid:
            return None  # then root's command acts as that user
        for server in find_servers(folder):
            if (told := _post(server, body, until_s)) is not None:
                return told
    return None


def _is_relative(text: str) -> bool:
    """Tell whether this may be a path that depends on the working folder."""
    is_whole = text[:1] in ("", "/", "~") or "://" in text
    return not is_whole and ("/" in text or os.path.lexists(text))


def _post(server: RunningServer, body: Mapping[str, object], until_s: float) -> Any:
    """Return the response of a server, None if it refuses. Raises OSError, ValueError."""
    scheme, _, address = server.url.partition("://")
    if scheme != "http":
        return None
    host, _, port = address.rpartition(":")
    content = json.dumps(body).encode()
    head = (
        f"POST {COMMANDS} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {server.secret}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        "Connection: close\r\n\r\n"
    )
    reply = b""
    with socket.create_connection((host.strip("[]"), int(port)), LIMIT_S) as connection:
        connection.sendall(head.encode() + content)
        while chunk := connection.recv(READ_BYTES):
            reply += chunk
            connection.settimeout(max(0.001, until_s - time.monotonic()))
    status, _, told = reply.partition(b"\r\n\r\n")
    return json.loads(told) if status.split(b" ")[1:2] == [b"200"] else None
