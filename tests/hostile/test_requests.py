"""Bodies, heads and templates of requests that ask for more than a server may give."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.facts import INFO
from tests.hostile.counting import TooMany, steps
from tests.hostile.test_model_files import MB, memory
from vllama.accounts.keys.ring import KeyRing
from vllama.base.clock import RealClock
from vllama.base.errors import (
    MAX_MESSAGE,
    BadRequest,
    ContextOverflow,
    InvalidModelRef,
    VllamaError,
)
from vllama.chat import bodies as bodies_module
from vllama.chat.bodies import MAX_TEXT, MAX_VALUES, decode_json, decode_object
from vllama.chat.engine.traits import Tokenizer, Traits
from vllama.chat.grammar_schema import CONVERTER, FRAGILE, SchemaWriter
from vllama.chat.prepare import make_call_schema
from vllama.chat.request import MAX_MESSAGES, MAX_TOOLS, Fitting, Message
from vllama.chat.schema import MOST_BYTES, check_schema
from vllama.chat.templates.go.parse import MAX_LENGTH
from vllama.chat.templates.go_template_prompt import MAX_KEPT_LENGTH, _kept, parse_go_template
from vllama.config import Config
from vllama.dialects.anthropic.read import parse_messages
from vllama.dialects.ollama.read import parse_chat
from vllama.dialects.openai.extras import Extras, take_extras
from vllama.dialects.openai.read import parse_openai, read_chat
from vllama.dialects.openai.request_types import ChatCompletionBody
from vllama.dialects.responses.read import parse_responses
from vllama.models.names.ref import MAX_NAME, ModelRef
from vllama.net.http.heads import Head
from vllama.net.http.request import Request
from vllama.observe.metrics.server_metrics import Metrics
from vllama.routes import app as app_module
from vllama.routes import guards as guards_module
from vllama.routes.app import App
from vllama.routes.context import Starting
from vllama.routes.guards import Guards
from vllama.routes.in_use import InUse, Setup
from vllama.routes.prompts import tokenizer
from vllama.routes.prompts.prompt import Prompt, PromptMaker
from vllama.routes.route import Route

STEPS = 300_000
"""Of any of these: some 50 ms of the loop, all of it while others wait."""


def test_steps_are_counted() -> None:
    def endless() -> None:
        while True:
            pass

    with pytest.raises(TooMany), steps(1000):
        endless()


# -- bodies --------------------------------------------------------------------------------------

BODIES: dict[str, Callable[[], bytes]] = {
    "empty lists": lambda: b'{"options": {"a": [' + b"[]," * MAX_VALUES + b"[]]}}",
    "numbers": lambda: b'{"context": [' + b"1," * 2 * MAX_VALUES + b"1]}",
    "empty objects": lambda: b'{"messages": [' + b"{}," * MAX_VALUES + b"{}]}",
    "keys": lambda: b"{" + b'"a":1,' * 2 * MAX_VALUES + b'"b":1}',
    "brackets": lambda: b'{"options": ' + b"[" * MAX_VALUES * 2,
    "brackets of an unknown field": lambda: b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "a number of a million digits": lambda: b'{"options": {"seed": ' + b"9" * MB + b"}}",
    "a fraction of a million digits": lambda: b'{"options": {"seed": ' + b"9" * MB + b".5}}",
    "an infinite number": lambda: b'{"options": {"seed": 1e999}}',
    "a string without end": lambda: b'{"model": "' + b"\\\\" * MB,
    "half a body": lambda: b'{"options": {"a": [' + b'"x",' * 100_000,
    "what is no JSON": lambda: b"\x1f\x8b" * MB,
}


@pytest.mark.parametrize("parse", [parse_chat, parse_openai, parse_messages, parse_responses])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_is_refused_before_much_is_made_of_it(
    body: Callable[[], bytes], parse: Callable[[bytes], object]
) -> None:
    content = body()
    with memory(32 * MB), pytest.raises(BadRequest) as caught, steps(STEPS):
        parse(content)
    assert len(str(caught.value)) < 1000


def test_lone_surrogates_among_many_keys() -> None:
    """They are replaced key by key, so that the usual ones must cost little."""
    keys = b",".join(b'"%d":1' % n for n in range(20_000))
    with steps(STEPS):
        value = decode_json(b'{"\\ud800":1,' + keys + b"}")
    assert isinstance(value, dict) and "\ufffd" in value


def parse_openai_chat(body: bytes) -> object:
    return parse_openai(body, ChatCompletionBody)


def test_too_many_messages() -> None:
    message = {"role": "user", "content": "x"}
    for many, parse in (
        ("messages", parse_chat),
        ("messages", parse_openai_chat),
        ("Messages", parse_openai_chat),
        ("messages", parse_messages),
        ("input", parse_responses),
    ):
        for extra in ({}, {"unknown": 1}):
            body = {"model": "m", "max_tokens": 1, many: [message] * (MAX_MESSAGES + 1)} | extra
            with pytest.raises(BadRequest, match=f"{MAX_MESSAGES}"), steps(STEPS):
                parse(json.dumps(body).encode())


MESSAGES = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("read", "tool", "fields"),
    [
        (parse_chat, {"type": "function", "function": {"name": "f", "parameters": {}}}, MESSAGES),
        (
            lambda body: read_chat(*take_extras(parse_openai(body, ChatCompletionBody))),
            {"type": "function", "function": {"name": "f"}},
            MESSAGES,
        ),
        (
            lambda body: read_chat(parse_messages(body).chat, Extras()),
            {"name": "f", "input_schema": {"type": "object"}},
            MESSAGES,
        ),
        (
            lambda body: read_chat(parse_responses(body).chat, Extras()),
            {"type": "function", "name": "f"},
            {"input": "x"},
        ),
    ],
)
def test_too_many_tools(
    read: Callable[[bytes], Any], tool: dict[str, object], fields: dict[str, object]
) -> None:
    def ask(count: int) -> None:
        body = {"model": "m", "max_tokens": 1, "tools": [tool] * count} | fields
        read(json.dumps(body).encode())

    ask(MAX_TOOLS)
    with pytest.raises(BadRequest, match=f"{MAX_TOOLS}"):
        ask(MAX_TOOLS + 1)


def test_an_error_does_not_send_a_whole_body_back() -> None:
    error = BadRequest(f'source "{"a" * MB}" is invalid')
    assert len(error.sentence()) == len(str(error)) == len(error.message) == MAX_MESSAGE + 1


# -- schemas -------------------------------------------------------------------------------------


def chained(count: int, reference: str) -> dict[str, object]:
    """Return a schema whose definitions refer to each other in a row."""
    names = [f"a{n}" for n in range(count)]
    definitions: dict[str, object] = {
        name: {"$anchor": name, "$ref": reference.format(following)}
        for name, following in zip(names, [*names[1:], "end"], strict=True)
    }
    definitions["end"] = {"$anchor": "end", "type": "string"}
    members = {name: {"$ref": reference.format(name)} for name in names}
    return {"$defs": definitions, "type": "object", "properties": members}


@pytest.mark.parametrize("reference", ["#{}", "#/$defs/{}"])
@pytest.mark.parametrize(
    "use",
    [
        check_schema,
        lambda schema: SchemaWriter(CONVERTER).write(schema, "schema"),
        lambda schema: SchemaWriter(FRAGILE).write(schema, "schema"),
    ],
)
def test_references_are_followed_once(use: Callable[[object], object], reference: str) -> None:
    schema = chained(1000, reference)
    with steps(STEPS):
        try:
            use(schema)
        except BadRequest as error:
            assert "too large" in str(error)


SCHEMAS: dict[str, Callable[[], dict[str, object]]] = {
    "members": lambda: {"properties": {f"k{n}": {} for n in range(50_000)}},
    "values": lambda: {"enum": [str(n) for n in range(50_000)]},
    "a pattern": lambda: {"pattern": "(a|" * 100_000},
    "alternatives": lambda: {"anyOf": [{"type": "string"}] * 50_000},
    "a name": lambda: {"properties": {"k" * MOST_BYTES: {}}},
    "chains": lambda: chained(50_000, "#{}"),
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_schema_that_is_too_large(schema: Callable[[], dict[str, object]]) -> None:
    made = schema()
    with pytest.raises(BadRequest, match="larger than"), steps(1000):
        check_schema(made)
    tools = [{"type": "function", "function": {"name": "f", "parameters": made}}]
    with pytest.raises(BadRequest, match="larger than"), steps(1000):
        make_call_schema(tools)


# -- templates -----------------------------------------------------------------------------------

TEMPLATES = {
    "blocks": "{{ if true }}",
    "parentheses": "{{ " + "(" * 50,
    "pipes": "{{ .Prompt " + "| print " * 50,
    "text": "x",
    "open": "{{",
    "comments": "{{/*",
    "strings": '{{ "',
    "variables": "{{ $a := 1 }}",
    "else": "{{ if true }}{{ else }}",
}


@pytest.mark.parametrize("piece", TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_is_refused_before_it_is_read(piece: str) -> None:
    source = piece * (MAX_LENGTH // len(piece) + 1)
    with pytest.raises(BadRequest, match=f"longer than {MAX_LENGTH}"), steps(1000):
        parse_go_template(source)


@pytest.mark.slow
@pytest.mark.parametrize("piece", TEMPLATES.values(), ids=TEMPLATES)
def test_the_longest_template_takes_a_bounded_number_of_steps(piece: str) -> None:
    with steps(40 * MAX_LENGTH):
        try:
            parse_go_template(piece * (MAX_LENGTH // len(piece)))
        except BadRequest as error:
            assert len(str(error)) < 1000


def test_long_templates_are_not_kept() -> None:
    _kept.cache_clear()
    parse_go_template("x" * (MAX_KEPT_LENGTH + 1))
    assert _kept.cache_info().currsize == 0


# -- names, hosts, origins, inputs ---------------------------------------------------------------


@pytest.mark.parametrize(
    "piece", ["a", "a/", "a:", ".", "/", "../", "http://", "hf.co/", "@", " a"]
)
def test_a_long_name(piece: str) -> None:
    name = piece * (MAX_NAME + 1)
    with memory(2 * MB), pytest.raises(InvalidModelRef) as caught, steps(1000):
        ModelRef.parse(name)
    assert len(caught.value.sentence()) < 1000


def test_hosts_and_origins_that_are_no_names_are_neither_looked_at_nor_kept() -> None:
    guards = Guards(origins=("http://*a*a*a*a*b",))
    for cached in (
        guards_module._host_allowed,
        guards_module._local_origin,
        guards_module._matches,
    ):
        cached.cache_clear()
    with steps(1000):
        assert not guards.host_allowed("a" * MB)
        assert not guards.origin_allowed("http://" + "a" * MB, "localhost")
        assert not guards.origin_allowed("http://x", "a" * MB)
    assert guards_module._host_allowed.cache_info().currsize == 0
    assert guards_module._local_origin.cache_info().currsize == 0
    assert guards_module._matches.cache_info().currsize == 0


def test_an_input_that_no_context_holds_is_not_given_to_a_tokenizer() -> None:
    traits = Traits(context_length=8, tokenizer=Tokenizer(tokenize_path="/t", detokenize_path="/d"))
    with pytest.raises(BadRequest, match="too long"):
        asyncio.run(tokenizer.tokenize(None, traits, "a" * (tokenizer.MAX_TEXT + 1)))  # type: ignore[arg-type]


TEXTS: dict[str, tuple[str, bool]] = {
    "ascii": ("one word " * (MAX_TEXT // 9 + 1), False),
    "as long as a context may be": ("one word " * (MAX_TEXT // 9), True),
    "wide": ("\u6c49" * (MAX_TEXT * 2), False),
    "wide, as long as a context may be": ("\u6c49" * MAX_TEXT, True),
    "lines": ("one line of words, and many more of them\n" * (MAX_TEXT // 25), False),
    "an image": ("A" * (MAX_TEXT * 3), True),
    "an address of an image": ("data:image/png;base64," + "A" * (MAX_TEXT * 3), True),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("ascii_", [False, True])
def test_a_text_that_no_context_holds_is_not_decoded(
    name: str, ascii_: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text of escapes alone may look like an image's, and is decoded."""
    text, passes = TEXTS[name]
    body = json.dumps({"model": "m", "prompt": text}, ensure_ascii=ascii_).encode()
    if passes or (ascii_ and "wide" in name):
        assert decode_object(body)["prompt"] == text
        return
    monkeypatch.setattr(bodies_module, "_decode", pytest.fail)
    with pytest.raises(BadRequest, match="the input is too long"):
        decode_object(body)


