"""The values that the dialects meet in: what a client asked for, free of any engine's names.

Every request type is frozen; parsing makes one, planning and translation only read it. They are
structs, not dataclasses: one is made of each with every request, at a tenth of the cost. Field
names and defaults follow Ollama's API.

See docs/reference/ollama-api.md#generate, #chat, #embed, #request-options, #load-options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from vllama.chat.bodies import encode_json
from vllama.chat.inspect import Inspect
from vllama.chat.parsers.call_values import ToolCall, Toolset

MAX_MESSAGES = 10_000
"""More in one conversation are refused: each is rendered, perhaps several times, and counted."""

MAX_TOOLS = 1000

Think: TypeAlias = bool | str | None
"""On, off, a level (`low`, `medium`, `high`, `max`) or the model's default."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """The options of sampling; the defaults are Ollama's.

    `seed` -1 is random. `max_tokens` None is "no limit": the context bounds it. `num_keep` tokens
    of the prompt's beginning stay when it is cut or the context shifted, -1: all of them.
    `left_out` are parameters that nobody asked for and that are left to the server. `own` are those
    that only the model's files name: an engine that reads the files itself is not sent them.
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
    left_out: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that an engine is started with; None is "not given"."""

    num_ctx: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    use_mmap: bool | None = None
    engine: str | None = None  # not Ollama's: serve the model with this one


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One turn.

    `content` is its text. Media come as `images` (base64 of pictures or wav sound) from Ollama's
    clients, and among `parts` from OpenAI's: text and media in their order. `has_content` is false
    for a null in the place of a text, which some templates tell from an empty text. `extra`: other
    fields of the message, for the engine.
    """

    role: str
    content: str = ""
    thinking: str | None = None
    images: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_name: str | None = None
    tool_call_id: str | None = None
    parts: tuple[Mapping[str, Any], ...] = ()
    has_content: bool = True
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)

    @property
    def media(self) -> tuple[Mapping[str, Any], ...]:
        """The parts that are no text."""
        return tuple([part for part in self.parts if part["type"] != "text"])

    @property
    def media_count(self) -> int:
        """The number of its images and sounds."""
        return len(self.images) + (len(self.media) if self.parts else 0)

    def with_text(self, text: str) -> Message:
        """Return the message with another text; its media stay."""
        media = self.media
        parts = ({"type": "text", "text": text}, *media) if media else ()
        return msgspec.structs.replace(self, content=text, parts=parts, has_content=True)


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a model for text: the same for every dialect and route.

    It continues a conversation (`messages`) or a text (`prompt`): one that goes to the model as it
    is (`raw`), with `images` that only another Ollama takes, or one with a gap before `suffix`.
    `context` are the tokens of an earlier answer.

    `options` are Ollama's, for loading and for sampling. `parameters` are what the dialect's own
    fields say of `Sampling`; they win. `assumed` are the dialect's values of those that are absent.
    `response_format` has OpenAI's form. `keep_alive` is in seconds, `math.inf` for ever, None not
    given. `truncate` None: as the engine does. `template` is a Modelfile's, in place of the model's
    own. `inspect`: what to collect inside the model, and how to steer it. `extra` are the fields
    that only engines understand: they are passed on. `passed_over` names what has no effect here.
    """

    model: str
    messages: tuple[Message, ...] = ()
    prompt: str = ""
    suffix: str = ""
    raw: bool = False
    images: tuple[str, ...] = ()
    context: tuple[int, ...] = ()
    template: str | None = None
    stream: bool = True
    response_format: Mapping[str, Any] | None = None
    options: Mapping[str, object] = msgspec.field(default_factory=dict)
    parameters: Mapping[str, Any] = msgspec.field(default_factory=dict)
    assumed: Mapping[str, Any] = msgspec.field(default_factory=dict)
    keep_alive: float | None = None
    think: Think = None
    effort: bool = False  # OpenAI's field says how hard it thinks, which not all models can
    tools: tuple[dict[str, Any], ...] = ()
    customs: frozenset[str] = frozenset()  # of them, functions in the place of custom tools
    tool_choice: object = None
    parallel_tool_calls: object = None
    truncate: bool | None = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    n: int = 1
    include_usage: bool = False
    debug_render_only: bool = False
    inspect: Inspect | None = None
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)
    passed_over: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to continue, by which Ollama's clients load or unload."""
        return not (self.prompt if self.is_text else self.messages)

    @property
    def is_text(self) -> bool:
        """True if it continues a text as it is, and not a conversation."""
        return self.raw or bool(self.suffix)


