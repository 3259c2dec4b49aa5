"""`vllama stop`: unload a model, or end a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from vllama.base.errors import ConfigError, ModelNotFound
from vllama.cli.context import connect
from vllama.cli.options import model_argument, option
from vllama.cli.output import say

if TYPE_CHECKING:
    from vllama.cli.client import Client

EXAMPLES = """\
\b
Examples:
  vllama stop smollm2:135m
  vllama stop --request 1a20546f505-6    as in vllama ps --requests
"""


def stop(
    model: Annotated[str | None, model_argument("Name of the model, as in ps.")] = None,
    request: Annotated[str | None, option("--request ID", "Cancel this request instead.")] = None,
) -> None:
    """Unload a model, or stop a request; the server keeps running."""
    if (model is None) == (request is None):
        raise ConfigError(
            "specify a model to unload, or a request to stop: MODEL or --request ID",
            hint="list them: vllama ps, vllama ps --requests",
        )
    with connect() as client:
        if model is not None:
            unload(client, model)
        else:
            client.delete(f"/api/requests/{quote(str(request), safe='')}")
            say(f"stopped request {request}")


def unload(client: Client, model: str) -> None:
    """Ask the server to unload a model."""
    try:
        client.post("/api/generate", {"model": model, "keep_alive": 0})
    except ModelNotFound as error:
        raise ModelNotFound(
            model,
            message=f'couldn\'t find model "{model}" to stop',
            hint="list loaded models: vllama ps",
        ) from error
