"""What a chat template tells about a model's abilities, in Ollama's words.

Ollama derives the same from its Go templates (`template mentions tools`, think tags).
"""

from __future__ import annotations

from vllama.errors import BadModelFile
from vllama.models.bounds import MOST_TEMPLATE_CHARS
from vllama.models.types import Capability

_THINKING_FAMILIES = frozenset({"gptoss", "gpt-oss", "gpt_oss"})


def bounded_template(template: str | None) -> str | None:
    """Return the chat template of a model's file. Raises BadModelFile if it is no such thing."""
    if template is not None and len(template) > MOST_TEMPLATE_CHARS:
        raise BadModelFile(
            f"cannot use the model: its chat template is longer than {MOST_TEMPLATE_CHARS}",
            hint="fetch the model from its maker",
        )
    return template


def template_capabilities(template: str | None, architecture: str) -> set[Capability]:
    """Read from a chat template whether it takes tools and marks thinking."""
    # not at the top: the stores come here too, and no template is read before the first request
    from vllama.chat.template_style import marks_thinking, takes_tools

    found: set[Capability] = set()
    if takes_tools(template or ""):
        found.add(Capability.TOOLS)
    if architecture in _THINKING_FAMILIES or marks_thinking(template or ""):
        found.add(Capability.THINKING)
    return found
