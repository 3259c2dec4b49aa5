"""What a chat template tells about a model's abilities.

Ollama derives the same from its Go templates (`template mentions tools`, think tags); the words
looked for here are those of the Jinja templates on the hub. Pure text.
"""

from __future__ import annotations

import re

from vllama.models.types import Capability

_TOOLS = re.compile(r"\btools\b")
_THINKING = re.compile(r"</?think>|\benable_thinking\b|\breasoning_content\b|<\|channel>thought")
_THINKING_FAMILIES = frozenset({"gptoss", "gpt-oss", "gpt_oss"})


def template_capabilities(template: str | None, architecture: str) -> set[Capability]:
    """Read from a chat template whether it takes tools and marks thinking."""
    found: set[Capability] = set()
    if template and _TOOLS.search(template):
        found.add(Capability.TOOLS)
    if architecture in _THINKING_FAMILIES or (template and _THINKING.search(template)):
        found.add(Capability.THINKING)
    return found
