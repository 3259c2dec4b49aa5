"""`vllama cp`: give a model a second name."""

from __future__ import annotations

from typing import Annotated

import typer

from vllama.cli.completion import model_names

EXAMPLES = """\
\b
Examples:
  vllama cp smollm2:135m gpt-3.5-turbo
"""


def cp(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Name as in list.", autocompletion=model_names)
    ],
    destination: Annotated[str, typer.Argument(metavar="DESTINATION", help="The new name.")],
) -> None:
    """Give a model a second name; the files are shared."""
    from vllama.cli.files import library, settings
    from vllama.cli.output import say
    from vllama.models.create import copy

    copy(library(settings()), source, destination)
    say(f"copied '{source}' to '{destination}'")
