# ruff: noqa: E501 (tables of pieces)
"""Fuzzers of what is read here: files, manifests, streams, tool calls, templates, schemas.

Whatever comes, there is a result or an error of ours, after a bounded number of steps.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chat import transcripts
from tests.chat.parsers.test_families import FAMILIES, TOOLS
from tests.chat.replies import chat_reply, generate_reply
from tests.chat.templates.go.test_go_template import CONTROL, DATA, SPACE, VALUES
from tests.chat.test_engine_request import LCP, VLLM
from tests.hostile.counting import steps
from tests.hostile.fuzzing import fuzz, varied
from tests.hostile.test_model_files import (
    ARRAY,
    CONFIG,
    MB,
    NAME,
    STRING,
    WEIGHTS,
    array,
    entry,
    gguf,
    memory,
    number,
    numbers,
    pair,
    text,
)
from vllama.base.errors import BadRequest, VllamaError
from vllama.chat.grammar_schema import COMPILERS, SchemaWriter
from vllama.chat.parsers.call_values import Toolset
from vllama.chat.parsers.thinking import ThinkSplitter
from vllama.chat.reply import Reply
from vllama.chat.schema import check_schema
from vllama.chat.templates.go.execute import read, render
from vllama.chat.templates.jinja.renderer import Renderer
from vllama.chat.tool_calls import CallScanner
from vllama.models.headers.gguf.header import read_header
from vllama.models.headers.info import read_info
from vllama.models.headers.safetensors import read_folder
from vllama.models.modelfile import parse_modelfile
from vllama.models.ollama.manifest import find_digests, parse_manifest
from vllama.models.sources.hub_json import (
    NotTheHub,
    read_listed,
    read_repository,
    read_tree,
)
from vllama.models.types import Bundle, Format

pytestmark = pytest.mark.slow

STEPS = 200_000
BYTES = [
    b"", b"\0", b"\xff", b"\xff" * 8, b"\0" * 8, b"\1\0\0\0", b"\x7f\xff\xff\xff", b"GGUF",
    b"\x08\0\0\0\0\0\0\0", b"\x09\0\0\0", b"[", b"{", b'"', b"9", b"e9", b"-", b",", b"null",
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


# -- model files ---------------------------------------------------------------------------------

HEADERS = [
    gguf([NAME, number(b"block_count", 2), number(b"attention.head_count", 4)], WEIGHTS),
    gguf([NAME, numbers(b"attention.head_count_kv", 2, 3), number(b"block_count", 3)], WEIGHTS * 4),
    gguf(
        [
            NAME,
            pair(b"tokenizer.ggml.tokens", ARRAY, array(STRING, 3, text(b"a") + text(b"b") * 2)),
            pair(b"tokenizer.chat_template", STRING, text(b"{{ messages }}")),
        ],
        WEIGHTS,
    ),
]


@fuzz(1500)
@given(content=varied(HEADERS, BYTES))
def test_fuzz_gguf(place: Path, content: bytes) -> None:
    path = place / "m.gguf"
    path.write_bytes(content)
    bundle = Bundle(
        name="m:latest",
        store="folder",
        format=Format.GGUF,
        path=path,
        files=(path,),
        size_bytes=len(content),
        digest="",
        modified_s=0.0,
    )
    with memory(32 * MB), steps(STEPS):
        for ask in (lambda: read_header(path), lambda: read_info(bundle)):
            try:
                ask()
            except VllamaError as error:
                assert len(error.sentence()) < 2000


@fuzz(1000)
@given(
    config=varied([json.dumps(CONFIG | {"num_hidden_layers": 2}).encode()], BYTES),
    weights=varied([entry(), entry(shape=[2, 2], data_offsets=[0, 16])], BYTES),
)
def test_fuzz_safetensors(place: Path, config: bytes, weights: bytes) -> None:
    folder = place / "m"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes(config)
    (folder / "model.safetensors").write_bytes(weights)
    with memory(32 * MB), steps(STEPS):
        try:
            read_folder(folder)
        except VllamaError as error:
            assert len(error.sentence()) < 2000


@fuzz(1500)
@given(source=varied(
    ["FROM x\nPARAMETER stop a\nSYSTEM \"\"\"a\nb\"\"\"\nTEMPLATE {{ .Prompt }}\nMESSAGE user hi"],
    ["\"\"\"", "\"", "FROM ", "PARAMETER ", "\n", "\r", "#", "'", " ", "MESSAGE ", "\0", "é", "num_ctx 9e99"],
))  # fmt: skip
def test_fuzz_modelfiles(source: str) -> None:
    with steps(STEPS):
        try:
            parse_modelfile(source)
        except VllamaError as error:
            assert len(error.sentence()) < 2000


# -- registries and hubs -------------------------------------------------------------------------

DIGEST = "sha256:" + "a" * 64
LAYER = {"mediaType": "application/vnd.ollama.image.model", "digest": DIGEST, "size": 5}
MANIFEST = {
    "schemaVersion": 2,
    "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
    "config": LAYER,
    "layers": [LAYER, LAYER | {"mediaType": "application/vnd.ollama.image.template"}],
}
ROW = {
    "id": "org/model",
    "sha": "a" * 40,
    "siblings": [{"rfilename": "m-Q4_0.gguf", "size": 5, "blobId": "b" * 40, "lfs": {"size": 5}}],
    "tags": ["gguf", "license:mit", "base_model:a/b"],
    "gguf": {"total": 5},
    "cardData": {"license": "mit", "base_model": ["a/b"]},
    "gated": False,
}
TREE = [{"type": "file", "path": "m-Q4_0.gguf", "size": 5, "oid": "b" * 40}]
JSONS = [
    b"null", b"[]", b"{}", b"-1", b"1e999", b"9" * 30, b'""', b'"../x"', b'"\\u0000"', b"true",
    b'"size":', b'"digest":', b"[[", b"}", b",",
]  # fmt: skip


@fuzz(1500)
@given(content=varied([json.dumps(MANIFEST).encode()], JSONS))
def test_fuzz_manifests(content: bytes) -> None:
    with steps(STEPS):
        for ask in (parse_manifest, find_digests):
            try:
                ask(content)
            except ValueError as error:  # which those who ask word
                assert len(str(error)) < 2000


@fuzz(1500)
@given(content=varied([json.dumps(one).encode() for one in (ROW, TREE, [ROW])], JSONS))
def test_fuzz_hub_answers(content: bytes) -> None:
    try:
        value = json.loads(content)
    except ValueError:
        return
    with steps(STEPS):
        for ask in (read_repository, read_tree, read_listed):
            try:
                ask(value)
            except NotTheHub as error:
                assert len(str(error)) < 2000


# -- engines and models --------------------------------------------------------------------------

STREAMS = [
    value if isinstance(value, bytes) else value.encode()
    for name, value in vars(transcripts).items()
    if name.isupper() and not name.startswith("_") and isinstance(value, str | bytes)
]
EVENTS = [
    b"data: ", b"\n\n", b"\r\n", b"\n", b": comment\n", b"event: x\n", b"[DONE]", b"{}", b"[]", b"null",
    b'"delta":', b'"choices":', b'"tool_calls":', b'{"index":9}', b'"content":', b'"\\ud800"', b"\xff", b"}",
]  # fmt: skip


@fuzz(1500)
@given(
    content=varied(STREAMS, EVENTS),
    cut=st.integers(1, 500),
    whole=st.booleans(),
    traits=st.sampled_from([LCP, VLLM]),
    kind=st.sampled_from([chat_reply, generate_reply]),
)
def test_fuzz_an_engines_stream(
    content: bytes, cut: int, whole: bool, traits: object, kind: Callable[..., Reply]
) -> None:
    reply = kind(model="m", stream=not whole, traits=traits, started_ns=1, loaded_ns=2, sent_ns=3)
    with steps(10 * STEPS):
        try:
            out = [
                reply.feed(content[at : at + cut], 10 + at) for at in range(0, len(content), cut)
            ]
            out.append(reply.finish(10**9))
        except VllamaError as error:
            assert len(error.sentence()) < 5000
            return
    for line in b"".join(out).splitlines():
        json.loads(line)


MARKS = [
    "<tool_call>", "</tool_call>", "<|channel|>", "to=", "<|message|>", "<|end|>", "<think>", "</think>",
    "[TOOL_CALLS]", "[ARGS]", "{", "}", "[", "]", '"', "'", "\\", "(", ")", ",", ":", " ", "\n", "<function=",
    "<parameter=", "</parameter>", "weather", "now", "=", "<|python_tag|>", ">>>", "Action:", "```json", "<",
    "1e9", "\ufffd", "😀", '"name":', '"arguments":', "<|tool_call|>", "<｜tool▁calls▁begin｜>",
]  # fmt: skip


@fuzz(2500)
@given(
    example=st.sampled_from([(form, said) for _, form, said, _, _ in FAMILIES]).flatmap(
        lambda one: st.tuples(st.just(one[0]), varied([one[1]], MARKS))
    ),
    cut=st.integers(1, 80),
)
def test_fuzz_tool_calls(example: tuple[object, str], cut: int) -> None:
    form, said = example
    readers = [
        CallScanner(Toolset(schemas=TOOLS.schemas, form=form)),  # type: ignore[arg-type]
        ThinkSplitter(),
        ThinkSplitter(opened=True),
    ]
    # every character may be looked at some times, never as often as there are characters
    with steps(2000 + 400 * len(said)):
        for reader in readers:
            for at in range(0, len(said), cut):
                reader.feed(said[at : at + cut])
            reader.finish()


# -- templates and schemas -----------------------------------------------------------------------

GO = [source for source, _ in (*VALUES, *SPACE, *CONTROL)]
ACTIONS = [
    "{{", "}}", "{{-", "-}}", "{{ end }}", "{{ if true }}", "{{ range .L }}", "{{ define \"t\" }}",
    "{{ template \"t\" . }}", "| print", "(", ")", '"', "`", "'", ".A", "$x", ":=", "printf \"%9999d\" 1", "/*",
    "*/", "{{ else }}", "{{ break }}", "index", "slice", "len", "0x", "1e9", "\\", "\n", ",", "=",
]  # fmt: skip


@fuzz(2000)
@given(source=varied(GO, ACTIONS))
def test_fuzz_go_templates(renderer: tuple[asyncio.Runner, Renderer], source: str) -> None:
    runner, made = renderer
    try:
        with steps(20 * STEPS):
            tree = read(source)
        work = partial(render, tree, DATA, datetime(2026, 1, 1))  # type: ignore[arg-type]
        runner.run(made.run_template(source, work))
    except BadRequest as error:
        assert len(error.sentence()) < 2000


JINJA = [
    "{% for m in messages %}{{ m.role }}: {{ m['content'] | trim }}\n{% endfor %}{{ bos_token }}",
    "{% set ns = namespace(n=0) %}{% for x in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{% macro f(a, b=1) %}{{ a | tojson }}{% endmacro %}{{ f(messages) }}{{ raise_exception('x') }}",
    "{%- if messages[0].role == 'system' -%}{{ messages[0].content[:5] }}{%- endif -%}",
]
TAGS = [
    "{%", "%}", "{{", "}}", "{#", "#}", "{% endfor %}", "{% for a in messages %}", "{% if x %}", "| join",
    "| tojson", "~", "*", "'a'", "[", "]", "(", ")", "range(9)", "**9", "%9d", ".__class__", "| format",
    "namespace()", "\n", "'", '"', "loop.index", "{% set x = 1 %}", "is defined", "not ", "self",
]  # fmt: skip


@pytest.fixture(scope="module")
def renderer() -> Iterator[tuple[asyncio.Runner, Renderer]]:
    with asyncio.Runner() as runner:

        async def make() -> Renderer:
            return Renderer(os.environ)

        made = runner.run(make())
        yield runner, made

        async def close() -> None:
            made.close()

        runner.run(close())


@fuzz(1500)
@given(source=varied(JINJA, TAGS))
def test_fuzz_jinja_templates(renderer: tuple[asyncio.Runner, Renderer], source: str) -> None:
    runner, made = renderer
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    try:
        out = runner.run(made.render(source, {"messages": messages, "bos_token": "<s>"}, 0.0))
    except BadRequest as error:
        assert len(error.sentence()) < 5000
    else:
        assert isinstance(out, str)


SCHEMAS = [
    b'{"type":"object","properties":{"a":{"type":"string","pattern":"^a{2,3}$"},"b":{"$ref":"#/$defs/c"}},'
    b'"required":["a"],"$defs":{"c":{"$anchor":"n","enum":[1,"x",null]}}}',
    b'{"anyOf":[{"const":"x"},{"type":["integer","null"],"minimum":1,"maximum":9},{"$ref":"#"}]}',
    b'{"type":"array","items":{"$ref":"#n"},"minItems":1,"maxItems":5,"prefixItems":[true,false]}',
]
KEYWORDS = [
    b'"$ref":"#",', b'"$ref":"#/anyOf/0",', b'"allOf":[{}],', b'"type":"object",', b"[", b"]", b"{", b"}", b"true",
    b"null", b"-1", b"1e9", b'"minLength":9,"maxLength":1,', b'"pattern":"(a*)*$",', b'"enum":[],', b'"items":',
]  # fmt: skip


@fuzz(2000)
@given(content=varied(SCHEMAS, KEYWORDS))
def test_fuzz_schemas(content: bytes) -> None:
    try:
        schema = json.loads(content)
    except ValueError:
        return
    if not isinstance(schema, dict):
        return
    with steps(STEPS):
        writers = [SchemaWriter(one) for one in COMPILERS]
        for ask in (check_schema, *(partial(one.write, where="schema") for one in writers)):
            try:
                ask(schema)
            except VllamaError as error:
                assert len(error.sentence()) < 2000
                return
