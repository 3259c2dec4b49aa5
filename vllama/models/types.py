"""Values that describe models on disk and at a source; no I/O here.

The only part of `models` that `engines` may import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from vllama.base.errors import SourceError
from vllama.models.settings import NOTHING, ModelSettings


class Format(StrEnum):
    """File formats that an engine may serve."""

    GGUF = "gguf"
    SAFETENSORS = "safetensors"
    REMOTE = "remote"  # files that another server holds


class Capability(StrEnum):
    """Capability of a model, in Ollama's words (`/api/show`, `/api/tags`)."""

    COMPLETION = "completion"
    TOOLS = "tools"
    INSERT = "insert"
    VISION = "vision"
    EMBEDDING = "embedding"
    THINKING = "thinking"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file at a source: `path` inside its repository, `sha256` if the source tells it."""

    path: str
    size_bytes: int
    etag: str | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One servable form of a model at a source: a file set, its format and quantization.

    `label` is the tag of its display name. A projector comes last in `files`.
    """

    format: Format
    quant: str | None
    files: tuple[SourceFile, ...]
    label: str = "latest"

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of its files in their repository."""
        return tuple(file.path for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Sum of all its files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model's own metadata (from its GGUF header or `config.json`).

    `metadata` holds the raw key/values under their GGUF names (arrays as lists), for `/api/show`.
    `key_length`/`value_length` are per attention head, in elements.
    `weights_bytes` is the size of all tensors, with the `beside_bytes` of a projector and of a
    draft model, whose `draft_kind` is llama.cpp's word for how it drafts ("head" for any head among
    safetensors).
    `chat_template` is the one in its files, or that of `template_family`, which was recognized by
    its tokens where the files have none (`chat_templates`); `turn_end` is then the token that ends
    an answer, and its number. `mistral_weights`: config and weights are in Mistral's own format;
    `mistral_tokenizer`: so is the tokenizer, which makes the prompts, so that there is no template.
    `fim_tokens` are the texts before a prompt, before
    what comes after the gap, and before what fills it.
    `sampling` are the parameters that its own files name, as Ollama's options. `special_tokens`
    are the texts of those that engines strip (of a folder; a GGUF's are in its metadata).
    """

    architecture: str
    parameter_count: int | None = None
    quant: str | None = None
    context_length: int | None = None
    embedding_length: int | None = None
    block_count: int | None = None
    head_count: int | None = None
    head_count_kv: tuple[int, ...] | None = None
    key_length: int | None = None
    value_length: int | None = None
    sliding_window: int | None = None
    vocab_size: int | None = None
    weights_bytes: int = 0
    beside_bytes: int = 0
    draft_kind: str | None = None
    chat_template: str | None = None
    template_family: str | None = None
    turn_end: tuple[str, int] | None = None
    mistral_weights: bool = False
    mistral_tokenizer: bool = False
    bos_token: str | None = None
    eos_token: str | None = None
    fim_tokens: tuple[str, str, str] | None = None
    adds_bos: bool = False
    capabilities: frozenset[Capability] = frozenset({Capability.COMPLETION})
    license: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)
    special_tokens: tuple[str, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=dict)
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    # LoRA adapters on this disk that share its engine (`Library.plan_info`), their largest rank
    lora_count: int = 0
    lora_rank: int = 0

    @property
    def cached_heads(self) -> tuple[int, ...]:
        """The heads in the cache of each layer; empty if the model does not say."""
        layers = self.block_count or 0
        heads = self.head_count_kv or ((self.head_count,) if self.head_count else ())
        return heads if len(heads) == layers else heads[:1] * layers

    @property
    def ranks(self) -> bool:
        """True if it scores documents (4 is "rank" of llama.cpp's `llama_pooling_type`)."""
        return self.metadata.get(f"{self.architecture}.pooling_type") == 4


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamModel:
    """Facts about a model that another server runs, from its settings or from the server.

    `servers` are those that have it, as `UpstreamSettings.id`, and `ids` its names there where they
    may differ from its `hub_id`. `owner` is the `owned_by` of its row in the
    server's list, by which the programs of servers can be told. `tool_calls_in_text` and
    `thinking_in_text` tell whether the server leaves them there; None: unknown. `yields`: a model
    of the same name on this disk comes first. `shown` is the answer of Ollama's `/api/show`, None
    for a server without such routes.
    """

    servers: tuple[str, ...] = ()
    ids: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    tool_calls_in_text: bool | None = None
    thinking_in_text: bool | None = None
    yields: bool = False
    shown: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """Definition of a model by its Modelfile, besides its weights.

    `parameters` are default options. `messages` (role, content) and `system` come before a
    conversation; `template` (Go's, as in a Modelfile) makes the prompts in the place of the one in
    the model's file. `draft` is a small model whose guesses the engine checks (speculative
    decoding). `renderer` and `parser` are the names of code inside Ollama, `requires` is the
    version of Ollama that a model wants: they are only shown.
    """

    parameters: Mapping[str, object] = field(default_factory=dict)
    system: str | None = None
    template: str | None = None
    messages: tuple[Mapping[str, object], ...] = ()
    license: str | None = None
    adapters: tuple[Path, ...] = ()
    draft: Path | None = None
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None

    @property
    def defined(self) -> dict[str, Any]:
        """All of these values by name."""
        return {each.name: getattr(self, each.name) for each in fields(Definition)}

    @property
    def given(self) -> dict[str, Any]:
        """Those that say something; an empty text does, as it replaces one of a base."""
        return {name: x for name, x in self.defined.items() if x not in (None, (), {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle(Definition):
    """A variant complete on disk: paths + what its store knows without reading the weights.

    `name` is the Ollama display form, always with a tag (`smollm2:135m`,
    `hf.co/org/repo:Q4_K_M`). `path` is what an engine is given: the GGUF file (first shard) or
    the folder of safetensors. `digest` is 64 hex digits, stable for one model and different
    between models. `modified_s` is Unix time. `info` is set by stores that know it without files.
    `base` is the name of the model that a created one was made from. `upstream` is set for the
    models of servers that run already.
    `settings` is what the user set for this model, and `stored` the model without that.
    `revision` is the branch, tag or commit of `hub_id` that was asked for, None: main.
    `unfit_projector` lies beside a model without one, and is another model's.
    `key` tells whether two names are one model: equal keys share one engine process, as long as
    the `state` of its files (`stored.read_state`) is equal, too.
    """

    name: str
    store: str
    format: Format
    path: Path
    files: tuple[Path, ...]
    size_bytes: int
    digest: str
    modified_s: float
    quant: str | None = None
    projector: Path | None = None
    unfit_projector: Path | None = None
    hub_id: str | None = None
    revision: str | None = None
    base: str | None = None
    info: ModelInfo | None = None
    upstream: UpstreamModel | None = None
    settings: ModelSettings = NOTHING
    stored: Bundle | None = None
    state: tuple[object, ...] = field(default=(), compare=False, repr=False)
    key: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        draft = (self.draft,) if self.draft else ()
        own = () if self.lora else self.adapters
        key = "+".join(map(str, (self.path, *own, *draft)))
        object.__setattr__(self, "key", key)

    @property
    def lora(self) -> Path | None:
        """The folder of an adapter that engines load beside others of the same base.

        Those of a GGUF are loaded with it: they make a model with an engine of its own.
        """
        return self.adapters[0] if self.adapters and self.format is Format.SAFETENSORS else None

    def without_settings(self) -> Bundle:
        """Return the model as its store has it, without what the user set for it."""
        own = self.stored
        if own is None:
            return self
        return replace(
            self,
            parameters=own.parameters,
            system=own.system,
            draft=own.draft,
            files=self.files if self.draft == own.draft else own.files,
            settings=own.settings,
            stored=None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A model in a store that is not served: `reason` completes "it is left out: …"."""

    name: str
    store: str
    path: Path
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PullEvent:
    """Progress of a pull; `status` in Ollama's words, byte counts per file.

    `file` and `digest` are set while a file moves (`status` = "pulling <first 12 of digest>").
    The last event has the status "success".
    """

    status: str
    file: str | None = None
    digest: str | None = None
    total_bytes: int | None = None
    completed_bytes: int | None = None


Progress = Callable[[PullEvent], None]


class Transient(SourceError):
    """The source is overloaded or restarting, so a retry may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A model repository at one commit. `hub_id` has the spelling of the source.

    `branch` is the requested revision: a branch, a tag or a commit. `gated` is the kind of access
    control ("auto", "manual"), or None. `variants` are the servable forms among `files`. `license`
    is the name of the license, `bases` are the repositories that it was made from.
    `parameter_count` is None if the source does not report it, or reports a count of packed
    numbers.
    """

    hub_id: str
    commit: str
    branch: str = "main"
    gated: str | None = None
    variants: tuple[Variant, ...] = ()
    files: tuple[SourceFile, ...] = ()
    license: str | None = None
    bases: tuple[str, ...] = ()
    pipeline: str | None = None
    parameter_count: int | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all its files."""
        return tuple(file.path for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A repository in a list, without sizes and commit; `paths` are the names of its files."""

    hub_id: str
    gated: str | None = None
    disabled: bool = False
    parameter_count: int | None = None
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The current address of a file, which may be signed and expire.

    `headers` are for this address only, because credentials must not be sent to another origin.
    """

    url: str
    etag: str
    size_bytes: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
