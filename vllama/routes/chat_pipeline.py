"""A conversation of a `/v1` client on its way to an engine: adapted, counted, cut, rendered.

Every dialect there becomes a chat request in OpenAI's form first. A prompt that `Prompt` finishes
itself, with a Modelfile's Go template or because the engine would render it wrongly, is sent as a
completion instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from vllama.chat.engine.request import CHAT_PATH, make_rendered_call
from vllama.chat.engine.traits import Traits
from vllama.chat.filters import StopFilter, compose_filters, make_stop_filter
from vllama.chat.go_template_prompt import GoTemplate
from vllama.chat.prefill import ends_in_answer
from vllama.chat.reply import Reply, ReplyOptions, Writer
from vllama.chat.request import Call, Fitting, Sampling
from vllama.chat.template_style import Style, read_style
from vllama.chat.tool_requests import leaves_choice
from vllama.dialects.openai.read import adapt_chat
from vllama.dialects.openai.values import keep_messages, read_conversation
from vllama.errors import CapabilityMissing
from vllama.models.types import Bundle, Capability, Format
from vllama.rendering.renderer import Renderer
from vllama.routes.catalog import Entry
from vllama.routes.prompt import FITTING, Prompt
from vllama.routes.prompt_templates import find_template
from vllama.upstream.pool import Upstream


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent to the engine, and what to expect of its answer."""

    call: Call
    options: ReplyOptions
    prompt: Prompt
    thinks: bool

    def reply(self, writer: Writer, *, stops: StopFilter | None = None) -> Reply:
        """Return the reply that `writer` writes; `stops` instead of those that were asked for."""
        prompt, options = self.prompt, self.options
        traits = prompt.traits
        filters = compose_filters(
            traits,
            tools=options.tools,
            thinks=self.thinks,
            think_opened=prompt.opens_thinking and not options.constrained,
            from_completion=prompt.finished,
        )
        return Reply(
            writer,
            filters,
            stops=stops or make_stop_filter(options.stop, traits),
            prompt_tokens=prompt.tokens,
            max_tokens=options.max_tokens,
        )


async def prepare_turn(
    entry: Entry,
    body: Mapping[str, Any],
    renderer: Renderer,
    upstream: Upstream,
    traits: Traits,
    *,
    defaults: Sampling,
    fitting: Fitting = FITTING,
) -> Turn:
    """Make a chat request in OpenAI's form fit for the engine.

    Raises BadRequest, ContextOverflow, and CapabilityMissing for tools that a model which knows
    none may call or not: only a call that it must make can be had of it, by a schema.

    `fitting` tells what may be done about a conversation that is too long.
    """
    info, model = entry.info, str(body["model"])
    template = find_template(entry)
    style = find_style(entry, template)
    if style is not None and not style.takes_tools and leaves_choice(body):
        raise CapabilityMissing(f"{entry.full_name} does not support tools")
    data, options = adapt_chat(body, traits, model=model, defaults=defaults, style=style)
    # with some engines only their own chat route holds an answer to a form, and to a forced call
    held = options.constrained or bool(body.get("response_format"))
    by_text = held and traits.formats_completions and not options.tools
    own = template if by_text or not held else None
    prompt = Prompt(info, renderer, upstream, traits, own, fitting)
    goes_on = ends_in_answer(body.get("messages"))
    may_be_long = len(data) >= traits.window  # a token is one byte at least
    if prompt.matters or goes_on or may_be_long:
        turns, tools = read_conversation(data)
        kept = await prompt.fit(
            turns,
            tools,
            think=options.think,
            # an answer that was begun is only continued there, whatever else is asked for
            chat_only=options.chat_only and not (by_text or (goes_on and not held)),
        )
        await prompt.shorten()
        limit = prompt.limit(options.max_tokens)
        if not fitting.shift and limit != options.max_tokens:  # it could not be told before
            given = dict(body) | {"max_completion_tokens": None, "max_tokens": limit}
            data, _ = adapt_chat(given, traits, model=model, defaults=defaults, style=style)
        options = msgspec.structs.replace(options, max_tokens=limit)
        if prompt.dropped:
            data = keep_messages(data, turns, kept)
    call = Call(path=CHAT_PATH, body=data)
    if prompt.finished:
        call = make_rendered_call(data, prompt.sent, traits)
    return Turn(
        call=call,
        options=options,
        prompt=prompt,
        thinks=Capability.THINKING in info.capabilities,
    )


def find_style(entry: Entry, template: GoTemplate | None) -> Style | None:
    """Return what the template in force tells, None if another server keeps it to itself."""
    if template is not None:
        return Style(takes_tools=template.takes_tools)
    if entry.bundle.format is Format.REMOTE and not entry.info.chat_template:
        return None
    return read_style(entry.info.chat_template)


def add_own_messages(body: dict[str, Any], bundle: Bundle) -> dict[str, Any]:
    """Put the model's own SYSTEM and MESSAGEs before the conversation, as on Ollama's routes."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not (bundle.system or bundle.messages):
        return body
    own: list[object] = [dict(item) for item in bundle.messages]
    first = messages[0]
    brings_one = isinstance(first, dict) and first.get("role") in ("system", "developer")
    if bundle.system and not brings_one:
        own.insert(0, {"role": "system", "content": bundle.system})
    return body | {"messages": [*own, *messages]}
