"""`vllama cp`: give a model a second name."""

from __future__ import annotations

import click

from vllama.cli.commands.completion import model_names

EXAMPLES = """\
\b
Examples:
  vllama cp smollm2:135m gpt-3.5-turbo
"""


@click.argument("source", help="Name as in list.", shell_complete=model_names)
@click.argument("destination", help="The new name.")
def cp(source: str, destination: str) -> None:
    """Give a model a second name; the files are shared."""
    from vllama.cli.context import load_settings, local_library
    from vllama.cli.output import say
    from vllama.config.parse import whole_path
    from vllama.errors import ModelNotFound
    from vllama.models.create import copied_name, copy, no_source

    name, books = copied_name(destination), local_library(load_settings())
    try:
        bundle = books.find(whole_path(source))
    except ModelNotFound as error:
        raise no_source(source, error) from None
    copy(books, bundle, name)
    say(f"copied '{source}' to '{destination}'")
