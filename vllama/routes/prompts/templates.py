"""The template in force, and prompts that are finished here: by it, or for a gap in a text.

An engine takes a finished prompt at its completions, as it is.

See docs/reference/ollama-api.md#raw-context-system-template.
"""

from __future__ import annotations

import time
from functools import partial

from vllama.base.errors import CapabilityMissing
from vllama.chat.request import Think
from vllama.chat.templates.go_template_prompt import GoTemplate, parse_go_template
from vllama.chat.templates.jinja.renderer import Renderer
from vllama.chat.templates.template_style import Style, read_style
from vllama.models.lookup import Entry
from vllama.models.types import Format, ModelInfo

# Ollama's for a model that has none: what the user said, and nothing else
PLAIN = "{{ .Prompt }}"


def find_template(entry: Entry, given: str | None = None) -> GoTemplate | None:
    """Return the Go template of a request, else the model's; None: the engine uses the file's.

    Raises BadRequest naming the line.
    """
    source = given or entry.bundle.template
    if source is None and not entry.info.chat_template:
        # a server elsewhere keeps its template to itself, and Mistral's tokenizer needs none
        is_remote = entry.bundle.format is Format.REMOTE
        source = None if is_remote or entry.info.mistral_tokenizer else PLAIN
    return parse_go_template(source) if source else None


def find_style(entry: Entry, template: GoTemplate | None) -> Style | None:
    """Return the style of the template in force; None if only the engine knows it."""
    source = entry.info.chat_template
    if template is not None:
        said = read_style(f"{source or ''}{template.source}")
        return Style(
            takes_tools=template.takes_tools,
            form=said.form,
            markers=said.markers,
            keeps_history=True,
        )
    if (entry.bundle.format is Format.REMOTE or entry.info.mistral_tokenizer) and not source:
        return None
    return read_style(source)


async def insert_text(
    entry: Entry,
    renderer: Renderer,
    prompt: str,
    suffix: str,
    *,
    template: GoTemplate | None = None,
    think: Think = None,
) -> str:
    """Return the finished prompt that asks for the text between `prompt` and `suffix`.

    1. By the template, if it has a place for a suffix. 2. By the tokens that the model's vocabulary
    has for it. Raises CapabilityMissing if it has neither.
    """
    template = template or find_template(entry)
    if template is not None and template.takes_suffix:
        work = partial(template.insert, prompt, suffix, now=time.time(), think=think)
        return strip_bos(await renderer.run_template(template.source, work), entry.info)
    if entry.info.fim_tokens is None:
        raise CapabilityMissing(f"{entry.full_name} does not support insert")
    before, after, middle = entry.info.fim_tokens
    return f"{before}{prompt}{after}{suffix}{middle}"


def strip_bos(text: str, info: ModelInfo) -> str:
    """Take BOS off a finished prompt if the engine's tokenizer puts it there."""
    return text.removeprefix(info.bos_token) if info.adds_bos and info.bos_token else text
