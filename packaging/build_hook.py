"""Adds what the command line says of itself to the wheel: man pages, and files for shells.

hatchling runs this for `pip install .`, `uv build` and the like; an editable install needs neither.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SharedFiles(BuildHookInterface[Any]):
    """Makes the files below `build/share`, and names them to hatchling."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the files, unless this is an editable install."""
        if version == "editable":
            return
        root = Path(self.root)
        sys.path[:0] = [str(root), str(root / "packaging"), str(self.write_entry_points())]
        os.environ["COLUMNS"] = "80"
        from man_pages import write_pages
        from shell_files import COMPLETIONS, write_completion

        files = {
            f"share/man/man1/{name}.1": text
            for name, text in write_pages(self.metadata.version).items()
        }
        files |= {path: write_completion(shell) for shell, path in COMPLETIONS.items()}
        for path, text in files.items():
            file = root / "build" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            build_data["shared_data"][str(file)] = path

    def write_entry_points(self) -> Path:
        """Return a folder that has the commands of the lab found, which are not installed yet."""
        folder = Path(self.root, "build", "metadata")
        info = folder / "vllama_serve-0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        rows = self.metadata.core.entry_points["vllama.commands"].items()
        lines = ["[vllama.commands]", *(f"{name} = {place}" for name, place in rows)]
        (info / "entry_points.txt").write_text("\n".join(lines))
        return folder
