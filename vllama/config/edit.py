"""Changes of the config file: checked as a server reads it, and written whole or not at all."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from vllama.base import private
from vllama.base.errors import ConfigError
from vllama.config.load import load

NEW_FILE = """\
# vllama settings, one per line: key = value. See 'vllama config' for all of them.
"""


def read_text(path: Path) -> str | None:
    """Return the text of a file, None if there is none. Raises OSError, UnicodeDecodeError."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def save_text(
    path: Path, before: str | None, text: str, environ: Mapping[str, str], *, keep: bool = False
) -> None:
    """Write the config file, which was `before`, unless it could not be read as settings then.

    Raises ConfigError for that, or if somebody else has written it meanwhile, and OSError. The file
    is unchanged then. With `keep` the text stays in a draft that the hint of the error names.
    """
    draft = path.with_name(f"{path.stem}.draft-{time.time_ns():x}.toml")
    private.replace(draft, text)
    try:
        load({}, environ, draft)
        with private.lock_folder(path.parent):
            if read_text(path) != before:
                raise ConfigError(
                    f'cannot write the config file "{path}": it has changed since you opened it'
                )
            draft.replace(path)
    except ConfigError as error:
        hint = f'your changes are saved in "{draft}": open the file again and add them there'
        message = error.message if keep else error.message.replace(str(draft), str(path))
        raise ConfigError(message, hint=hint if keep else None) from None
    finally:
        if not keep:
            draft.unlink(missing_ok=True)


def set_values(text: str, values: Mapping[str, object]) -> str:
    """Return the text of a config file with other values; None takes one out. Comments stay."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise ConfigError(f"cannot read the config file: {error}") from None
    for key, value in values.items():
        if value is None:
            document.pop(key, None)
        else:
            document[key] = value
    return tomlkit.dumps(document)
