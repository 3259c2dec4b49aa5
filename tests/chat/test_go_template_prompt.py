# ruff: noqa: E501 (tables of exact texts)
"""Prompts by templates of Ollama's kinds; the templates are short ones of our own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.base.errors import BadRequest
from vllama.chat.parsers.call_values import ToolCall
from vllama.chat.request import Message
from vllama.chat.templates.go_template_prompt import GoTemplate, parse_go_template

NOW = 1_780_000_000.0


def said(role: str, content: str = "", **more: object) -> Message:
    return Message(role=role, content=content, **more)  # type: ignore[arg-type]


CHAT = (
    said("system", "Be kind."),
    said("user", "Hi"),
    said("assistant", "Hello"),
    said("user", "Bye"),
)
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather & more",
            "parameters": {
                "type": "object",
                "required": ["city"],
                "properties": {
                    "unit": {"type": ["string", "null"], "enum": ["C", "F"]},
                    "city": {"type": "string", "description": "Where"},
                    "days": {
                        "anyOf": [
                            {"type": "integer"},
                            {"type": "array", "items": {"type": "number"}},
                        ]
                    },
                },
            },
        },
    },
)
CALLED = (
    said("user", "Weather?"),
    said(
        "assistant",
        tool_calls=(ToolCall(name="weather", arguments={"unit": "C", "city": "Ulm", "n": 2}),),
    ),
    said("tool", "sunny", tool_name="weather", tool_call_id="c1"),
    said("tool", "warm", tool_name="weather"),
)

CHATML = "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n"
TURNS = "{{ if .System }}<|system|>{{ .System }}<|end|>\n{{ end }}{{ if .Prompt }}<|user|>{{ .Prompt }}<|end|>\n{{ end }}<|assistant|>{{ .Response }}<|end|>\n"
LLAMA2 = "[INST] {{ if .System }}<<SYS>>{{ .System }}<</SYS>>\n\n{{ end }}{{ .Prompt }} [/INST]"
LAST = '{{- range $i, $_ := .Messages }}{{- $last := eq (len (slice $.Messages $i)) 1 }}{{- if eq .Role "user" }}<u>{{ .Content }}{{ else if eq .Role "assistant" }}<a>{{ .Content }}{{ end }}{{- if and $last (ne .Role "assistant") }}<a>{{ end }}{{- end }}'


@pytest.mark.parametrize(
    ("source", "messages", "prompt"),
    [
        (CHATML, CHAT[1:2], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        ("{{ .System }}:{{ range .Messages }}{{ .Role }},{{ end }}", CHAT, "Be kind.:system,user,assistant,user,"),
        # turn by turn, the last one up to where the model goes on
        (TURNS, CHAT, "<|system|>Be kind.<|end|>\n<|user|>Hi<|end|>\n<|assistant|>Hello<|end|>\n<|user|>Bye<|end|>\n<|assistant|>"),
        (TURNS, CHAT[:3], "<|system|>Be kind.<|end|>\n<|user|>Hi<|end|>\n<|assistant|>Hello"),
        # {{ .Response }} is put at the end of a template that lacks it
        (LLAMA2, CHAT, "[INST] <<SYS>>Be kind.<</SYS>>\n\nHi [/INST]Hello[INST] Bye [/INST]"),
        ("{{ .Prompt }}", CHAT, "HiHelloBye"),
        ("{{ .Prompt }}", (), ""),
        # a system message in the middle begins a turn
        (TURNS, (CHAT[1], CHAT[0], CHAT[3]), "<|user|>Hi<|end|>\n<|assistant|><|end|>\n<|system|>Be kind.<|end|>\n<|user|>Bye<|end|>\n<|assistant|>"),
        (LAST, CHAT, "<u>Hi<a>Hello<u>Bye<a>"),
        (LAST, CHAT[:3], "<u>Hi<a>Hello"),
        # neighbors of one role are one message, but tools' results are not
        ("{{ range .Messages }}{{ .Role }}={{ .Content }};{{ end }}", (said("user", "a"), said("user", "b")), "user=a\n\nb;"),
        ("{{ range .Messages }}{{ if .ToolName }}{{ .ToolName }}={{ .Content }}{{ .ToolCallID }};{{ end }}{{ end }}", CALLED, "weather=sunnyc1;weather=warm;"),
        ("{{ if .Response }}never{{ end }}{{ range .Messages }}{{ end }}", CHAT, ""),
        # what follows .Response belongs to turns that are over, wherever it stands
        ("{{ .Prompt }}{{ if true }}({{ .Response }}){{ else }}x{{ end }}!", CHAT, "Hi(Hello)!Bye("),
    ],
)  # fmt: skip
def test_conversations(source: str, messages: tuple[Message, ...], prompt: str) -> None:
    assert GoTemplate(source).chat(messages, now=NOW) == prompt


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ range .Tools }}{{ .Type }} {{ .Function.Name }}: {{ .Function.Description }}{{ end }}", "function weather: Tells the weather & more"),
        ("{{ range .Tools }}{{ range .Function.Parameters.Required }}{{ . }}{{ end }}{{ end }}", "city"),
        ("{{ range .Tools }}{{ range $name, $p := .Function.Parameters.Properties }}{{ $name }}:{{ $p.Type }};{{ end }}{{ end }}", "city:string;days:;unit:[string null];"),
        ("{{ range .Tools }}{{ range $n, $p := .Function.Parameters.Properties }}{{ toTypeScriptType $p }};{{ end }}{{ end }}", "string;number | any[];string | null;"),
        ("{{ range .Tools }}{{ .Function.Parameters.Properties.none.Description }}|{{ toTypeScriptType 3 }}{{ end }}", "|any"),
        ("{{ if .Tools }}{{ (index .Tools 0).Function.Parameters.Properties.unit.Enum }}{{ end }}", "[C F]"),
        (
            "{{ range .Tools }}{{ .Function }}{{ end }}",
            '{"name":"weather","description":"Tells the weather \\u0026 more","parameters":{"type":"object","required":["city"],'
            '"properties":{"city":{"type":"string","description":"Where"},"days":{"anyOf":[{"type":"integer"},{"type":"array","items":{"type":"number"}}]},'
            '"unit":{"type":["string","null"],"enum":["C","F"]}}}}',
        ),
    ],
)  # fmt: skip
def test_tools(source: str, text: str) -> None:
    template = GoTemplate(source + "{{ range .Messages }}{{ end }}")
    assert template.takes_tools
    assert template.chat(CHAT, tools=TOOLS, now=NOW) == text


def test_tools_as_a_whole_are_json() -> None:
    template = GoTemplate("{{ .Tools }}|{{ json .Tools }}{{ range .Messages }}{{ end }}")
    one, other = template.chat(CHAT, tools=TOOLS, now=NOW).split("|")
    assert one == other
    assert one.startswith('[{"type":"function","function":{"name":"weather"')
    assert template.chat(CHAT, now=NOW) == "[]|[]"


@pytest.mark.parametrize(
    "tool",
    [{}, {"function": None}, {"function": {"parameters": {"properties": {"a": None, "b": {"enum": 3, "anyOf": [1]}}, "required": "x"}}}, {"FUNCTION": {"Name": 3}}],
)  # fmt: skip
def test_odd_tools_do_no_harm(tool: dict[str, object]) -> None:
    assert GoTemplate("{{ .Tools }}{{ range .Messages }}{{ end }}").chat(
        CHAT, tools=[tool], now=NOW
    )


def test_calls() -> None:
    source = '{{ range .Messages }}{{ range .ToolCalls }}{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}{{ .Function.Arguments.n }}{{ range $k, $v := .Function.Arguments }}{{ $k }}{{ end }}{{ end }}{{ end }}'
    prompt = GoTemplate(source).chat(CALLED, now=NOW)
    assert prompt == '{"name": "weather", "arguments": {"city":"Ulm","n":2,"unit":"C"}}2citynunit'


@pytest.mark.parametrize(
    ("think", "text"),
    [
        (None, "false||false"),
        (True, "true|medium|true"),
        (False, "false||true"),
        ("low", "true|low|true"),
    ],
)
def test_thinking(think: bool | str | None, text: str) -> None:
    shown = "{{ .Think }}|{{ .ThinkLevel }}|{{ .IsThinkSet }}"
    assert (
        GoTemplate(shown + "{{ range .Messages }}{{ end }}").chat(CHAT, now=NOW, think=think)
        == text
    )
    assert GoTemplate(shown + "{{ .Response }}").chat(CHAT[1:2], now=NOW, think=think) == text
    assert GoTemplate(shown + "{{ .Suffix }}").insert("a", "", now=NOW, think=think) == text


@pytest.mark.parametrize(
    ("source", "tags"),
    [
        ("{{ range .Messages }}{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}{{ end }}", ("<think>", "</think>")),
        ("{{ range $i, $m := .Messages }}x{{ if and $m.Thinking true }}\n<t>\n{{ .Thinking }}\n</t>\n{{ end }}{{ end }}", ("<t>", "</t>")),
        ("{{ range .Messages }}{{ if .Thinking }}{{ .Content }}{{ end }}{{ end }}", None),
        ("{{ range .Tools }}<a>{{ .Thinking }}</a>{{ end }}{{ .Messages }}", None),
        ("<think>{{ .Prompt }}</think>", None),
        ("<think>{{ .Thinking }}</think>", None),
    ],
)  # fmt: skip
def test_the_tags_around_thinking(source: str, tags: tuple[str, str] | None) -> None:
    assert GoTemplate(source).think_tags == tags


def test_what_a_template_takes() -> None:
    for source, tools, suffix in (
        ("{{ .Prompt }}", False, False),
        ("{{ if .Suffix }}a{{ end }}", False, True),
        ("{{ with .Messages }}{{ $.Tools }}{{ end }}", True, False),
        ('{{ define "x" }}{{ .Tools }}{{ end }}{{ template "x" .Suffix }}', True, True),
        ("{{ print (len (slice .Tools 0)) }}", True, False),
        ("Tools and .Suffix", False, False),
    ):
        template = GoTemplate(source)
        assert (template.takes_tools, template.takes_suffix) == (tools, suffix), source


def test_a_gap_to_fill() -> None:
    template = GoTemplate(
        "{{ if .Suffix }}<PRE> {{ .Prompt }} <SUF>{{ .Suffix }} <MID>{{ else }}{{ .Prompt }}{{ end }}"
    )
    assert template.insert("def f(", "return 1", now=NOW) == "<PRE> def f( <SUF>return 1 <MID>"
    assert template.chat(CHAT[1:2], now=NOW) == "Hi"


def test_what_is_no_template() -> None:
    with pytest.raises(BadRequest, match="Jinja"):
        parse_go_template("{% for m in messages %}{{ m }}{% endfor %}")
    with pytest.raises(BadRequest, match='line 2: function "messages" not defined'):
        parse_go_template("a\n{{ messages }}")


@given(
    st.lists(
        st.builds(
            Message,
            role=st.sampled_from(["system", "user", "assistant", "tool", "developer"]),
            content=st.text(alphabet="abc ", max_size=6),
        ),
        max_size=8,
    )
)
def test_nothing_that_was_said_is_lost(messages: list[Message]) -> None:
    source = "{{ range .Messages }}[{{ .Role }}]{{ .Content }}{{ end }}"
    prompt = GoTemplate(source).chat(messages, now=NOW)
    wanted, last = "", None
    for message in messages:
        joined = message.role == last and last != "tool"
        wanted += ("\n\n" if joined else f"[{message.role}]") + message.content
        last = message.role
    assert prompt == wanted


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=4), st.text(min_size=1, max_size=4)), max_size=5
    ),
    st.text(min_size=1, max_size=4),
)
def test_turn_by_turn_is_one_rendering_a_turn(turns: list[tuple[str, str]], last: str) -> None:
    messages = [
        said(role, text)
        for pair in turns
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    prompt = GoTemplate("<{{ .Prompt }}>({{ .Response }})").chat(
        [*messages, said("user", last)], now=NOW
    )
    assert prompt == "".join(f"<{asked}>({answer})" for asked, answer in turns) + f"<{last}>("
