"""`vllama rm`: remove models from this disk."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from vllama.base.errors import ModelNotFound, VllamaError
from vllama.base.units import format_bytes_decimal
from vllama.cli.context import connect, load_settings, local_library
from vllama.cli.options import model_argument, option
from vllama.cli.output import say, say_aside, show_error
from vllama.config import Config
from vllama.config.parse import whole_path

EXAMPLES = """\
\b
Examples:
  vllama rm smollm2:135m
  vllama rm hf.co/org/repo:Q4_K_M org/other
  vllama rm qwen3:8b --node 10.0.0.5     of a cluster, see vllama nodes
"""


def rm(
    models: Annotated[list[str], model_argument("Names as in list.")],
    force: Annotated[
        bool, option("--force", "Also remove models that Ollama or LM Studio pulled.")
    ] = False,
    node: Annotated[
        str | None, option("--node NAME", "Remove them from this node of the server's cluster.")
    ] = None,
) -> int:
    """Unload and remove models."""
    settings = load_settings()
    if node is not None:
        with connect(settings) as client:
            for model in models:
                path = f"/api/delete?node={quote(node)}"
                client.delete(path, {"model": model, "force": force})
                say(f"deleted '{model}' on {node}")
        return 0
    library = local_library(settings)
    status = 0
    for model in map(whole_path, models):
        try:
            # a wrong name or a refusal must not unload anything
            bundle = library.find(model, may_pull=False)
            library.check_removable(model, force=force)
            alone = not any(
                other.key == bundle.key and other.name != bundle.name for other in library.list()
            )
            if alone:  # else the engine serves it under another name
                _unload(settings, model)
            freed_bytes = library.remove(model, force=force)
        except ModelNotFound as error:
            show_error(f"model '{model}' not found", error.hint)
            status = status or error.exit_code
            continue
        except VllamaError as error:
            show_error(error.message, error.hint)
            status = status or error.exit_code
            continue
        say(f"deleted '{model}'")
        say_aside(f"  freed {format_bytes_decimal(freed_bytes)}")
    return status


def _unload(settings: Config, model: str) -> None:
    """Ask a running server to let the model go; without one there is nothing to do."""
    try:
        with connect(settings) as client:
            client.post("/api/generate", {"model": model, "keep_alive": 0})
    except VllamaError:
        pass
