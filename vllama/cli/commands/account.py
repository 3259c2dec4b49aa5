"""`vllama push`, `signin`, `signout`: commands of Ollama that need ollama.com."""

from __future__ import annotations

from typing import Annotated

from vllama.cli.context import connect
from vllama.cli.options import Insecure, argument
from vllama.cli.output import say

EXAMPLES = """\
\b
Example:
  hf upload org/repo model.gguf        upload a model to the Hugging Face hub
"""


def push(
    model: Annotated[str, argument("MODEL", "Name of the model.")], insecure: Insecure = False
) -> None:
    """Upload a model (not supported)."""
    with connect() as client:
        for _ in client.stream("/api/push", {"model": model}):
            pass  # the last line is the refusal


def signin() -> None:
    """Sign in to ollama.com (not needed)."""
    say("No sign-in is needed: models run on this machine, without an ollama.com account.")


def signout() -> None:
    """Sign out of ollama.com."""
    say("You are not signed in to ollama.com.")
