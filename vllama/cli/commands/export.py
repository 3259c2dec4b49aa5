"""`vllama export`: what this server has of its own, in one file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from vllama.base.units import format_bytes_decimal
from vllama.cli.context import load_settings
from vllama.cli.options import argument, option
from vllama.cli.output import say, say_aside, show_warning

EXAMPLES = """\
\b
Examples:
  vllama export backup.tar.gz
  vllama export --with-weights backup.tar.gz     also the GGUF files of created models
  vllama import backup.tar.gz                    on the other machine

The file holds the config file, the named keys (their digests), what they used, and the created
models. Pulled models have to be pulled again. The server may keep running.
"""


def export(
    file: Annotated[Path, argument("FILE", "The file to write, a tar.gz.")],
    weights: Annotated[
        bool, option("--with-weights", "Include the files of created models (GGUF).")
    ] = False,
    force: Annotated[bool, option("--force", "Replace FILE if it exists.")] = False,
) -> None:
    """Write configuration, keys, usage and created models to a file."""
    from vllama.admin.backup.transfer import export as write

    done = write(file, load_settings(), weights=weights, force=force, now_s=time.time())
    for name in done.parts:
        say_aside(f"  {name}")
    if done.secrets:
        show_warning(f"the config file in it has secrets: {', '.join(done.secrets)}")
    say(f"wrote {file} ({format_bytes_decimal(file.stat().st_size)})")
