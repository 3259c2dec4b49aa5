"""`vllama stop`: unload a model."""

from __future__ import annotations

from typing import Annotated

from vllama.cli.options import model_argument

EXAMPLES = """\
\b
Example:
  vllama stop smollm2:135m
"""


def stop(
    model: Annotated[str, model_argument("Name of the model, as in ps.")],
) -> None:
    """Unload a model; the server goes on."""
    from vllama.cli.context import connect
    from vllama.errors import ModelNotFound

    with connect() as client:
        try:
            client.post("/api/generate", {"model": model, "keep_alive": 0})
        except ModelNotFound as error:
            raise ModelNotFound(
                model,
                message=f'couldn\'t find model "{model}" to stop',
                hint="see what is loaded: vllama ps",
            ) from error
