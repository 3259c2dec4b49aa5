"""The running servers of a data folder: one file each, for the owner of the folder only.

A server holds a lock (flock(2)) on its file, which the kernel releases however the server ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vllama.base import private

CHANGES = "/api/changes"
"""Where commands that change models ask, and report."""
COMMANDS = "/api/commands"
"""Where commands that show models ask for what they would read themselves."""


class RunningServer(NamedTuple):
    """The content of a file; `certificate` is the file with that of an https address."""

    url: str
    secret: str  # shows that a request comes from a command of the owner
    certificate: str = ""


@contextlib.contextmanager
def announce(data_dir: Path, server: RunningServer) -> Iterator[None]:
    """Announce this server to commands while the block runs."""
    import secrets  # short commands come here, too

    path = data_dir / "servers" / f"{secrets.token_hex(8)}.json"
    new = path.with_suffix(".new")
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a folder that is read-only: no command changes it
            private.make_folder(path.parent)
            file = stack.enter_context(private.create(new))
            fcntl.flock(file, fcntl.LOCK_EX)  # before anybody finds it
            file.write(json.dumps(server._asdict()).encode())
            file.flush()
            new.rename(path)
        try:
            yield
        finally:
            for each in (path, new):
                with contextlib.suppress(OSError):
                    each.unlink()


def find_servers(data_dir: Path) -> list[RunningServer]:
    """Return the running servers of a data folder; remove the files of killed ones."""
    found = []
    for path in sorted((data_dir / "servers").glob("*.json")):
        with (
            contextlib.suppress(OSError, ValueError, TypeError, RecursionError),
            private.open_file(path) as file,
        ):
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(RunningServer(**json.loads(file.read())))
            else:
                path.unlink()
    return found
