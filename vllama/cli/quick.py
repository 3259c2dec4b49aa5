"""`list`, `show` and `ps` by a running server of the data folder, before anything slow is imported.

The parser and the settings take most of the time of these commands. A server responds if it has the
same settings; otherwise the command itself does the same.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vllama import __version__
from vllama.base.folders import default_data_dir
from vllama.base.servers import COMMANDS, RunningServer, find_servers
from vllama.cli.command_index import ALIASES

LIMIT_S = 0.1
VARIABLES = ("VLLAMA_", "OLLAMA_", "HF_", "HUGGINGFACE_", "XDG_", "PYTHONPATH", "HOME", "TZ")
"""Beginnings of the names of variables that decide what models there are."""


def answer(args: Sequence[str]) -> bool:
    """Print the response of a server, and return True; False if the command has to run."""
    command = ALIASES.get(args[0], args[0])
    name, *more = [word for word in args[1:] if word != "--json"] or [""]
    environ = {key: text for key, text in os.environ.items() if key.startswith(VARIABLES)}
    if more or name.startswith("-") or any(map(_is_relative, environ.values())):
        return False
    if command == "show" and (name[:1] in "./~" or "://" in name or os.path.lexists(name)):
        return False  # a path, perhaps, or nothing
    body = {"command": command, "model": name, "environ": environ}
    told = _ask(json.dumps(body | {"prefix": sys.prefix, "version": __version__}))
    if told is None:
        return False
    from vllama.cli import model_output

    show = {"list": model_output.show_models, "ps": model_output.show_loaded}
    part = name if command in show else ""
    show.get(command, model_output.show_model)(told, part, as_json="--json" in args)
    return True


def _is_relative(text: str) -> bool:
    """Tell whether this may be a path that depends on the working folder."""
    is_whole = text[:1] in "/~" or "://" in text
    return not is_whole and ("/" in text or os.path.lexists(text))


def _ask(content: str) -> Any:
    """Return the first response of a server, None if there is none."""
    given, until_s = os.environ.get("VLLAMA_DATA_DIR"), time.monotonic() + LIMIT_S
    with suppress(OSError, ValueError, RuntimeError):  # the command itself reports what is wrong
        folder = Path(given) if given else default_data_dir()
        if os.geteuid() == 0 != folder.stat().st_uid:
            return None  # root's command acts as that user
        for server in find_servers(folder):
            if server.url.startswith("http:") and (reply := _post(server, content, until_s)):
                return json.loads(reply)
    return None


def _post(server: RunningServer, content: str, until_s: float) -> bytes:
    """Return the content of a response, nothing if the server refuses. Raises OSError."""
    address = server.url.removeprefix("http://")
    host, _, port = address.rpartition(":")
    lines = (
        *(f"POST {COMMANDS} HTTP/1.1", f"Host: {address}", "Connection: close"),
        *(f"Authorization: Bearer {server.secret}", f"Content-Length: {len(content)}"),
    )
    reply = b""
    with socket.create_connection((host.strip("[]"), int(port)), LIMIT_S) as connection:
        connection.sendall("\r\n".join((*lines, "", content)).encode())
        while chunk := connection.recv(65_536):
            reply += chunk
            connection.settimeout(max(0.001, until_s - time.monotonic()))
    head, _, told = reply.partition(b"\r\n\r\n")
    return told if b" 200 " in head[:16] else b""
