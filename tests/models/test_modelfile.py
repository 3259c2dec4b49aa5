"""Modelfiles: the grammar, its errors, and that what is written reads back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.facts import INFO, bundle
from vllama.base.errors import BadRequest
from vllama.models.modelfile import (
    BARE_TEMPLATE,
    Modelfile,
    format_modelfile,
    format_parameters,
    parse_modelfile,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM m", {}),
        ("from   m  ", {}),
        ("\n# a\n  # b\n\nFROM m\n", {}),
        ("\ufeffFROM m\r\nSYSTEM hi\r\n", {"system": "hi"}),
        ("FROM m\nSYSTEM You are # not a comment", {"system": "You are # not a comment"}),
        ('FROM m\nSYSTEM "quoted"', {"system": "quoted"}),
        ('FROM m\nSYSTEM "two\nlines"', {"system": "two\nlines"}),
        ('FROM m\nSYSTEM """one"""', {"system": "one"}),
        ('FROM m\nSYSTEM """\na\n\n  "b"\n"""', {"system": '\na\n\n  "b"\n'}),
        ('FROM m\nSYSTEM """a """b""" c\nd"""', {"system": 'a """b""" c\nd'}),
        ('FROM m\nSYSTEM """"', None),
        ('FROM m\nSYSTEM """"""', {"system": ""}),
        ("SYSTEM a\nFROM m\nsystem b", {"system": "b"}),
        ("FROM m\nTEMPLATE {{ .Prompt }}", {"template": "{{ .Prompt }}"}),
        ("FROM m\nLICENSE a\nLICENSE b", {"license": "a\n\nb"}),
        ("FROM m\nPARAMETER temperature 0.5", {"parameters": {"temperature": 0.5}}),
        ("FROM m\nparameter NUM_CTX 4096", {"parameters": {"num_ctx": 4096}}),
        ("FROM m\nPARAMETER use_mmap False", {"parameters": {"use_mmap": False}}),
        ('FROM m\nPARAMETER stop "a b"\nPARAMETER stop c', {"parameters": {"stop": ["a b", "c"]}}),
        ("FROM m\nPARAMETER stop '", {"parameters": {"stop": ["'"]}}),
        ("FROM m\nPARAMETER mirostat 1", {"unused": ("PARAMETER mirostat",)}),
        ("FROM m\nREQUIRES v0.14.0\nRENDERER x\nPARSER y\nDRAFT ./z.gguf",
         {"requires": "0.14.0", "renderer": "x", "parser": "y", "draft_name": "./z.gguf"}),
        ("FROM m\nREQUIRES 1.2.3-rc.1+b\nRENDERER x\nrenderer y",
         {"requires": "1.2.3-rc.1+b", "renderer": "y"}),
        ("FROM m\nADAPTER ./a.gguf", {"adapter_names": ("./a.gguf",)}),
        ("FROM m\nFROM mmproj.gguf", {"sources": ("m", "mmproj.gguf")}),
        ("FROM m\nMESSAGE user hi there\nMESSAGE Assistant \"\"\"a\nb\"\"\"",
         {"messages": ({"role": "user", "content": "hi there"},
                       {"role": "assistant", "content": "a\nb"})}),
    ],
)  # fmt: skip
def test_grammar(text, expected):
    if expected is None:
        with pytest.raises(BadRequest):
            parse_modelfile(text)
    else:
        assert parse_modelfile(text) == Modelfile(**({"sources": ("m",)} | expected))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it has no FROM line"),
        ("SYSTEM x", "it has no FROM line"),
        ("FROM", "line 1: FROM needs a value"),
        ("\n\nFORM m", "line 3: unknown instruction 'form'; did you mean FROM?"),
        ("FROM m\nSTOP x", "unknown instruction 'stop'; choose one of FROM, PARAMETER"),
        ("FROM m\nREQUIRES soon", "line 2: requires must be a valid semver (e.g. 0.14.0)"),
        ("FROM m\nREQUIRES 1.2.3.4", "line 2: requires must be a valid semver"),
        ("FROM m\nDRAFT", "line 2: DRAFT needs a value"),
        ("FROM m\nPARAMETER", "line 2: PARAMETER needs a name and a value"),
        ("FROM m\nPARAMETER temperature", "line 2: PARAMETER needs a name and a value"),
        ("FROM m\nPARAMETER temperature hot", "line 2: parameter 'temperature' needs a number"),
        ("FROM m\nPARAMETER temperature nan", "line 2: parameter 'temperature' needs a number"),
        ("FROM m\nPARAMETER nope 1", "line 2: unknown parameter 'nope'"),
        ("FROM m\nMESSAGE robot hi", "line 2: MESSAGE needs a role: system, user, assistant"),
        ('FROM m\nSYSTEM "open\n\n', "line 2: it has an unclosed quote"),
        ('FROM m\nSYSTEM """a"\n', "line 2: it has an unclosed quote"),
    ],
)
def test_errors_name_the_line(text, says):
    with pytest.raises(BadRequest) as caught:
        parse_modelfile(text)
    assert says in caught.value.message


def settings_of(own, order: Modelfile) -> bool:
    return (
        order.system == own.system
        and order.template == (own.template or BARE_TEMPLATE)
        and order.messages == own.messages
        and order.parameters == own.parameters
        and order.license == own.license
        and order.draft_name == (str(own.draft) if own.draft else None)
        and (order.renderer, order.parser, order.requires)
        == (own.renderer, own.parser, own.requires)
    )


def test_round_trip_of_a_model():
    own = bundle(
        "mine:latest",
        base="smollm2:135m",
        system='Say "hi"\n',
        template="{{ .System }}\n{{ .Prompt }}",
        parameters={"stop": ["<|x|>", 'a"b', "\n"], "temperature": 0.25, "use_mmap": True},
        messages=({"role": "user", "content": " a\tb "}, {"role": "assistant", "content": "c"}),
        license="MIT\n",
        draft=Path("/models/small.gguf"),
        renderer="qwen3",
        parser="qwen3",
        requires="0.14.0",
    )
    text = format_modelfile(own, INFO)
    order = parse_modelfile(text)
    assert order.sources == ("smollm2:135m",)
    assert settings_of(own, order)
    assert "FROM mine:latest" in text.splitlines()[2]


def test_a_model_of_files_names_them():
    own = bundle(projector=Path("/models/mmproj.gguf"))
    assert parse_modelfile(format_modelfile(own, INFO)).sources == (
        str(own.path),
        "/models/mmproj.gguf",
    )


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@given(system=TEXT, stop=TEXT, said=TEXT)
def test_round_trip_of_any_text(system, stop, said):
    for text in (system, stop, said):
        # what the grammar cannot hold, see the module's docstring
        assume(not any(line.rstrip().endswith('"""') for line in text.split("\n")))
    own = bundle(
        system=system, parameters={"stop": [stop]}, messages=({"role": "user", "content": said},)
    )
    assert settings_of(own, parse_modelfile(format_modelfile(own, INFO)))


def test_parameters_as_show_prints_them():
    text = format_parameters({"temperature": 0.5, "stop": ["a", 'b"']})
    assert text.splitlines() == [
        f'{"stop":<30} "a"',
        f'{"stop":<30} "b\\""',
        f"{'temperature':<30} 0.5",
    ]
