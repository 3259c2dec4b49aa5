"""The kinds of values that only the tables of models and upstreams take."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Annotated

from vllama.base.errors import BadRequest, InvalidModelRef
from vllama.base.kinds import LIST_SCHEMA, many, nest, number, read_http_url, read_number, text
from vllama.base.spelling import suggest
from vllama.models.names.ref import ModelRef

SPREAD = "spread"


def read_parameters(value: object) -> dict[str, object]:
    """Accept a table of Ollama's options."""
    # not at the top: the commands need it only for a file that has such a table
    from vllama.dialects.ollama.options import OPTION_SCHEMAS, resolve_options

    known = tuple(OPTION_SCHEMAS)
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
    found = tuple(read_number(0, 1023)(str(item).strip()) for item in items)
    if not found:
        raise ValueError("no GPU is named; to keep a model on the CPU, set gpu_layers = 0")
    if len(set(found)) < len(found):
        raise ValueError("a GPU is named twice")
    return found


def read_server(text: str) -> str:
    """Accept `host:port`."""
    if not re.fullmatch(r"[^\s,/]+:\d{1,5}", text):
        raise ValueError(f"'{text}' is not host:port, such as 10.0.0.5:50052")
    return text


def read_link(text: str) -> str:
    """Accept `URL#MODEL`, `NAME:MODEL` of a named upstream, or a model that is here."""
    if "://" in text:
        url, _, model = text.partition("#")
        read_http_url(url)
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


def read_passed(text: str) -> str:
    """Accept the name of a field of requests, unless an engine may run it as code."""
    from vllama.chat.engine.request_fields import CODE_FIELDS

    if (name := text.strip().lower()) in CODE_FIELDS:
        raise ValueError(f"'{name}' may be code; it is for keys of admins, with --inspect-code")
    return name


def read_url_path(text: str) -> str:
    """Accept the path of a URL."""
    if not text.startswith("/"):
        raise ValueError("it does not begin with /")
    return text


Arguments = Annotated[
    tuple[str, ...], many(text("ARGUMENT", str), split=shlex.split, join=shlex.join)
]
Link = Annotated[str, text("LINK", read_link)]
ModelName = Annotated[str, text("NAME", read_name)]
Parameters = Annotated[Mapping[str, object], nest(read_parameters, {"type": "object"})]
PassedField = Annotated[str, text("FIELD", read_passed)]
RpcServer = Annotated[str, text("HOST:PORT", read_server)]
Replicas = Annotated[int, number(1, 64)]
GPUS = nest(
    read_gpus,
    {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"enum": [SPREAD]}]},
)
NAMES = nest(
    read_names,
    {"anyOf": [LIST_SCHEMA, {"type": "object", "additionalProperties": {"type": "string"}}]},
)
URL_PATH = text("PATH", read_url_path)
