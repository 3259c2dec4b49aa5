"""A small disk that a test fills and empties: a real one, in memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lacking import lacking


class SmallDisk:
    """A file system of `size_bytes`."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._filler = place / "filler"

    @property
    def free_bytes(self) -> int:
        """What may still be written."""
        status = os.statvfs(self.place)
        return status.f_bavail * status.f_bsize

    def fill(self, left_bytes: int = 0) -> None:
        """Fill all but some bytes, of whole pages."""
        with self._filler.open("ab", buffering=0) as file:
            file.write(bytes(max(0, self.free_bytes - left_bytes)))

    def empty(self) -> None:
        """Take the filler away."""
        self._filler.unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Mount a disk of 2 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        lacking("no file system can be mounted here: root may, in a container with CAP_SYS_ADMIN")
    try:
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
