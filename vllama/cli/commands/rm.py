"""`vllama rm`: remove models from this disk."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from vllama.base.errors import ModelNotFound, VllamaError
from vllama.base.units import format_bytes_decimal
from vllama.cli.context import change_models, connect, load_settings, local_library
from vllama.cli.options import model_argument, option
from vllama.cli.output import say, say_aside, show_error
from vllama.config.parse import whole_path

EXAMPLES = """\
\b
Examples:
  vllama rm smollm2:135m
  vllama rm hf.co/org/repo:Q4_K_M org/other
  vllama rm qwen3:8b --node 10.0.0.5     from a cluster node, see vllama nodes
"""


def rm(
    models: Annotated[list[str], model_argument("Names of the models.")],
    force: Annotated[
        bool, option("--force", "Also remove models shared with Ollama or LM Studio.")
    ] = False,
    node: Annotated[
        str | None, option("--node NAME", "Remove them from this cluster node.")
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
    with change_models(settings) as removed:
        for model in map(whole_path, models):
            try:
                bundle = library.find(model, may_pull=False).bundle
                freed_bytes = library.remove(model, force=force)
            except VllamaError as error:
                is_missing = isinstance(error, ModelNotFound)
                text = f"model '{model}' not found" if is_missing else error.message
                show_error(text, error.hint)
                status = status or error.exit_code
                continue
            removed.append(bundle.name)
            say(f"deleted '{model}'")
            say_aside(f"  freed {format_bytes_decimal(freed_bytes)}")
    return status
