"""`vllama config`: the settings in effect and their sources; the config file and its schema."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, TypeAlias

from vllama import config
from vllama.base.errors import ConfigError
from vllama.cli.options import AsJson, option
from vllama.cli.output import say, say_aside, show_json, show_table, show_warning
from vllama.config.report import file_schema, report_settings

EXAMPLES = """\
\b
Examples:
  vllama config                           list settings, values and sources
  vllama config edit                      edit the config file in $VISUAL or $EDITOR
  vllama config schema > vllama.schema.json

Editors use the schema to complete and validate the file.
"""

COLUMNS = ("SETTING", "VALUE", "SOURCE")


File: TypeAlias = Annotated[Path | None, option("--config FILE", "Config file to use.")]


def show(file: File = None, as_json: AsJson = False) -> None:
    """Show all settings with their values and sources, without secrets."""
    settings = config.load({}, config.environ(), file)
    for note in settings.notes:
        show_warning(note)
    told = report_settings(settings)
    if as_json:
        show_json(told)
        return
    show_table(COLUMNS, [(row.key, row.text, row.source) for row in told.settings])
    if settings.config_file is None:
        say_aside(f"no config file exists yet; its default path is {config.default_file()}")


def edit(file: File = None) -> None:
    """Edit the config file; only a valid one is saved.

    If the file changes in the meantime, the edit is saved as a draft.
    """
    from vllama.cli.editor import edit_text
    from vllama.config.edit import NEW_FILE, read_text, save_text

    environ = config.environ()
    path = Path(os.path.realpath(file or config.find_config_file(environ)))  # a link stays one
    try:
        before = read_text(path)
        text = NEW_FILE if before is None else before
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f'cannot edit the config file "{path}": {error}') from None
    after = edit_text(text, environ, name=path.name)
    if after.strip() == text.strip():
        say("nothing was changed")
        return
    try:
        save_text(path, before, after + "\n", environ, keep=True)
    except OSError as error:
        raise ConfigError(f'cannot write the config file "{path}": {error.strerror}') from None
    say(f"saved {path}; servers apply it on SIGHUP, or when they restart")


def print_schema() -> None:
    """Print the JSON Schema of the config file."""
    show_json(file_schema())


ACTIONS = {"show": show, "edit": edit, "schema": print_schema}
