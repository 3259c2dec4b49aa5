"""Root's commands in the data folder of another user, such as that of a service.

They run as that user: otherwise a link that is planted there would have root write any file, or
give it away.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterable
from pathlib import Path

from vllama.base.errors import VllamaError

_opened: dict[Path, int] = {}


def become_owner(folder: Path, words: Iterable[str]) -> None:
    """Make root's process run as the user whose the folder is, or where it will be made.

    Files that words name are opened before, for `read_named`. Raises VllamaError.
    """
    status = next(each for each in (folder, *folder.parents) if each.exists()).stat()
    if status.st_uid == 0:
        return
    for path in filter(Path.is_file, {Path(word).absolute() for word in words}):
        _opened[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    name, uid, gid, home = "", status.st_uid, status.st_gid, "/"
    with contextlib.suppress(KeyError):  # the dynamic user of a service that does not run
        name, _, _, gid, _, home, _ = pwd.getpwuid(uid)
    is_home = Path(home).is_dir() and Path(home).stat().st_uid == uid
    os.environ |= {"HOME": home if is_home else str(folder), "VLLAMA_DATA_DIR": str(folder)}
    os.initgroups(name, gid) if name else os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    if not all(os.access(Path(file).parent, os.R_OK | os.X_OK) for file in (__file__, os.__file__)):
        raise VllamaError(
            f"cannot act as {name or uid}, the owner of '{folder}': that user cannot read vllama, "
            f"or its Python in '{Path(os.__file__).parent}'",
            hint="install vllama for all users, such as in /opt/vllama",
        )


def read_named(path: Path) -> bytes:
    """Return the content of a file that the command line names, once. Raises OSError."""
    with open(_opened.get(path.absolute(), path), "rb") as file:  # noqa: PTH123 - or a descriptor
        return file.read()
