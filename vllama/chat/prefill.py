"""An answer that the client has begun: a last message of the assistant, which the model continues.

Anthropic's guides call it prefill, transformers `continue_final_message`. Ollama's own renderers
leave such a message open too (model/renderers), and its Go templates join neighbours of one role
with an empty line between them (`collate`), which is done here as well: many Jinja templates refuse
two answers in a row. A message with tool calls is a whole turn and is not continued.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from vllama.base.errors import BadRequest
from vllama.chat.engine.traits import Traits
from vllama.chat.parsers.thinking import ends_open, thinking_opening
from vllama.chat.request import Message, Think
from vllama.chat.roles import join_messages
from vllama.chat.templates.template_style import Style

MARK = "vllama0continues0here"
"""Stands for the text of an answer to continue: nothing in it that a template would change."""


def join_answers(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages with the answers at their end in one; an empty one is left out."""
    start = end = len(messages)
    while start and _is_answer(messages[start - 1]):
        start -= 1
    while end > max(start, 1):
        last = messages[end - 1]
        if last.content or last.thinking or last.media_count:
            break
        end -= 1
    if end - start < 2:
        return messages[:end] if end < len(messages) else messages
    return [*messages[:start], join_messages(messages[start:end])]


def is_continued(messages: Sequence[Message]) -> bool:
    """Tell whether the last message is an answer to go on from."""
    if not messages or not _is_answer(messages[-1]):
        return False
    return bool(messages[-1].content or messages[-1].thinking)


async def render_continued(
    messages: Sequence[Message], render: Callable[[Sequence[Message], bool], Awaitable[str]]
) -> str:
    """Return the prompt that ends within the last message, an answer, for the model to go on.

    `render` makes the prompt of messages with a template; the flag asks for the beginning of a new
    answer at its end. It renders a mark in the place of the last text, and the end of the turn
    after the mark is cut off; so nothing is lost that a template trims off a text or looks for in
    it. Where the mark does not come out (a template that leaves a last answer out, or refuses it),
    and for a text that begins with its thinking, the text follows what begins any answer. Raises
    BadRequest as `render` does.
    """
    last, text = messages[-1], messages[-1].content
    if not thinking_opening(text):
        with suppress(BadRequest):
            marked = await render((*messages[:-1], replace(last, content=MARK)), False)
            head, mark, _ = marked.rpartition(MARK)
            if mark:
                return head + text
    prompt = await render(messages[:-1], True)
    if ends_open(prompt):  # the template has opened the thinking already
        text = text.lstrip().removeprefix(thinking_opening(text)).lstrip("\n")
    return prompt + text


def _is_answer(message: Message) -> bool:
    return message.role == "assistant" and not message.tool_calls


def should_render(
    messages: Sequence[Message],
    think: Think,
    traits: Traits,
    style: Style,
    *,
    plain: bool = False,
) -> bool:
    """Tell whether vllama should render a chat: the engine would do it wrongly, or slower.

    `plain`: its answer is nothing but text, without thinking or calls.
    """
    if plain and traits.chats_by_completion:
        return True
    if is_continued(messages) and traits.completes and not traits.takes_continue_final_message:
        return True
    if not traits.completes_chats:
        return False
    switched = think is not None and bool(style.switches)
    return switched or any(message.tool_calls for message in messages)
