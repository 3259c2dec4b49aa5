"""The captures that commands are given: by file, or by id from the folder of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from vllama.captures.format import Capture
    from vllama.config import Config

Folder: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--dir", metavar="DIR", help="Folder of the captures. [that of the setting capture]"
    ),
]


def complete_capture(start: str) -> list[str]:
    """Return the ids of captures that begin with what is typed."""
    from vllama.captures.folder import list_summaries
    from vllama.cli.context import load_settings

    folder = load_settings().capture_dir
    return [one.id for one in list_summaries(folder) if one.id.startswith(start)]


def find(name: str, folder: Path | None, settings: Config) -> Capture:
    """Return the capture of a file, or of an id in a folder. Raises ConfigError."""
    from vllama.captures.folder import find_capture, open_capture
    from vllama.errors import ConfigError

    path = Path(name)
    if path.suffix == ".json" or path.is_file():
        return open_capture(path)
    where = folder or settings.capture_dir
    found = find_capture(where, name)
    if found is None:
        raise ConfigError(
            f"there is no capture '{name}' in '{where}'", hint="list what there is: vllama requests"
        )
    return found
