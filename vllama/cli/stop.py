"""`vllama stop`: unload a model."""

from __future__ import annotations

from typing import Annotated

import typer

from vllama.cli.completion import model_names

EXAMPLES = """\
\b
Example:
  vllama stop smollm2:135m
"""


def stop(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Name of the model, as in ps.", autocompletion=model_names
        ),
    ],
) -> None:
    """Unload a model; the server goes on."""
    from vllama.cli.files import server
    from vllama.errors import ModelNotFound

    with server() as client:
        try:
            client.post("/api/generate", {"model": model, "keep_alive": 0})
        except ModelNotFound as error:
            raise ModelNotFound(
                model,
                message=f'couldn\'t find model "{model}" to stop',
                hint="see what is loaded: vllama ps",
            ) from error
