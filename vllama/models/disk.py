"""Room on the disk."""

from __future__ import annotations

import shutil
from pathlib import Path


def free_bytes(path: Path) -> int:
    """Return the free space on the file system where `path` is or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
