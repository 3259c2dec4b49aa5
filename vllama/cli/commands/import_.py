"""`vllama import`: puts what `vllama export` has written into its places."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from vllama import config
from vllama.base.errors import ConfigError
from vllama.cli.options import argument, option
from vllama.cli.output import say, say_aside, show_warning

EXAMPLES = """\
\b
Examples:
  vllama import backup.tar.gz
  vllama import --force backup.tar.gz     replace what is there

Everything is checked before anything is written. A running server sees keys and models at once;
the config file after a reload (vllama service, kill -HUP).
"""


def import_(
    file: Annotated[Path, argument("FILE", "A file of 'vllama export'.")],
    force: Annotated[bool, option("--force", "Replace what is there.")] = False,
) -> None:
    """Read configuration, keys, usage and created models from a file."""
    from vllama.admin.backup.transfer import import_archive

    config.prepare_environment()
    environ = config.environ()
    config_file = config.named_file(environ)
    if not config_file.exists():  # it is to be imported
        environ.pop(config.FILE_VARIABLE, None)
    fault = None
    try:
        settings = config.load({}, environ)
    except ConfigError as error:
        if not force:
            raise
        fault, settings = error, config.load({}, environ, Path(os.devnull))
    done = import_archive(file, settings, config_file, force=force, fault=fault)
    if fault is not None:
        show_warning(f"the config file that was here is replaced: {fault.sentence()}")
    for note in done.notes:
        show_warning(note)
    for part in done.parts:
        say_aside(f"  {part}")
    for name, remedy in done.missing.items():
        say_aside(f"{name} lacks its files: {remedy}")
    say(f"imported {file}")
