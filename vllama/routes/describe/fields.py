"""What the fields of requests mean, and what is known of their values beyond their types."""

from __future__ import annotations

from collections.abc import Mapping

from vllama.base.meaning import Schema
from vllama.chat.inspect import MOST_LAYERS
from vllama.chat.logprobs import MAX_LOGPROBS
from vllama.dialects.ollama.options import describe_options
from vllama.dialects.ollama.request_types import BASE64, MAX_INT, THINK_LEVELS, Duration
from vllama.dialects.openai.read import IMAGE_URI
from vllama.models.names.ref import HUB_HOSTS, HUB_TAG, NAMESPACE, REPO
from vllama.models.names.ref import MODEL as MODEL_PART

EXAMPLE_MODEL = "qwen3:0.6b"
"""It can chat, call tools and think."""

# the grammar of `models.names.ref`, but for names that servers elsewhere have given
_NAMESPACE, _TAGGED = NAMESPACE.pattern, f"{MODEL_PART.pattern}(:{MODEL_PART.pattern})?"
_HOST = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}(:[0-9]{1,5})?"
_AT = "(@[A-Za-z0-9_][A-Za-z0-9_+-]{0,40}([%s][A-Za-z0-9_+-]{1,40}){0,3})?"
_REPO = f"{_NAMESPACE}/{REPO.pattern}"
_HUB_HOSTS = "|".join(sorted(HUB_HOSTS)).replace(".", "[.]")
_HUB = f"(hf://{_REPO}{_AT % '.'}|((https?://)?({_HUB_HOSTS})/)?{_REPO}{_AT % './'})"
_LIBRARY = f"((ollama://)?({_NAMESPACE}/)?|(https?://)?{_HOST}/{_NAMESPACE}/){_TAGGED}"
_FILE = f"hf://{_REPO}(/[A-Za-z0-9_-]{{1,80}}){{1,4}}[.]gguf"
_PULLED = f"{_LIBRARY}|{_HUB}(:{HUB_TAG.pattern})?|{_FILE}"
_PATH = "~?(/[^/\\x00-\\x1f]{1,100}){1,20}[.]gguf"  # a folder that has a model is taken, too
NEW_MODEL: Schema = {
    "type": "string",
    "pattern": f"^({_NAMESPACE}/)?{_TAGGED}$",
    "description": "the name of a new model: `model[:tag]` or `namespace/model[:tag]`",
}
PULLED_MODEL: Schema = {
    "type": "string",
    "description": "a model: `model[:tag]`, `namespace/model[:tag]` or `hf.co/organisation/model`",
    "pattern": f"^({_PULLED})$",
}
MODEL: Schema = {
    "type": "string",
    "description": "a model: `model[:tag]`, `namespace/model[:tag]`, `hf.co/organisation/model`, "
    "or the path of a file on the server",
    "pattern": f"^({_PULLED}|{_PATH})$",
}


def refine(schema: Schema, refined: Schema) -> Schema:
    """Return a schema with what is known beyond its type, also of its fields."""
    fields, more = schema.get("properties", {}), refined.get("properties", {})
    merged = {name: refine(fields.get(name, {}), more.get(name, {})) for name in {**fields, **more}}
    return {**schema, **refined, **({"properties": merged} if merged else {})}


def make_enum(*values: str | bool | None) -> Schema:
    """Return the schema of one of these values; generators of clients want types of one kind."""
    texts = [value for value in values if isinstance(value, str)]
    schema: Schema = {"type": "string", "enum": texts}
    if any(isinstance(value, bool) for value in values):
        schema = {"anyOf": [{"type": "boolean"}, schema]}
    return (
        {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]} if None in values else schema
    )


def make_nullable(schema: Schema) -> Schema:
    """Return the schema of a value that may be null, which is read as nothing."""
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    if "$ref" in schema or "anyOf" in schema:
        return {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}
    return schema


def make_object(optional: Mapping[str, Schema] | None = None, /, **required: Schema) -> Schema:
    """Return the schema of an object with these fields."""
    fields = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": fields}


def make_word(*words: str) -> Schema:
    """Return the schema of a word, or of one of several."""
    return {"type": "string", **({"enum": list(words)} if words[1:] else {"const": words[0]})}


def refer(name: str) -> Schema:
    """Return a reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def make_array(items: Schema, **limits: int) -> Schema:
    """Return the schema of an array with at least one item, or as the limits say."""
    return {"type": "array", "items": items, "minItems": 1, **limits}


TEXT: Schema = {"type": "string"}
BINARY: Schema = {
    "type": "string",
    "contentMediaType": "application/octet-stream",
    "minLength": 1,
}
NON_EMPTY: Schema = {"type": "string", "minLength": 1}
IMAGE_URL: Schema = {
    "type": "string",
    "description": "the image as a data URI in base64; no other URL is fetched",
    "pattern": f"^{IMAGE_URI}{BASE64.removeprefix('^')}",
}
NUMBER: Schema = {"type": ["number", "null"]}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
WHOLE_NUMBER: Schema = {"type": "integer", "minimum": -MAX_INT, "maximum": MAX_INT}
INTEGER: Schema = make_nullable(WHOLE_NUMBER)
BOOLEAN: Schema = {"type": ["boolean", "null"]}
OPTIONS: Schema = describe_options()

TOP_LOGPROBS: Schema = {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_LOGPROBS}
FORMAT: Schema = {"anyOf": [{"type": "object"}, *make_enum("json", "", None)["anyOf"]]}

_LAYERS = make_array({"type": "integer", "minimum": 0, "maximum": MOST_LAYERS})
_CLOSED: Schema = {"additionalProperties": False}
_STEER = _CLOSED | make_object(
    {"strength": {"type": "number"}},
    vector=make_array({"type": "number"}),
    layers=_LAYERS,
)
_COLLECT = _CLOSED | make_object(residual=_LAYERS)
INSPECT: Schema = make_nullable(
    _CLOSED | make_object({"collect": _COLLECT, "steer": {"type": "array", "items": _STEER}})
)

OWN_FIELDS: dict[str, Schema] = {
    "options": OPTIONS,
    "num_ctx": {"type": ["number", "null"]},
    "keep_alive": make_nullable(Duration.schema),
    "think": make_enum(True, *THINK_LEVELS, None),
    "truncate": {"type": ["boolean", "null"]},
    "shift": {"type": ["boolean", "null"]},
}
"""Ollama's fields, which the requests of the other APIs may have as well."""

TEXT_FIELDS = OWN_FIELDS | {"inspect": INSPECT}
"""Those of requests for text, with ours."""