def test_many_long_texts_are_no_long_text() -> None:
    texts = ["one word " * 500_000] * 4
    assert decode_object(json.dumps({"input": texts}).encode())["input"] == texts


def test_nor_is_it_rendered() -> None:
    maker = PromptMaker(INFO, None, None, Traits(context_length=100_000))  # type: ignore[arg-type]
    half = Message(role="user", content="a" * (tokenizer.MAX_TEXT // 2 + 1))
    with memory(MB), pytest.raises(BadRequest, match="too long"):
        asyncio.run(maker.from_chat((half, half), (), think=None))


@pytest.mark.parametrize(("tokens", "held"), [(99, True), (100, False), (101, False)])
def test_what_the_context_holds_is_never_cut(tokens: int, held: bool) -> None:
    """A prompt that counts as held is one that `shorten` leaves alone."""
    traits = Traits(context_length=100)
    maker = PromptMaker(INFO, None, None, traits, fitting=Fitting(truncate=False))  # type: ignore[arg-type]
    prompt = Prompt(engine=traits, may_be_cut=False, tokens=tokens)
    assert maker._holds(prompt, ()) is held
    if held:
        assert asyncio.run(maker.shorten(prompt)) is prompt
    else:
        with pytest.raises(ContextOverflow):
            asyncio.run(maker.shorten(prompt))


# -- what stays of a request ---------------------------------------------------------------------


class Body:
    """What was read of a request."""


class Nobody:
    """A client whose answers go nowhere."""

    paused = False
    persists = True
    host = ""

    def date(self) -> bytes:
        return b""

    def write(self, data: bytes) -> None:
        """Drop it."""

    def on_answered(self, request: Request) -> None:
        """Do nothing."""

    def let_go(self) -> None:
        """Do nothing."""

    def check_room(self, size_bytes: int) -> None:
        """Do nothing."""


@pytest.mark.parametrize("error", [BadRequest("no"), VllamaError("no"), ValueError("no")])
def test_nothing_stays_of_a_request_that_failed(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not until the collector of cycles comes, either, which is set to come rarely."""
    alive: list[weakref.ref[Body]] = []

    async def handle(starting: Starting, request: Request) -> None:
        body = Body()
        alive.append(weakref.ref(body))
        try:
            raise KeyError
        except KeyError:
            raise type(error)("no") from LookupError("why")

    async def run() -> None:
        starting = Starting(
            in_use=InUse(Setup(config=Config())),
            keys=KeyRing((), None, RealClock()),
            metrics=Metrics(),
            routes=(Route("GET /x", handle, starting=handle),),
        )
        app = App(starting)
        head = Head("GET", "/x", "1.1", True, {b"host": b"localhost"})
        request = Request(Nobody(), head)  # type: ignore[arg-type]
        await app(request)
        assert request.status >= 400 and alive[0]() is None

    # pytest keeps what was raised, as no log does
    monkeypatch.setattr(app_module.log, "exception", lambda *_: None)
    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
