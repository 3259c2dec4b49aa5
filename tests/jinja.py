"""A model's own chat template, rendered as a worker does it, but in this process."""

from __future__ import annotations

from collections.abc import Sequence

from vllama.chat.request import Message
from vllama.chat.template_variables import template_variables
from vllama.rendering.renderer import encoded, prompt_of
from vllama.rendering.worker import answer


def rendered(
    source: str, messages: Sequence[Message], *, now: float | None = None, **more: object
) -> str:
    """Return the prompt. Raises BadRequest with the template's words."""
    variables = template_variables(source, messages, **more)  # type: ignore[arg-type]
    return prompt_of(*answer(encoded(source, variables, now)))
