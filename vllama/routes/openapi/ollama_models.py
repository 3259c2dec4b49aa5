"""Ollama's routes about models, the web and accounts."""

from __future__ import annotations

from vllama.dialects.go_types import Schema
from vllama.dialects.ollama import answer_types as answers
from vllama.dialects.ollama import request_types as requests
from vllama.net.web.page_text import Page
from vllama.routes.ollama import cloud, create, models, web
from vllama.routes.openapi.fields import (
    EXAMPLE_MODEL,
    MODEL,
    NEW_MODEL,
    OPTIONS,
    PULLED_MODEL,
    TEXT_OR_NULL,
)
from vllama.routes.openapi.operation import Body, Framing, Operation, Parameter, Stream
from vllama.routes.server import health

_NOTHING: Schema = {"enum": ["", None]}


def _name(model: Schema = MODEL) -> tuple[Schema, ...]:
    """Return the forms of a body that names its model: older clients say `name`."""
    return (
        {"required": ["model"], "properties": {"model": model}},
        {"required": ["name"], "properties": {"name": model, "model": _NOTHING}},
    )


_PART = "[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*"
_SHA256: Schema = {"type": "string", "pattern": "^sha256[:-][0-9a-fA-F]{64}$"}
_DIGEST = Parameter(
    "digest",
    "the digest of the file: `sha256:` and 64 hexadecimal digits",
    _SHA256,
    example="sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
)
_UPLOADS: Schema = {
    "description": "files that were uploaded to `/api/blobs`: their digests by their names",
    "type": ["object", "null"],
    "propertyNames": {"pattern": f"^{_PART}(/{_PART})*$"},
    "additionalProperties": _SHA256,
}


def _list_creation_forms() -> tuple[Schema, ...]:
    """Return the forms of a body that makes a model: of another one, or of files."""
    bases: dict[str, Schema] = {
        "from": MODEL,
        "files": {**_UPLOADS, "type": "object", "minProperties": 1},
    }
    return tuple(
        {
            "required": [*form["required"], base],
            "properties": {**form["properties"], base: schema},
        }
        for form in _name(NEW_MODEL)
        for base, schema in bases.items()
    )


_PROGRESS = Stream(Framing.NDJSON, answers.Progress)
_BLOB = Operation(
    "Look for, or upload, a file of a model",
    parameters=(_DIGEST,),
    upload=True,
    statuses=(200, 201),
    errors=(413, 507),
)
OPERATIONS = {
    models.tags: Operation("List the models of this machine", answer=answers.Tags),
    models.ps: Operation("List the loaded models", answer=answers.LoadedModels),
    models.show: Operation(
        "Describe a model",
        body=Body(
            type=requests.SHOW,
            either=_name(),
            examples={
                "A model": {"model": EXAMPLE_MODEL},
                "With its plan": {"model": EXAMPLE_MODEL, "plan": True},
            },
        ),
        answer=answers.ShownModel,
        errors=(404,),
    ),
    models.pull: Operation(
        "Download a model",
        help="Clients share a download. It stops when the last one leaves, and the next goes on "
        "from there. With `background` it needs no client, and the answer comes at once.",
        statuses=(200, 202),
        errors=(502, 507),
        body=Body(
            type=requests.PULL,
            either=_name(PULLED_MODEL),
            examples={"A model": {"model": EXAMPLE_MODEL}},
        ),
        answer=(answers.Success, answers.Progress),
        stream=_PROGRESS,
    ),
    models.stop_pull: Operation(
        "Stop a download for all clients",
        help="A route of vllama's own. What has been downloaded is kept for the next time.",
        body=Body(type=requests.PULL, either=_name()),
        errors=(404,),
    ),
    create.create: Operation(
        "Make a model of another one, or of uploaded files",
        body=Body(
            type=requests.CREATE,
            either=_list_creation_forms(),
            fields={
                "from": {"anyOf": [MODEL, _NOTHING]},
                "files": _UPLOADS,
                "draft_files": _UPLOADS,
                "adapters": _UPLOADS,
                "parameters": OPTIONS,
                "license": {
                    "description": "a text, or several",
                    "anyOf": [TEXT_OR_NULL, {"type": "array", "items": TEXT_OR_NULL}],
                },
            },
            examples={
                "With a system message": {
                    "model": "pirate",
                    "from": EXAMPLE_MODEL,
                    "system": "You are a pirate.",
                }
            },
        ),
        answer=answers.Success,
        stream=_PROGRESS,
        errors=(404, 413, 502, 507),
    ),
    create.copy: Operation(
        "Give a model a second name",
        body=Body(
            type=requests.COPY,
            required=("source", "destination"),
            fields={"source": MODEL, "destination": NEW_MODEL},
            examples={"A copy": {"source": EXAMPLE_MODEL, "destination": "smol"}},
        ),
        errors=(404,),
    ),
    models.delete: Operation(
        "Delete a model",
        body=Body(type=requests.DELETE, either=_name(), examples={"A model": {"model": "smol"}}),
        errors=(404,),
    ),
    create.head_blob: _BLOB,
    create.upload_blob: _BLOB,
    cloud.push: Operation(
        "Upload a model: refused, since nobody is signed in",
        body=Body(type=requests.PUSH, either=_name()),
        stream=_PROGRESS,
        errors=(401, 404),
    ),
    web.web_search: Operation(
        "Search the web",
        help="Needs a SearXNG of yours: `--searxng URL`.",
        body=Body(
            required=("query",),
            fields={
                "query": {"type": "string", "pattern": r"\S"},
                "max_results": {"type": ["integer", "null"], "minimum": 1, "maximum": 10},
            },
            examples={"A question": {"query": "height of the Eiffel tower", "max_results": 3}},
        ),
        answer=answers.SearchResults,
        errors=(502,),
    ),
    web.web_fetch: Operation(
        "Fetch a page of the public internet as text",
        help="Needs the setting `--searxng URL`, too.",
        body=Body(
            required=("url",),
            fields={"url": {"type": "string", "pattern": "^https?://"}},
            examples={"A page": {"url": "https://example.com"}},
        ),
        answer=Page,
        errors=(502,),
    ),
    health.get_version: Operation(
        "Tell the versions of the API and of vllama",
        answer=answers.Version,
    ),
    cloud.status: Operation("Tell that ollama.com is not used", answer=answers.CloudStatus),
    cloud.me: Operation("Tell that nobody is signed in", statuses=(), errors=(401,)),
    cloud.sign_out: Operation(
        "Sign out: refused, since nobody is signed in",
        statuses=(),
        errors=(401,),
    ),
    cloud.remove_key: Operation(
        "Remove a key of an account: refused, since nobody is signed in",
        parameters=(Parameter("key", "a public key"),),
        statuses=(),
        errors=(401,),
    ),
    cloud.recommendations: Operation(
        "Recommend models: none",
        answer=answers.Recommendations,
    ),
}
