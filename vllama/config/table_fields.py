"""The fields of `[models."NAME"]` and `[upstreams.NAME]`, each declared once.

From a declaration follow the parser, the JSON schema and the reference page.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vllama.base.errors import BadRequest, InvalidModelRef
from vllama.base.spelling import suggest
from vllama.config import kinds, parse
from vllama.config.kinds import Kind
from vllama.config.secrets import mask
from vllama.config.setting import Effect
from vllama.config.toml_lines import write_toml
from vllama.models.names.ref import ModelRef
from vllama.models.settings import SPREAD, UpstreamTraits

HIDDEN = "…"
"""What stands for a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a table as it is declared; `field` is that of the settings it becomes."""

    field: str
    kind: Kind
    help: str
    example: str
    effect: Effect

    @property
    def key(self) -> str:
        """Name in the config file."""
        return self.field.removesuffix("_s").removesuffix("_fields")

    def write(self, value: Any) -> str:
        """Write a value as the file has it, but without secrets."""
        if self.kind is kinds.KEY:
            return HIDDEN
        if self.field == "engine_args":
            return write_toml(mask(value))
        return write_toml(value) if self.kind.is_nested else self.kind.text(value)


def read_parameters(value: object) -> dict[str, object]:
    """Accept a table of Ollama's options."""
    # not at the top: the commands need it only for a file that has such a table
    from vllama.dialects.ollama.options import describe_options, resolve_options

    known = tuple(describe_options()["properties"])
    if not isinstance(value, Mapping):
        raise ValueError("not a table such as { temperature = 0.6 }")
    for name in value:
        if name not in known:
            raise ValueError(f"'{name}' is no parameter of a request; {suggest(name, known)}")
    try:
        resolve_options({}, value)
    except BadRequest as error:
        raise ValueError(error.message) from None
    return dict(value)


def read_gpus(value: object) -> tuple[int, ...] | str:
    """Accept the indices of GPUs, or "spread"."""
    if isinstance(value, str) and value.strip().lower() == SPREAD:
        return SPREAD
    items = value if isinstance(value, list) else str(value).split(",")
    found = tuple(parse.whole(0, 1023)(str(item).strip()) for item in items)
    if not found:
        raise ValueError("no GPU is named; to keep a model on the CPU, set gpu_layers = 0")
    if len(set(found)) < len(found):
        raise ValueError("a GPU is named twice")
    return found


def read_link(text: str) -> str:
    """Accept `URL#MODEL`, `NAME:MODEL` of a named upstream, or a model that is here."""
    if "://" in text:
        url, _, model = text.partition("#")
        parse.http_url(url)
        if not model:
            raise ValueError(f"'{text}' names no model; write http://host:port#model")
    elif not text.strip():
        raise ValueError("it is empty")
    return text.strip()


def read_name(text: str) -> str:
    """Accept the name of a model."""
    try:
        ModelRef.parse(text)
    except InvalidModelRef as error:
        raise ValueError(error.message) from None
    return text


