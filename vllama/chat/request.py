"""The values that the dialects meet in: what a client asked for, free of any engine's names.

Every request type is frozen; parsing makes one, planning and translation only read it. They are
structs, not dataclasses: one is made of each with every request, at a tenth of the cost. Field
names and defaults follow Ollama's API.

See docs/reference/ollama-api.md#generate, #chat, #embed, #request-options, #load-options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

Format: TypeAlias = Literal["json"] | dict[str, object] | None
"""Constrained output: none, any JSON, or a JSON schema."""

Think: TypeAlias = bool | str | None
"""On, off, a level (`low`, `medium`, `high`, `max`) or the model's default."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen; the defaults are Ollama's.

    `seed` -1 is random. `max_tokens` None is "no limit": the context bounds it. `num_keep` tokens
    of the prompt's beginning stay when it is cut or the context shifted, -1: all of them.
    """

    temperature: float = 0.8
    top_p: float = 0.9
    top_k: int = 40
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = -1
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    num_keep: int = 4


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine must be started with; None is "not given"."""

    num_ctx: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    use_mmap: bool | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a model asked for. `id` is "" when the client gave none."""

    id: str = ""
    name: str
    arguments: dict[str, object] = msgspec.field(default_factory=dict)
    index: int = 0


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One turn. `images` are base64 (images, or wav audio)."""

    role: str
    content: str = ""
    thinking: str | None = None
    images: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_name: str | None = None
    tool_call_id: str | None = None


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /api/chat`. `keep_alive` in seconds, `math.inf` for ever, None not given."""

    model: str
    messages: tuple[Message, ...] = ()
    stream: bool = True
    format: Format = None
    options: Mapping[str, object] = msgspec.field(default_factory=dict)
    keep_alive: float | None = None
    think: Think = None
    tools: tuple[dict[str, object], ...] = ()
    truncate: bool = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    debug_render_only: bool = False


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /api/generate`. `system` and `template` None: the model's own."""

    model: str
    prompt: str = ""
    suffix: str = ""
    system: str | None = None
    template: str | None = None
    context: tuple[int, ...] = ()
    raw: bool = False
    images: tuple[str, ...] = ()
    stream: bool = True
    format: Format = None
    options: Mapping[str, object] = msgspec.field(default_factory=dict)
    keep_alive: float | None = None
    think: Think = None
    truncate: bool = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    debug_render_only: bool = False


class EmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /api/embed`, or with `legacy` `POST /api/embeddings`. `dimensions` 0: all."""

    model: str
    inputs: tuple[str, ...] = ()
    truncate: bool = True
    dimensions: int = 0
    keep_alive: float | None = None
    options: Mapping[str, object] = msgspec.field(default_factory=dict)
    legacy: bool = False


class Fitting(msgspec.Struct, frozen=True, kw_only=True):
    """What may be done about a prompt that is too long, and at the context's end.

    `truncate`: old messages may be dropped and the prompt be cut. `shift`: the prompt may be cut in
    its middle, after `num_keep` tokens, and the answer go on when the context is full.
    """

    truncate: bool = True
    shift: bool = True
    num_keep: int = 4


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that an answer took.

    `cached_tokens` are those of the prompt that the engine took from its cache; None: it does not
    tell. `estimated`: nobody told how many were generated, so the pieces of text that came were
    counted; a piece may stand for several tokens.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    estimated: bool = False


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request to an engine: always POST, JSON unless it says otherwise."""

    path: str
    body: bytes
    content_type: str = "application/json"
