"""Declared behaviours of a running engine that translation must respect.

Filled by `engines/<name>.py`; read by `translate` and, for limits, by `scheduler`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from vllama.chat.engine.events import EngineUsage

MAX_KEPT = 64
T = TypeVar("T")


class SchemaStyle(StrEnum):
    """How a JSON schema is asked for in `response_format`."""

    OPENAI = "openai"  # {"type":"json_schema","json_schema":{"name":..,"schema":S}}
    JSON_OBJECT = "json_object"  # {"type":"json_object","schema":S}
    NONE = "none"  # not at all: an answer cannot be kept to a form


class Stops(StrEnum):
    """What an engine makes of stop sequences."""

    LEFT_OUT = "left_out"  # the answer ends before one, as OpenAI's API says
    KEPT = "kept"  # the answer ends after one
    UNKNOWN = "unknown"  # it does not look for them


class VectorStyle(StrEnum):
    """What `/v1/embeddings` returns for one input."""

    POOLED = "pooled"
    PER_TOKEN = "per_token"  # a list of vectors, one a token: the front pools


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """Paths of an engine's tokenizer routes and the names of their fields.

    `drops_control`: the text of control tokens is left out when tokens are turned into text.
    `special_field` asks for the tokens that the model puts around an input, None: they come anyway.
    """

    tokenize_path: str
    detokenize_path: str
    input_field: str = "input"
    tokens_field: str = "tokens"
    text_field: str = "text"
    drops_control: bool = False
    special_field: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What one engine, launched one way, takes and gives.

    `parameters` maps our sampling names (the field names of `Sampling`) to the engine's body
    fields; a name that is missing there is not sent. `model_name` is what the engine wants in
    `model`; None means that it takes any name, so the client's own is sent and echoed.
    `context_length` is tokens per request; `num_ctx` is what one request asked for where that is
    less (`context.bounded`), None in what an engine declares. `shifts_context`: when the context is
    full it drops the oldest half and goes on, so that only a limit ends an answer; `num_keep` is
    what it keeps of the beginning. `reasoning_field` is the name under which an earlier
    turn's thinking is replayed in a message; None: not at all. `takes_template_kwargs`: a body may
    carry `chat_template_kwargs` (how thinking is switched); `takes_reasoning_effort`: it may carry
    `reasoning_effort`. `roles` are those of messages that it takes, None: any. A client may not
    send any of `refused_fields` through `/v1`: llama.cpp's Python server dies of a bad `grammar`
    (signal 11). `takes_n`: it makes several choices of one request; `names_stop`: its stream tells
    which stop sequence ended it. `rerank_path`, `transcription_path` and `translation_path` are its
    routes for these, None: it has none. `silent_tool_choice` is the `tool_choice` to send with
    tools whose calls it does not parse, None: none. `completes_chats`: the front may render a chat
    and send it as a completion, where the engine's own rendering lacks something (`rendered`).
    `formats_completions`: completions too take a `response_format`, not only chats;
    `completion_schema` is the field that takes a bare schema in its place there,
    `completion_grammar` the one that takes a grammar (`gbnf`). `chats_by_completion`: a chat
    without thinking or tools is sent as a completion of a prompt that the front rendered, because
    the engine's own chats are slower, or allow more than the form that they should keep to.
    `completes`: it has a route for completions; `takes_tools`: its chats show tools to the model.
    `taken_fields` are all fields of a body that it knows, for an engine that refuses others: those
    are left out; None: it ignores what it does not know. `always` are fields sent where the request
    sets none, such as limits that it would have otherwise; a list is added to the request's. A name
    in `parameters` or `always` with a dot, `field.name`, goes as `name` into a JSON object that is
    the text of `field`. `limits` are the ranges of our sampling names where it accepts less than
    others do; `no_top_k` is how it spells that `top_k` is off. `request_id_header` is where it
    takes a request's id, whatever its
    form; None: nowhere (llama.cpp's Python server refuses one that is no UUID).
    `takes_continue_final_message`: a chat may ask by that field that the model goes on from a last
    message of the assistant; for other engines the front renders such a chat (`prefill`).
    `logged_usage` reads an answer's counts in the lines logged since it was asked for, where the
    stream carries none; they have to be there before the event with the `finish_reason` is sent.
    It returns None if the lines do not tell. `was_given_template`: it was started with the template
    that the model's files lack; for other engines the front renders those chats. `dead_words` are
    in an error by which the engine says that it has failed for good and must be started again.
    `keeps_call_schema`: where it parses tool calls and one is forced, the arguments hold to the
    tool's schema.
    """

    context_length: int
    num_ctx: int | None = None
    shifts_context: bool = False
    max_concurrency: int = 1
    model_name: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    usage_in_stream: bool = True
    parses_tools: bool = True
    splits_reasoning: bool = True
    takes_content_parts: bool = True
    takes_null_content: bool = True
    takes_developer_role: bool = True
    takes_max_completion_tokens: bool = True
    takes_nulls: bool = True
    takes_images: bool = False
    takes_logprobs: bool = True
    schema_style: SchemaStyle = SchemaStyle.OPENAI
    stops: Stops = Stops.LEFT_OUT
    vector_style: VectorStyle = VectorStyle.POOLED
    embeds: bool = False
    tokenizer: Tokenizer | None = None
    seed_bits: int = 64
    takes_audio: bool = False
    takes_prompt_lists: bool = False
    takes_template_kwargs: bool = False
    takes_reasoning_effort: bool = False
    takes_n: bool = False
    names_stop: bool = False
    rerank_path: str | None = None
    transcription_path: str | None = None
    translation_path: str | None = None
    silent_tool_choice: str | None = None
    completes_chats: bool = False
    formats_completions: bool = True
    completion_schema: str | None = None
    completion_grammar: str | None = None
    chats_by_completion: bool = False
    reasoning_field: str | None = None
    roles: frozenset[str] | None = None
    refused_fields: frozenset[str] = frozenset({"grammar"})
    completes: bool = True
    takes_tools: bool = True
    taken_fields: frozenset[str] | None = None
    always: Mapping[str, object] = field(default_factory=dict)
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    no_top_k: int = 0
    request_id_header: str | None = None
    takes_continue_final_message: bool = False
    logged_usage: Callable[[Sequence[str]], EngineUsage | None] | None = None
    was_given_template: bool = False
    keeps_call_schema: bool = True
    dead_words: tuple[str, ...] = ()

    @property
    def window(self) -> int:
        """Tokens of context that a request may use."""
        return self.context_length if self.num_ctx is None else self.num_ctx


def once_for_traits(work: Callable[[Traits], T]) -> Callable[[Traits], T]:
    """Return `work` with a memory: by identity, for traits cannot be hashed."""
    kept: dict[int, tuple[Traits, T]] = {}  # with the traits, so that their id stays theirs

    def remembered(traits: Traits) -> T:
        found = kept.get(id(traits))
        if found is None:
            if len(kept) >= MAX_KEPT:
                kept.clear()
            found = kept[id(traits)] = (traits, work(traits))
        return found[1]

    return remembered