def read_names(value: object) -> dict[str, str]:
    """Accept a list of names, or a table of names here and the names there."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = {item: item for item in value}
    if not isinstance(value, Mapping) or not all(isinstance(x, str) for x in value.values()):
        raise ValueError('neither a list of models nor a table such as { "here" = "there" }')
    return {read_name(here): there for here, there in value.items()}


def read_traits(value: object) -> UpstreamTraits:
    """Accept a table of traits."""
    if not isinstance(value, Mapping):
        raise ValueError("not a table such as { context = 8192 }")
    return kinds.read_traits(kinds.write_value(value))


def read_passed(text: str) -> str:
    """Accept the name of a field of requests, unless an engine may run it as code."""
    from vllama.chat.engine.request_fields import CODE_FIELDS

    if (name := text.strip().lower()) in CODE_FIELDS:
        raise ValueError(f"'{name}' may be code; it is for keys of admins, with --inspect-code")
    return name


def read_path(text: str) -> str:
    """Accept the path of a URL."""
    if not text.startswith("/"):
        raise ValueError("it does not begin with /")
    return text


def _raw(read: Callable[[Any], Any], schema: Mapping[str, Any]) -> Kind:
    return Kind(parse=read, schema=schema, is_nested=True)


_PARAMETERS = _raw(read_parameters, {"type": "object"})
_LIST = {"type": "array", "items": {"type": "string"}}
_COUNT = kinds.number(1)
_PASSED = kinds.many(kinds.text("FIELD", read_passed))
_NOW, _LOAD, _RESTART = Effect.NOW, Effect.NEXT_LOAD, Effect.RESTART

MODEL_FIELDS = tuple(
    Field(field=field, kind=kind, help=help_, example=example, effect=effect)
    for field, kind, help_, example, effect in (
        ("engine", kinds.NAME, "engine that serves it", '"my-engine"', _LOAD),
        ("engine_args", kinds.many(kinds.text("ARGUMENT", str), shlex.split, shlex.join),
         "further arguments for its engine", '["--seed", "1"]', _LOAD),
        ("context", kinds.CONTEXT, "context in tokens", "8192", _LOAD),
        ("parallel", _COUNT, "requests at once", "4", _LOAD),
        ("replicas", kinds.number(1, 64), "processes that share its requests", "2", _LOAD),
        ("gpus", _raw(read_gpus, {"anyOf": [{"type": "array", "items": {"type": "integer"}},
                                            {"enum": [SPREAD]}]}),
         "indices of the GPUs that it may use, or \"spread\" to divide it among all of them; "
         "without it as few GPUs as hold it", "[0, 1]", _LOAD),
        ("kv_cache_type", kinds.choice(*kinds.KV_CACHE_TYPES), "number format of the KV cache",
         '"q8_0"', _LOAD),
        ("strict", kinds.SWITCH, "refuse it rather than try another plan, or run it on the CPU "
         "where there are GPUs", "true", _LOAD),
        ("inspect", kinds.SWITCH, "let requests collect its activations and steer it; slower",
         "true", _LOAD),
        ("cache_disk", kinds.SIZE_OR_SWITCH, "disk space for its conversations, within the "
         "cache_disk of all; false: none are kept", '"5GB"', _LOAD),
        ("keep_alive_s", kinds.DURATION, "how long it stays loaded when idle; negative: forever",
         '"30m"', _NOW),
        ("pin", kinds.SWITCH, "keep it loaded, whatever requests say", "true", _NOW),
        ("preload", kinds.SWITCH, "load it when the server starts", "true", _RESTART),
        ("priority", kinds.number(-1000, 1000), "models with a lower one are unloaded before it",
         "10", _NOW),
        ("max_tokens", _COUNT, "most tokens of any answer", "4096", _NOW),
        ("defaults", _PARAMETERS, "parameters where a request gives none",
         "{ temperature = 0.6 }", _NOW),
        ("force", _PARAMETERS, "parameters whatever a request gives", "{ top_k = 20 }",
         _NOW),
        ("strip", kinds.many(kinds.NAME), "parameters that are taken out of requests", '["seed"]',
         _NOW),
        ("system", kinds.text("TEXT", str), "system prompt where a request has none",
         '"You are brief."', _NOW),
        ("pass_fields", _PASSED, "fields of requests that its engine is sent, besides those "
         "that are known to be harmless", '["my_sampler"]', _NOW),
        ("aliases", kinds.many(kinds.text("NAME", read_name)), "further names of it",
         '["gpt-4o-mini"]', _NOW),
        ("draft", kinds.text("NAME", read_name), "small model that drafts for it, or \"auto\": "
         "the smallest one here with its vocabulary; left out where that is no faster",
         '"qwen3:0.6b"', _NOW),
        ("fallback", kinds.many(kinds.text("LINK", read_link)),
         "what answers where it cannot: URL#MODEL, NAME:MODEL of a named upstream, or another "
         "model, tried in this order", '["http://gpu2:11434#qwen3:8b", "openai:gpt-4.1-mini"]',
         _NOW),
        ("fallback_after_s", kinds.DURATION, "how long it, and each link, may take until the "
         "first token before the next is tried", '"30s"', _NOW),
        ("nodes", kinds.many(kinds.NAME), "nodes of a cluster that may answer for it; \"here\" is "
         "the head itself", '["10.0.0.5"]', _NOW),
    )
)  # fmt: skip

UPSTREAM_FIELDS = tuple(
    Field(field=field, kind=kind, help=help_, example=example, effect=Effect.NOW)
    for field, kind, help_, example in (
        ("url", kinds.HTTP_URL, "its address", '"https://api.openai.com/v1"'),
        ("key", kinds.KEY, "key that it wants", '"sk-1234"'),
        ("key_env", kinds.NAME, "variable that has its key", '"OPENAI_API_KEY"'),
        ("key_file", kinds.FILE, "file that has its key", '"/etc/vllama/openai.key"'),
        ("models", _raw(read_names, {"anyOf": [_LIST, {"type": "object",
                                     "additionalProperties": {"type": "string"}}]}),
         "the models to use of it, or the names here of its models; without it all that it lists",
         '{ "gpt-mini" = "gpt-4.1-mini" }'),
        ("weight", kinds.number(1, 1000), "share of the requests for a model that several have",
         "2"),
        ("concurrent", _COUNT, "most requests at once for each of its models", "8"),
        ("health_path", kinds.text("PATH", read_path), "path that answers while it is up",
         '"/health"'),
        ("health_interval_s", kinds.DURATION, "how often that is asked", '"5s"'),
        ("pass_fields", _PASSED, "fields of requests that it is sent, besides those that are "
         "known to be harmless", '["provider"]'),
        ("traits", _raw(read_traits, {"type": "object"}), "what it does not tell of itself; see "
         "upstream_traits", "{ context = 8192 }"),
    )
)  # fmt: skip
