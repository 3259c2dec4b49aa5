# ruff: noqa: E501 (tables of exact texts)
from __future__ import annotations

from datetime import datetime

import pytest

from tests.jinja import rendered
from vllama.base.errors import BadRequest
from vllama.chat.engine.context import find_starts, take_newest
from vllama.chat.parsers.call_values import ToolCall
from vllama.chat.parsers.thinking import find_open
from vllama.chat.request import Message

USER = [Message(role="user", content="Hi <b>")]


def render(source: str, **more: object) -> str:
    return rendered(source, USER, bos="<s>", eos="</s>", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Hi <b></s>"),
        ("{% if true %}\n  a\n    {% endif %}\nb", "  a\nb"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}a{{ bos_token }}{% endgeneration %}b", "a<s>b"),
        ("{{ {'a': 'é<'} | tojson }}", '{"a": "é<"}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=2) }}", '{\n  "b": 1,\n  "a": 2\n}'),
        ("{{ tools is none }}{{ documents is none }}", "TrueTrue"),
        ("{{ strftime_now is defined }}", "False"),
        ("{{ missing }}{{ missing is defined }}", "False"),
        ("{{ messages[0].tool_calls is defined }}{{ messages[0]['name'] is defined }}", "FalseFalse"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
    ],
)  # fmt: skip
def test_as_transformers_renders(source: str, prompt: str) -> None:
    assert render(source) == prompt


def test_switches_tools_and_time() -> None:
    assert render("{{ enable_thinking }}", enable_thinking=False) == "False"
    assert render("{{ tools[0].function.name }}", tools=[{"function": {"name": "f"}}]) == "f"
    now = 1_795_264_126.0
    expected = datetime.fromtimestamp(now).strftime("%d %b %Y")
    assert render("{{ strftime_now('%d %b %Y') }}", now=now) == expected


def test_tool_messages() -> None:
    source = (
        "{% for m in messages %}{{ m.role }}"
        "{% for c in m.tool_calls or [] %}[{{ c.function.name }}{{ c.function.arguments | tojson }}]"
        "{% endfor %}{{ m.tool_call_id }}{{ m.name }}{{ m.reasoning_content }};{% endfor %}"
    )
    call = ToolCall(id="c", name="f", arguments={"a": "ü"})
    messages = [
        Message(role="assistant", tool_calls=(call,), thinking="hm"),
        Message(role="tool", content="r", tool_call_id="c", tool_name="f"),
    ]
    assert rendered(source, messages) == 'assistant[f{"a": "ü"}]hm;toolcf;'


@pytest.mark.parametrize(
    ("source", "role"),
    [
        ("{{ messages[0].role }}", "system"),
        (
            "{{ messages[0].role }}{% if messages[0].role == 'developer' %}!{% endif %}",
            "developer!",
        ),
    ],
)
def test_the_developer_is_the_system_unless_the_template_knows_both(source: str, role: str) -> None:
    assert rendered(source, [Message(role="developer", content="S")]) == role


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "cannot render the chat template: Roles must alternate"),
        ("{{ 1 / 0 }}", "cannot render the chat template: division by zero"),
        ("{{ messages[5].content.x }}", "cannot render the chat template: "),
        ("{{ 1 + 'a' }}", "cannot render the chat template: "),
        ("{{ ().__class__.__bases__[0].__subclasses__() }}", "cannot render the chat template: access to attribute"),
        ("{{ messages.append(1) }}", "cannot render the chat template: "),
        ("{{ '\\ud800' }}", "cannot render the chat template: 'utf-8' codec can't encode"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "cannot render the chat template: maximum recursion"),
        ("{% include 'x' %}", "cannot render the chat template: "),
    ],
)  # fmt: skip
def test_errors(source: str, text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        render(source)
    assert caught.value.message.startswith(text)


def test_endless_output() -> None:
    source = "{% for a in range(99999) %}{{ messages[0].content }}{% endfor %}"
    with pytest.raises(BadRequest, match="its output does not end"):
        rendered(source, [Message(role="user", content="x" * 10_000)])


def test_not_a_template() -> None:
    with pytest.raises(BadRequest, match="cannot read the model's chat template"):
        rendered("{% if %}", USER)


def test_find_open() -> None:
    assert find_open("<|im_start|>assistant\n<think>\n") == "</think>"
    assert not find_open("<think>\n\n</think>\n\n")


def turns(text: str) -> list[Message]:
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [Message(role=roles[c], content=f"{c}{n}") for n, c in enumerate(text)]


@pytest.mark.parametrize(
    ("conversation", "begins", "at_users"),
    [
        ("suaua", [1, 2, 3, 4], [1, 3, 4]),
        ("uauau", [1, 2, 3, 4], [2, 4]),
        ("suatatau", [1, 2, 4, 6, 7], [1, 7]),
        ("ut", [1], [1]),
        ("u", [0], [0]),
    ],
)
def test_where_a_conversation_may_begin(
    conversation: str, begins: list[int], at_users: list[int]
) -> None:
    messages = turns(conversation)
    assert find_starts(messages) == begins
    assert find_starts(messages, "user") == at_users


@pytest.mark.parametrize(
    ("conversation", "start", "kept"),
    [("suaua", 2, "0 2 3 4"), ("uauau", 4, "4"), ("usuau", 3, "1 3 4"), ("su", 1, "0 1")],
)
def test_system_messages_stay(conversation: str, start: int, kept: str) -> None:
    assert " ".join(m.content[1:] for m in take_newest(turns(conversation), start)) == kept


def test_real_world_template() -> None:
    """SmolLM2's template, from its tokenizer_config.json."""
    source = (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    assert render(source) == (
        "<|im_start|>system\nYou are helpful<|im_end|>\n<|im_start|>user\nHi <b><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
