"""Inputs and outputs of a running engine: declared by its adapter, respected by the pipeline."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from vllama.chat.engine.request_fields import HARMLESS
from vllama.chat.grammar_schema import Compiler
from vllama.chat.inspect import Inspector
from vllama.chat.request import Call

MAX_KEPT = 64
T = TypeVar("T")


class SchemaStyle(StrEnum):
    """Form of a JSON schema in `response_format`."""

    OPENAI = "openai"  # {"type":"json_schema","json_schema":{"name":..,"schema":S}}
    JSON_OBJECT = "json_object"  # {"type":"json_object","schema":S}
    NONE = "none"  # it cannot keep an answer to a format


class Stops(StrEnum):
    """Treatment of stop sequences by an engine."""

    LEFT_OUT = "left_out"  # the answer ends before one, as in OpenAI's API
    KEPT = "kept"  # the answer ends with one
    UNKNOWN = "unknown"  # it does not look for them


class VectorStyle(StrEnum):
    """Form of one input's result from `/v1/embeddings`."""

    POOLED = "pooled"
    PER_TOKEN = "per_token"  # one vector for each token, which vllama pools


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """Paths of an engine's tokenizer routes and the names of their fields.

    `drops_control`: detokenizing leaves out the text of control tokens. `special_field` asks for
    the tokens that the model puts around an input; None: they are always there. `messages_field`
    takes a conversation in place of an input, which is rendered and only counted here.
    """

    tokenize_path: str
    detokenize_path: str
    input_field: str = "input"
    text_field: str = "text"
    drops_control: bool = False
    special_field: str | None = None
    messages_field: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A slot as an engine reports it: `mark` is that of its last request, `tokens` what it holds.

    `last_task` grows from request to request.
    """

    number: int
    mark: int
    tokens: int
    is_idle: bool
    last_task: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRoutes:
    """Routes with which an engine saves a slot to a file and restores it.

    `act_path` has `{slot}` and `{action}`, which is "save" or "restore"; the body names the file.
    `slot_field` of a request names the slot to use. `mark_field` is one that the engine tells of a
    slot's last request and makes nothing of, so that a number in it tells which request that was.
    `read` reads the answer of `list_path`. `fit` rewrites the file of a slot for an engine with
    so many slots. `make_room` has the engine move what a slot holds into its own cache.
    """

    list_path: str
    act_path: str
    slot_field: str
    mark_field: str
    read: Callable[[bytes], Sequence[Slot]]
    fit: Callable[[Path, int], None]
    make_room: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Inputs and outputs of one engine, launched one way; vllama supplies the rest.

    The defaults describe a complete OpenAI server. What only one engine wants in a request is the
    business of its `finish_body`.
    """

    # -- capacity and names --
    context_length: int  # tokens of one request
    # what one request asked for where that is less; never set by an adapter (`chat.engine.context`)
    num_ctx: int | None = None
    # when the context is full it drops the oldest half and goes on: only a limit ends an answer
    shifts_context: bool = False
    max_concurrency: int = 1  # requests that it answers at once; vllama queues the others
    # what it wants in `model`; None: it accepts any name, so the client's is sent and echoed
    model_name: str | None = None

    # -- parameters of a request --
    # our names (the fields of `chat.request.Sampling`) and its own; only these are sent
    parameters: Mapping[str, str] = field(default_factory=dict)
    # changes the body of a chat or a completion just before it is sent. Pure; may change and return
    # the dict that it is given. `engines.request_body` has the common steps.
    finish_body: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    # it takes the sampling that the model's files name from there (vLLM: generation_config.json)
    reads_sampling: bool = False
    seed_bits: int = 64
    # the same request with the same seed gets the same answer, so that it can be asked for again
    replays: bool = False
    takes_nulls: bool = True  # a field, or the content of a message, may be null
    takes_n: bool = False  # it makes several choices of one request
    takes_logprobs: bool = True
    takes_reasoning_effort: bool = False
    takes_template_kwargs: bool = False  # `chat_template_kwargs`, by which thinking is switched
    # fields of a request, besides OpenAI's, that a client may use: known to be harmless
    passed_fields: frozenset[str] = HARMLESS
    # a client may not send these through /v1: llama.cpp's Python server crashes on a bad grammar
    refused_fields: frozenset[str] = frozenset({"grammar"})
    # fields that make it stream in larger pieces, each with the usage so far (a client may leave)
    whole_fields: Mapping[str, Any] = field(default_factory=dict)
    request_id_header: str | None = None  # where it takes an id of any form

    # how it shows what is inside the model; None: it does not
    inspector: Inspector | None = None

    # -- messages --
    roles: frozenset[str] | None = None  # None: any; `developer` becomes `system` if need be
    folds_roles: bool = False  # its template refuses some orders of roles; learned by a refusal
    takes_content_parts: bool = True  # text may come in parts
    takes_images: bool = False
    takes_audio: bool = False
    reasoning_field: str | None = None  # where a message carries an earlier turn's thinking
    # a chat may ask by that field to go on from a last message of the assistant
    takes_continue_final_message: bool = False
    # it was started with the template that the model's files lack, so vllama need not render
    was_given_template: bool = False

    # -- tools and formats --
    takes_tools: bool = True  # its chats show tools to the model
    takes_calls: bool = True  # its chats take earlier calls; else they are written as text
    # fields for which it leaves special tokens in the text: sent where vllama looks for calls or
    # thinking, as many families mark these by such tokens
    fields_for_marks: Mapping[str, Any] = field(default_factory=dict)
    parses_tools: bool = True  # it finds the calls in the answer; else vllama does
    keeps_call_schema: bool = True  # the arguments of a forced call hold to the tool's schema
    # the `tool_choice` to send with tools whose calls it does not parse, None: none
    silent_tool_choice: str | None = None
    schema_style: SchemaStyle = SchemaStyle.OPENAI
    # what makes grammars of schemas there; None: not known, so that they are sent as they are
    schema_compiler: Compiler | None = None
    # pattern of a line that it logs when it could not, and generates freely
    free_line: str = ""
    takes_structural_tags: bool = False  # the type `structural_tag` of `response_format`
    formats_completions: bool = True  # completions take a format too, not only chats
    # the field of a completion that takes a bare schema, not `response_format`
    completion_schema: str | None = None

    # -- routes --
    completes: bool = True  # it has a route for completions
    # its `/v1` is OpenAI's in full, and a response that does not stream ends with its client:
    # completions are passed on as they are, prompts that are too long are refused (decision 39)
    openai_in_full: bool = False
    # it is an Ollama or a vllama: its completions are chats, its `/api/generate` takes raw prompts
    generates: bool = False
    takes_prompt_lists: bool = False
    # plain chats are better rendered here and sent as completions: its own chats are slower, or
    # do not keep to a format
    chats_by_completion: bool = False
    tokenizer: Tokenizer | None = None
    count_tokens_path: str | None = None  # Anthropic's; it renders and counts a conversation
    # by which a LoRA adapter (`lora_name`, `lora_path`) is loaded beside others, and unloaded
    adapter_paths: tuple[str, str] | None = None
    rerank_path: str | None = None
    transcription_path: str | None = None
    translation_path: str | None = None
    speech_path: str | None = None
    images_path: str | None = None
    image_edits_path: str | None = None
    slots: SlotRoutes | None = None  # None: it saves no slots, or was not started to
    lists_slots: SlotRoutes | None = None  # None: it does not list them
    salt_field: str | None = None  # a word there keeps what it caches from requests with another
    metrics_path: str | None = None  # where it shows metrics in the text format of Prometheus

    # -- answers --
    usage_in_stream: bool = True
    splits_reasoning: bool = True  # thinking is in a field of its own; else vllama splits it off
    # whether it was told to do these is not known, so vllama looks into the text as well
    may_leave_calls: bool = False
    may_leave_thinking: bool = False
    stops: Stops = Stops.LEFT_OUT
    names_stop: bool = False  # the stream names the stop sequence that ended it
    vector_style: VectorStyle = VectorStyle.POOLED
    # words of an error that mean that it has failed for good and must be started again
    dead_words: tuple[str, ...] = ()
    # pattern of a line that it logs when it fails so; requests sent later are not to blame
    dead_line: str = ""
    # words of a refusal, and the traits that hold from then on; the request is sent again
    when_refused: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def window(self) -> int:
        """Tokens of context that a request may use."""
        return self.context_length if self.num_ctx is None else self.num_ctx


# of templates on the hub: Qwen 3.5; Gemma, Mistral, Llama 2; Gemma 2
_ROLES_REFUSED = re.compile(
    r"system message must|roles must alternate|system role (?:is )?not supported", re.IGNORECASE
)


def learn_from_refusal(traits: Traits, message: str) -> Traits | None:
    """Return the traits that an engine's refusal tells of, None if it tells nothing new."""
    for words, learned in traits.when_refused.items():
        if words in message:
            others = {key: value for key, value in traits.when_refused.items() if key != words}
            return replace(traits, **learned, when_refused=others)
    if not traits.folds_roles and _ROLES_REFUSED.search(message):
        return replace(traits, folds_roles=True)
    return None


def remember_for_traits(work: Callable[[Traits], T]) -> Callable[[Traits], T]:
    """Return `work` with a memory: by identity, for traits cannot be hashed."""
    kept: dict[int, tuple[Traits, T]] = {}  # with the traits, so that their id stays theirs

    def remember(traits: Traits) -> T:
        found = kept.get(id(traits))
        if found is None:
            if len(kept) >= MAX_KEPT:
                kept.clear()
            found = kept[id(traits)] = (traits, work(traits))
        return found[1]

    return remember
