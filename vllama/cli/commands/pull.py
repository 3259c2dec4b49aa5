"""`vllama pull`: download a model."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from vllama.cli.context import change_models, connect, load_settings
from vllama.cli.options import Insecure, argument, option
from vllama.cli.progress import open_display, pull_with_progress, read_event

EXAMPLES = """\
\b
Examples:
  vllama pull Qwen/Qwen3-0.6B
  vllama pull hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M
  vllama pull qwen3:8b --node 10.0.0.5     to a cluster node, see vllama nodes
"""


def pull(
    model: Annotated[
        str, argument("MODEL", "org/repo[:QUANT], hf.co/org/repo[:QUANT] or a model name.")
    ],
    insecure: Insecure = False,
    node: Annotated[str | None, option("--node NAME", "Pull to this cluster node.")] = None,
) -> None:
    """Download a model, or resume an interrupted download."""
    settings = load_settings()
    if node is None:
        with change_models(settings):
            pull_with_progress(settings, model, insecure=insecure)
        return
    body = {"model": model, "insecure": insecure}
    with connect(settings) as client, open_display() as display:
        for line in client.stream(f"/api/pull?node={quote(node)}", body):
            display(read_event(line))
