"""Folders for what an engine litters (sockets, temporary files): made here, removed with it.

Whoever is last removes them: the guard, else the supervisor, else its successor's sweep.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "vllama-"
# a socket's path may have 107 bytes: this one, our name of 16, and a UUID
LONGEST = 50


def scratch_folder() -> Path:
    """Make a folder that only this user can enter, with a short path; raises OSError."""
    usual = tempfile.gettempdir()
    fits = len(os.fsencode(usual)) <= LONGEST or os.name == "nt"
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=usual if fits else "/tmp"))


def remove_scratch(folder: Path | None) -> None:
    """Remove such a folder, if it is there; one with another name was not made here."""
    if folder is not None and folder.name.startswith(PREFIX):
        shutil.rmtree(folder, ignore_errors=True)