PlacedSchema = tuple[str, Mapping[str, Any]]
"""A client's own JSON schema, and its place in the request."""


class PreparedChat(msgspec.Struct, frozen=True, kw_only=True):
    """A request as one engine takes it: what the body for the engine is built from.

    `tool_fields` go with the tools, such as `tool_choice`. `response_format` is spelled for the
    engine; `constrained`: it holds from the first token on, so that no thinking comes before;
    `thinks_first`: thinking comes before, in a pass of its own (`chat.thinking_pass`).
    `toolset`: what to look for in the answer. `continues`: the last message is an answer that the
    client has begun. `is_whole`: neither the client nor vllama needs the pieces. `ignored` names
    the fields of the client that the engine is not sent. `half_held` are schemas of which the
    engine is not known to hold all: of tools that must be called by name, of the text under "".
    """

    model: str
    messages: Sequence[Message] = ()
    tools: Sequence[dict[str, Any]] = ()
    customs: frozenset[str] = frozenset()
    tool_fields: Mapping[str, Any] = msgspec.field(default_factory=dict)
    response_format: Mapping[str, Any] | None = None
    constrained: bool = False
    thinks_first: bool = False
    think: Think = None
    logprobs: bool = False
    top_logprobs: int = 0
    n: int = 1
    continues: bool = False
    is_whole: bool = False
    toolset: Toolset | None = None
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    half_held: Mapping[str, PlacedSchema] = msgspec.field(default_factory=dict)

    @property
    def called(self) -> dict[str, bool]:
        """The names of the tools; true for custom tools."""
        functions = [tool.get("function") or {} for tool in self.tools]
        names = [str(function.get("name") or "") for function in functions]
        return dict.fromkeys(names, False) | dict.fromkeys(self.customs, True)


class Fitting(msgspec.Struct, frozen=True, kw_only=True):
    """The ways out of a prompt that is too long, and of a context that ends.

    `truncate`: old messages may be dropped and the prompt be cut. `shift`: the prompt may be cut in
    its middle, after `num_keep` tokens, and the answer go on when the context is full.
    """

    truncate: bool = True
    shift: bool = True
    num_keep: int = 4


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that an answer took.

    `cached_tokens` are those of the prompt that the engine took from its cache; None: it does not
    tell. `reasoning_tokens` are the thinking's. `estimated`: nobody told how many were generated,
    so the pieces of text that came were counted; a piece may stand for several tokens.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    estimated: bool = False


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request to an engine: always POST, with the fields of a JSON object or a finished body.

    Fields are encoded when the call is sent, so until then any may be added.
    """

    path: str
    fields: Mapping[str, Any] = {}
    body: bytes | None = None  # in place of fields
    content_type: str = "application/json"
    grammar: bytes = b""  # what the engine must make a grammar of, if anything

    def put(self, **fields: Any) -> Call:
        """Return the call with more fields, or others."""
        return msgspec.structs.replace(self, fields={**self.fields, **fields})

    def encode(self) -> bytes:
        """Return the body as it is sent. Raises BadRequest for what cannot be encoded."""
        return encode_json(self.fields) if self.body is None else self.body


BYTES_PER_TOKEN = 4
"""Ollama's estimate, for engines that count by themselves and at the end only."""


def count_bytes(asked: ChatRequest) -> int:
    """Return the bytes of all texts in a request; media have none. Raises BadRequest."""
    texts = [asked.prompt, asked.suffix]
    for message in asked.messages:
        texts += (message.content, message.thinking or "")
        texts += (call.text or encode_json(call.arguments).decode() for call in message.tool_calls)
    size = sum(map(_count_bytes, texts)) + BYTES_PER_TOKEN * len(asked.context)
    return size + (len(encode_json(asked.tools)) if asked.tools else 0)


def estimate_tokens(asked: ChatRequest) -> int:
    """Guess the tokens of a request, where no tokenizer is at hand. Raises BadRequest."""
    return max(1, count_bytes(asked) // BYTES_PER_TOKEN)


def guess_tokens(text: str) -> int:
    """Guess the tokens of a text, where no tokenizer is at hand."""
    return max(1, _count_bytes(text) // BYTES_PER_TOKEN)


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
