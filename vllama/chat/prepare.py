"""A request made fit for one engine and one template: the pure part of `routes.prompts.prepare`."""

from __future__ import annotations

from msgspec.structs import replace

from vllama.chat.conversation import (
    fold_roles,
    has_tools,
    is_continued,
    join_answers,
    shorten_ids,
    write_tools_as_text,
)
from vllama.chat.engine.fields import make_response_format
from vllama.chat.engine.request_fields import pass_fields
from vllama.chat.engine.traits import Traits
from vllama.chat.request import ChatRequest, PreparedChat
from vllama.chat.templates.template_style import Style, choose_think
from vllama.chat.tool_requests import place_tools


def prepare_chat(
    asked: ChatRequest,
    traits: Traits,
    style: Style | None,
    *,
    n: int = 1,
    renders: bool = False,
) -> PreparedChat:
    """Return a request as the engine of `traits` takes it.

    `style` is what the template in force tells, None if another server keeps it to itself; `n`
    is how many choices the engine is asked for. `renders`: vllama renders the prompt, with a
    Modelfile's template. Raises BadRequest, CapabilityMissing.
    """
    known = {*traits.passed_fields, *traits.refused_fields, traits.completion_schema}
    extra, ignored = pass_fields(asked.extra, known) if asked.extra else ({}, ())
    chat = PreparedChat(
        model=asked.model,
        messages=asked.messages,
        response_format=make_response_format(asked.response_format, traits),
        logprobs=asked.logprobs,
        top_logprobs=asked.top_logprobs,
        n=n,
        extra=extra,
        ignored=ignored,
    )
    chat = place_tools(chat, asked, traits, style, renders=renders)
    messages = chat.messages
    if style is not None and has_tools(messages):
        if style.short_ids:
            messages = shorten_ids(messages)
        elif not (style.takes_tools or style.keeps_history or chat.tools):
            messages = write_tools_as_text(messages)
    # An engine that tells thinking apart lets the grammar begin after it; another one, and any
    # engine in a completion, lets it begin at the start, so that the model cannot think first.
    splits = traits.splits_reasoning and not (renders and traits.formats_completions)
    constrained = chat.response_format is not None and not splits
    if constrained and traits.completes_chats and has_tools(messages):
        messages = write_tools_as_text(messages)
    messages = join_answers(messages)
    if traits.folds_roles:
        messages = fold_roles(messages)
    return replace(
        chat,
        messages=messages,
        constrained=constrained,
        think=False if constrained else choose_think(asked.think, style),
        continues=is_continued(messages),
    )
