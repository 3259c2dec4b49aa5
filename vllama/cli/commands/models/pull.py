"""`vllama pull`: download a model."""

from __future__ import annotations

from typing import Annotated

from vllama.cli.context import load_settings
from vllama.cli.options import Insecure, argument
from vllama.cli.progress import pull_with_progress

EXAMPLES = """\
\b
Examples:
  vllama pull Qwen/Qwen3-0.6B
  vllama pull hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M
"""


def pull(
    model: Annotated[str, argument("MODEL", "org/repo[:QUANT], hf.co/org/repo[:QUANT] or name")],
    insecure: Insecure = False,
) -> None:
    """Download a model, or resume a stopped download."""
    pull_with_progress(load_settings(), model, insecure=insecure)
