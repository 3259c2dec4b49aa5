"""Replies as the routes make them, for tests that feed one with an engine's bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllama.chat.engine.traits import Traits
from vllama.chat.filters import compose_filters
from vllama.chat.reply import Reply
from vllama.chat.stops import StopFilter, make_stop_filter
from vllama.chat.writer import ReplyOptions, Writer
from vllama.dialects.ollama.write import ChatWriter, GenerateWriter, OllamaWriter
from vllama.dialects.openai.choices import NthChoice
from vllama.dialects.openai.write import StreamWriter, WholeWriter


def ollama(
    writer: type[OllamaWriter],
    *,
    traits: Traits,
    think: bool | None = None,
    think_opened: bool = False,
    tools: Any = False,
    stop: Sequence[str] = (),
    prompt_tokens: int | None = None,
    max_tokens: int | None = None,
    keeps_thinking_end: bool = False,
    **options: Any,
) -> Reply:
    """`think`: None the model cannot, True its thinking is shown, False it is hidden."""
    filters = compose_filters(
        traits,
        tools=tools,
        thinks=think is not None,
        think_opened=think_opened,
        keeps_thinking_end=keeps_thinking_end,
    )
    return Reply(
        writer(hide_thinking=think is False, **options),
        filters,
        stops=make_stop_filter(stop, traits),
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
    )


def chat_reply(**options: Any) -> Reply:
    """`POST /api/chat`."""
    return ollama(ChatWriter, **options)


def generate_reply(**options: Any) -> Reply:
    """`POST /api/generate`."""
    return ollama(GenerateWriter, **options)


def openai_reply(
    writer: Writer,
    traits: Traits,
    *,
    think: bool = False,
    think_opened: bool = False,
    prompt_tokens: int | None = None,
    from_completion: bool = False,
    stops: StopFilter | None = None,
    tools: Any = False,
    stop: Sequence[str] = (),
    max_tokens: int | None = None,
) -> Reply:
    """A reply of any dialect that becomes a chat request in OpenAI's form."""
    filters = compose_filters(
        traits,
        tools=tools,
        thinks=think,
        think_opened=think_opened,
        from_completion=from_completion,
    )
    return Reply(
        writer,
        filters,
        stops=stops or make_stop_filter(stop, traits),
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
    )


def streamed(
    options: ReplyOptions, traits: Traits, *, part: NthChoice | None = None, **more: Any
) -> Reply:
    """`POST /v1/chat/completions` with `stream`."""
    return openai_reply(StreamWriter(options, part), traits, **more)


def collected(options: ReplyOptions, traits: Traits, **more: Any) -> Reply:
    """`POST /v1/chat/completions` without."""
    return openai_reply(WholeWriter(options), traits, **more)
