"""`vllama push`, `signin`, `signout`: commands of Ollama that need ollama.com."""

from __future__ import annotations

from typing import Annotated

from vllama.cli.context import connect
from vllama.cli.options import Insecure, argument
from vllama.cli.output import say

EXAMPLES = """\
\b
Example:
  hf upload org/repo model.gguf        publish a model on the Hugging Face hub
"""


def push(
    model: Annotated[str, argument("MODEL", "Name of the model.")], insecure: Insecure = False
) -> None:
    """Upload a model: not possible from here."""
    with connect() as client:
        for _ in client.stream("/api/push", {"model": model}):
            pass  # the last line is the refusal


def signin() -> None:
    """Sign in to ollama.com: not needed here."""
    say("vllama cannot sign in to ollama.com, and needs no account: models run on this machine.")


def signout() -> None:
    """Sign out of ollama.com."""
    say("You are not signed in to ollama.com.")
