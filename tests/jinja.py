"""A model's own chat template, rendered as a worker does it, but in this process."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from vllama.chat.request import Message
from vllama.chat.templates.jinja.renderer import encode_value
from vllama.chat.templates.jinja.wire import render_template
from vllama.chat.templates.template_style import template_variables


def rendered(
    source: str, messages: Sequence[Message], *, now: float | None = None, **more: object
) -> str:
    """Return the prompt. Raises BadRequest with the template's words."""
    variables = template_variables(source, messages, **more)  # type: ignore[arg-type]
    return render_template(source, encode_value(msgspec.json.encode, variables), now)
