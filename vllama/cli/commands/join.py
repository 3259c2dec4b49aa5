"""`vllama join`: add this machine to a cluster that Ray keeps."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from typing import Annotated

from vllama.base import private
from vllama.base.errors import ConfigError, ServeFailed, ServerUnreachable
from vllama.cli.context import load_settings
from vllama.cli.options import argument, option
from vllama.cli.output import say_aside
from vllama.config import environ
from vllama.supervise.guard import Command, Guard
from vllama.supervise.spec import Grace

EXAMPLES = """\
\b
Examples:
  vllama join 10.0.0.4:6379 --token-file ray.token

The head prints this line: vllama serve --cluster ray. It starts a server here, whose models
its clients can use; Ctrl-C takes this machine out again. Whoever has the token can run code on
every machine of the cluster, and nothing is encrypted: use a private network.

See docs/guide/cluster.md.
"""
STARTED = "Ray runtime started"
LOG = "join.log"
LOOK_EVERY_S = 0.2
START_LIMIT_S = 30.0
AGAIN_S = 5.0
CONNECT_LIMIT_S = 15.0


def join(
    address: Annotated[str, argument("HOST:PORT", "Where the head's Ray listens.")],
    token_file: Annotated[
        Path | None,
        option("--token-file FILE", "The file that the head names; default: where it has it."),
    ] = None,
    host: Annotated[
        str | None, option("--host ADDRESS", "This machine's address, if it has several.")
    ] = None,
) -> None:
    """Add this machine to a cluster that Ray keeps."""
    from vllama.targets.ray.cluster import TOKEN, check_ray

    check_ray("join a cluster")
    settings = load_settings()
    token = (token_file or settings.cluster_dir / TOKEN).absolute()
    if not os.access(token, os.R_OK):
        raise ConfigError(
            f"cannot join {address}: '{token}' cannot be read",
            hint="copy the file that the head names when it starts",
        )
    own = host or find_own_address(address)
    log_path = settings.log_dir / LOG
    private.make_folder(log_path.parent)
    is_first = True
    while True:
        stay(address, own, token, log_path, is_first=is_first)
        is_first = False
        say_aside(f"Ray has ended (its log: {log_path}); joining again")
        time.sleep(AGAIN_S)


def find_own_address(head: str) -> str:
    """Return the address by which this machine reaches the head. Raises ConfigError."""
    host, _, port = head.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"cannot join '{head}': that is no HOST:PORT")
    deadline_s = time.monotonic() + CONNECT_LIMIT_S
    while True:
        try:
            with socket.create_connection((host, int(port)), CONNECT_LIMIT_S) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:  # the head may have just been started
            if time.monotonic() > deadline_s:
                raise ServerUnreachable(
                    f"cannot join {head}: {error.strerror or error}",
                    hint="is the head running (vllama serve --cluster ray), and the port open?",
                ) from error
        time.sleep(LOOK_EVERY_S)


def stay(address: str, own: str, token: Path, log_path: Path, *, is_first: bool) -> None:
    """Run Ray until it ends. Raises ServeFailed if it cannot join the first time."""
    from vllama.targets.ray.cluster import explain_end, make_environ, make_start

    log_path.write_bytes(b"")
    command = Command(
        argv=tuple(make_start(own, address)),
        env=make_environ(environ(), token),
        log_path=log_path,
        cwd=None,
        grace=Grace(),
    )
    with Guard(command) as guard:
        guard.read_pid(START_LIMIT_S)
        ended = threading.Thread(target=guard.read_exit, daemon=True)
        ended.start()
        joined = False
        while ended.is_alive():
            if not joined and STARTED in log_path.read_text(errors="replace"):
                joined = True
                say_aside(f"this machine, {own}, is in the cluster of {address}; Ctrl-C ends that")
            ended.join(LOOK_EVERY_S)
    if is_first and not joined:
        reason, hint = explain_end(log_path.read_text(errors="replace"))
        raise ServeFailed(f"cannot join {address}: {reason}", hint=hint)
