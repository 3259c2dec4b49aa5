"""A conversation, arranged as the model's template can take it: roles, calls, an answer begun.

Coding agents send several system messages, some of them after the user's, and two messages of one
role in a row. Templates that refuse this are common: Qwen 3.5 wants one system message at the
beginning, Gemma and Mistral want user and assistant in turn, early Gemmas know no system at all.
Ollama joins neighbors for every template (template/template.go `collate`); vllama does so only
where a template has refused the conversation, because others make use of its order.

An answer that the client has begun is a last message of the assistant, which the model continues.
Anthropic's guides call it prefill, transformers `continue_final_message`. Ollama's own renderers
leave such a message open too (model/renderers), and its Go templates join neighbors of one role,
which is done here as well: many Jinja templates refuse two answers in a row. A message with tool
calls is a whole turn and is not continued.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from vllama.base.errors import BadRequest
from vllama.chat.engine.traits import Traits
from vllama.chat.parsers.call_values import ToolCall, object_of, short_id
from vllama.chat.parsers.thinking import find_open, thinking_opening
from vllama.chat.request import Message

_SYSTEM = ("system", "developer")


def find_last_turn(roles: Sequence[str]) -> int:
    """Return where the user's last turn begins; an answer that is begun may follow it."""
    marks = "".join("a" if role == "assistant" else "u" for role in roles)
    return len(marks.rstrip("a").rstrip("u"))


def drop_past_media(
    messages: Sequence[Message], traits: Traits
) -> tuple[tuple[Message, ...], list[str]]:
    """Return the messages without media that the model does not take, and the places of those.

    Those of the user's last turn stay, to be refused: it is asked about them.
    """
    takes = {"text": True, "image_url": traits.takes_images, "input_audio": traits.takes_audio}
    kept, named = list(messages), list[str]()
    for number in range(find_last_turn([message.role for message in messages])):
        parts = tuple([part for part in kept[number].parts if takes.get(part["type"], True)])
        if len(parts) < len(kept[number].parts):
            kept[number] = replace(kept[number], parts=parts)
            named.append(f"messages[{number}] media")
    return tuple(kept), named


def join_messages(turn: Sequence[Message], separator: str = "\n\n") -> Message:
    """Return the messages of a turn as one: all at once, since there may be thousands."""
    last = turn[-1]
    if len(turn) == 1:
        return last
    return replace(
        last,
        parts=tuple(part for message in turn for part in message.parts),
        thinking=next((one.thinking for one in turn if one.thinking), last.thinking),
        images=tuple(image for message in turn for image in message.images),
        tool_calls=tuple(call for message in turn for call in message.tool_calls),
        extra={key: value for message in turn for key, value in message.extra.items()},
    ).with_text(separator.join(one.content for one in turn if one.content))


def fold_roles(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with one system message, at the beginning, and with neighbors joined.

    Results of tools stay apart, and so does what follows an answer with calls.
    """
    system = [replace(message, role="system") for message in messages if message.role in _SYSTEM]
    turns = [system] if system else []
    for message in messages:
        if message.role in _SYSTEM:
            continue
        before = turns[-1][-1] if turns else None
        joins = before is not None and before.role == message.role and message.role != "tool"
        if before is not None and joins and not before.tool_calls:
            turns[-1].append(message)
        else:
            turns.append([message])
    return tuple(map(join_messages, turns))


def move_system_to_user(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with a leading system message as the beginning of the user's first."""
    system, *rest = messages
    if system.role != "system":
        return tuple(messages)
    system = replace(system, role="user")
    if rest and rest[0].role == "user":
        return (join_messages((system, rest[0])), *rest[1:])
    return (system, *rest)


def arrange_roles(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Yield the conversations to try in place of one that a template has refused, best first."""
    folded = fold_roles(messages)
    if folded != tuple(messages):
        yield folded
    if folded and folded[0].role == "system":
        yield move_system_to_user(folded)


MAX_WAITING = 256
"""Calls of which a result may be; it is looked for among all of them."""


def has_tools(messages: Sequence[Message]) -> bool:
    """Tell whether a history has calls or results in it."""
    return any(message.tool_calls or _is_result(message) for message in messages)


def write_tools_as_text(
    messages: Sequence[Message], *, tagged: bool = False
) -> tuple[Message, ...]:
    """Rewrite calls and results as text: templates that know no tools drop or refuse them.

    `tagged`: calls as the guide to tools asks for them (`prepare`); else in words: models repeat
    tags they see. Results that follow one another, and what the user says after them, become one
    turn: many templates refuse two turns of one role.
    """
    turns: list[list[Message]] = []
    names: dict[str, str] = {}
    after_result = False
    for message in messages:
        if message.tool_calls:
            names |= {call.id: call.name for call in message.tool_calls}
            written = (_write_call(call, tagged=tagged) for call in message.tool_calls)
            text = "\n".join(filter(None, (message.content, *written)))
            message = replace(message, tool_calls=()).with_text(text)
        is_result = _is_result(message)
        if is_result:
            name = message.tool_name or names.get(message.tool_call_id or "", "")
            text = f"Result of {name}: {message.content}" if name else f"Result: {message.content}"
            message = Message(role="user", images=message.images, parts=message.media)
            message = message.with_text(text)
        if after_result and message.role == "user":
            turns[-1].append(message)
        else:
            turns.append([message])
        after_result = is_result
    return tuple(join_messages(turn, "\n") for turn in turns)


def shorten_ids(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Write the ids of calls as Mistral's templates want them: nine letters or digits.

    Calls without an id get one, which their results then bear.
    """
    out: list[Message] = []
    waiting: list[tuple[str, str]] = []  # (id, name) of calls without a result
    for number, message in enumerate(messages):
        if message.tool_calls:
            calls = tuple(
                replace(call, id=short_id(call.id or f"{number} {call.index} {call.name}"))
                for call in message.tool_calls
            )
            waiting += [(call.id, call.name) for call in calls]
            del waiting[:-MAX_WAITING]
            message = replace(message, tool_calls=calls)
        elif message.role == "tool":
            identity = short_id(message.tool_call_id) if message.tool_call_id else ""
            found = next(
                (one for one in waiting if identity == one[0] or message.tool_name == one[1]),
                waiting[0] if waiting and not identity else (identity or short_id(""), ""),
            )
            if found in waiting:
                waiting.remove(found)
            message = replace(message, tool_call_id=found[0])
        out.append(message)
    return tuple(out)


def _is_result(message: Message) -> bool:
    return message.role in ("tool", "function")


def _write_call(call: ToolCall, *, tagged: bool) -> str:
    arguments: object = object_of(call.text) if call.text else call.arguments
    if arguments is None:  # what a client sent need not be an object
        arguments = call.text
    if not tagged:
        return f"(Called {call.name} with {msgspec.json.encode(arguments).decode()})"
    written = msgspec.json.encode({"name": call.name, "arguments": arguments}).decode()
    return f"<tool_call>\n{written}\n</tool_call>"


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
    if find_open(prompt):  # the template has opened the thinking already
        text = text.lstrip().removeprefix(thinking_opening(text)).lstrip("\n")
    return prompt + text


def _is_answer(message: Message) -> bool:
    return message.role == "assistant" and not message.tool_calls


def should_render(messages: Sequence[Message], traits: Traits, *, plain: bool = False) -> bool:
    """Tell whether vllama should render a chat: the engine would do it wrongly, or slower.

    `plain`: its answer is nothing but text, without thinking or calls.
    """
    if plain and traits.chats_by_completion:
        return True
    return is_continued(messages) and traits.completes and not traits.takes_continue_final_message
