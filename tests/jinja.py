"""A model's own chat template, rendered as a worker does it, but in this process."""

from __future__ import annotations

from collections.abc import Sequence

from vllama.rendering.renderer import encoded, prompt_of
from vllama.rendering.worker import answer
from vllama.translate.chat_template import template_variables
from vllama.translate.types import Message


def rendered(
    source: str, messages: Sequence[Message], *, now: float | None = None, **more: object
) -> str:
    """Return the prompt. Raises BadRequest with the template's words."""
    variables = template_variables(source, messages, **more)  # type: ignore[arg-type]
    return prompt_of(*answer(encoded(source, variables, now)))
