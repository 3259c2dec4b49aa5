"""The captures that commands are given: by file, or by id from the folder of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from vllama.base.errors import ConfigError
from vllama.cli.context import load_settings
from vllama.cli.options import option
from vllama.config import Config

if TYPE_CHECKING:
    from vllama.observe.captures.format import Capture

Folder: TypeAlias = Annotated[
    Path | None, option("--dir DIR", "Folder of the captures. [that of the setting capture]")
]


def complete_capture(start: str) -> list[str]:
    """Return the ids of captures that begin with what is typed."""
    from vllama.observe.captures.folder import list_summaries

    folder = load_settings().capture_dir
    return [one.id for one in list_summaries(folder) if one.id.startswith(start)]


def find(name: str, folder: Path | None, settings: Config) -> Capture:
    """Return the capture of a file, or of an id in a folder. Raises ConfigError."""
    from vllama.observe.captures.folder import find_capture, open_capture

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
