"""Schemas as libraries write them, with llama.cpp's own server: kept, named or refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from tests.e2e.conftest import MODEL, engine_at, weights
from tests.e2e.schemas import NO_TYPES, read_schemas
from tests.server_process import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FORMATS = jsonschema.FormatChecker(())  # those of these schemas
FORMATS.checks("uri")(lambda value: re.match(r"[a-z][a-z0-9+.-]*:\S*$", value) is not None)
STRING, INTEGER = {"type": "string", "maxLength": 5}, {"enum": [1, 20]}


def members(**given: Any) -> dict[str, Any]:
    return {"type": "object", "properties": given, "required": list(given)}


# by which library, in its own form; the answers are short
SCHEMAS: dict[str, dict[str, Any]] = {
    "pydantic HttpUrl": members(
        u={"format": "uri", "maxLength": 83, "minLength": 1, "title": "U", "type": "string"}
    ),
    "pydantic set": members(
        s={"items": INTEGER, "type": "array", "uniqueItems": True, "maxItems": 3}
    ),
    "pydantic reference": members(c={"$ref": "#/$defs/C", "description": "d"})
    | {"$defs": {"C": {"enum": ["a", "b"], "title": "C", "type": "string"}}},
    "pydantic union": members(
        pet={
            "discriminator": {"propertyName": "kind"},
            "oneOf": [members(kind={"const": kind, "type": "string"}) for kind in "ab"],
        }
    ),
    "zod 3 optional": members(a={"anyOf": [{"not": {}}, STRING]}),
    "zod 3 intersection": {"allOf": [members(a=INTEGER), members(b=INTEGER)]},
    "zod 4 record": members(
        m={"type": "object", "propertyNames": {"type": "string", "enum": ["a", "b"]},
           "additionalProperties": INTEGER, "required": ["a", "b"]}
    ),
    "zod 4 pattern": members(p={"type": "string", "pattern": "^(?=.*a)[ab]{1,4}$"}),
    "TypeBox intersection": {
        "type": "object", "allOf": [members(a=INTEGER)], "unevaluatedProperties": False,
    },
    "msgspec tuple": {
        "type": "array", "prefixItems": [INTEGER, STRING], "items": False, "minItems": 2,
    },
    "draft 4": members(n={"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 9})
    | {"$schema": "http://json-schema.org/draft-04/schema#"},
    "conditions": members(a=INTEGER) | {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
}  # fmt: skip


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    weights()
    environ = {"VLLAMA_ENGINE_PATHS": f"llama-server={engine_at()}"}
    arguments = ("--engine", "llama-server", "--num-parallel", "4", "--context-length", "1024")
    arguments += ("--model", MODEL)
    home = tmp_path_factory.mktemp("schemas")
    with Server(home, *arguments, fake=False, env=environ) as server:
        server.wait_for("ready: http")
        yield server


def ask(server: Server, schema: Any, **options: Any) -> tuple[int, Any]:
    said = [{"role": "user", "content": "Give an example."}]
    body = {"model": MODEL, "stream": False, "format": schema, "messages": said,
            "options": {"num_predict": 200, "temperature": 0} | options}  # fmt: skip
    return server.post("/api/chat", body)


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_not_named_is_kept(native: Server, name: str) -> None:
    schema = SCHEMAS[name]
    said = {"model": MODEL, "max_tokens": 200, "temperature": 0, "messages": [
        {"role": "user", "content": "Give an example."}], "response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}  # fmt: skip
    status, headers, reply = native.request("POST", "/v1/chat/completions", said)
    assert status == 200, reply
    (choice,) = json.loads(reply)["choices"]
    if choice["finish_reason"] == "length":
        return
    value = json.loads(choice["message"]["content"])
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    broken = [*validator(schema, format_checker=FORMATS).iter_errors(value)]
    assert bool(broken) == ("x-vllama-violates" in headers), (broken, value)
    assert "x-vllama-ignored" in headers or not broken


LIBRARIES = {name: schema for name, schema in read_schemas().items() if name not in NO_TYPES}
# those that a small model can fill in, by both ways
SAMPLE = [name for name, schema in LIBRARIES.items() if len(json.dumps(schema)) < 500][::8]


def ask_openai(server: Server, tokens: int, **fields: Any) -> tuple[Any, Any]:
    said = [{"role": "user", "content": "Give a short example."}]
    body = {"model": MODEL, "max_tokens": tokens, "temperature": 0, "messages": said, **fields}
    status, headers, reply = server.request("POST", "/v1/chat/completions", body)
    assert status == 200, reply
    return headers, json.loads(reply)["choices"][0]


def check(name: str, schema: Any, text: str, headers: Any) -> str | None:
    """Return what is wrong with a finished response."""
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    if not validator(validator.META_SCHEMA).is_valid(schema):
        return None  # of several drafts, as zod-to-json-schema writes for OpenAI
    broken = [str(one.message) for one in validator(schema).iter_errors(json.loads(text))]
    is_told = "x-vllama-violates" in headers and "x-vllama-ignored" in headers
    return None if is_told or not broken else f"{name}: {text}: {broken}"


def try_all(trial: Any, names: Any) -> None:
    with ThreadPoolExecutor(4) as pool:
        wrong = [one for one in pool.map(trial, names) if one]
    assert not wrong, "\n".join(wrong)


def test_each_schema_of_a_library_is_compiled(native: Server) -> None:
    def trial(name: str) -> str | None:
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": LIBRARIES[name]}}
        _, choice = ask_openai(native, 2, response_format=wanted)
        text = choice["message"]["content"]
        return None if re.match(r'[{\["0-9tfn-]', text) else f"{name}: {text}"

    try_all(trial, LIBRARIES)


def test_finished_responses_keep_to_schemas_of_libraries(native: Server) -> None:
    def trial(name: str) -> str | None:
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": LIBRARIES[name]}}
        headers, choice = ask_openai(native, 120, response_format=wanted)
        if choice["finish_reason"] == "length":
            return None
        return check(name, LIBRARIES[name], choice["message"]["content"], headers)

    try_all(trial, SAMPLE)


def test_forced_calls_keep_to_schemas_of_libraries(native: Server) -> None:
    def trial(name: str) -> str | None:
        function = {"name": "f", "parameters": LIBRARIES[name]}
        tools = [{"type": "function", "function": function}]
        headers, choice = ask_openai(native, 100, tools=tools, tool_choice="required")
        if choice["finish_reason"] == "length":
            return None
        (call,) = choice["message"]["tool_calls"]
        return check(name, LIBRARIES[name], call["function"]["arguments"], headers)

    try_all(trial, [name for name in SAMPLE if LIBRARIES[name].get("type") == "object"][::2])


# llguidance finds out that no string fits both, and the engine would generate freely
CANNOT = {"type": "string", "pattern": "^aaa$", "maxLength": 1}


def test_an_engine_that_gives_up_fails_only_that_request(native: Server) -> None:
    schemas = [CANNOT if n % 2 else members(a=INTEGER) | {"title": str(n)} for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda schema: ask(native, schema, num_predict=20), schemas))
    assert [status for status, _ in got[::2]] == [200] * 4, got
    for status, reply in got[1::2]:  # llama.cpp's own converter leaves the length out, by name
        assert status == 400 or reply["message"]["content"].startswith('"'), got
    if "llg error" in native.engine_log(MODEL):
        assert [status for status, _ in got[1::2]] == [400] * 4, got
