# ruff: noqa: E501 (templates)
"""Calls rendered into a history by a template and read back out of it are the same calls.

The templates are short ones of our own that write calls as each family's template does.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jinja import rendered
from vllama.chat.parsers.call_values import Form, ToolCall
from vllama.chat.parsers.thinking import ThinkSplitter
from vllama.chat.request import Message
from vllama.chat.templates.template_style import read_style
from vllama.chat.tool_calls import CallScanner, Toolset

EACH = "{% for c in messages[-1].tool_calls %}{% set f = c.function %}"
TEMPLATES = {
    "hermes": EACH + '<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments|tojson }}}\n</tool_call>\n{% endfor %}',
    "qwen coder": EACH + "<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments|items %}<parameter={{ k }}>\n{{ v if v is string else v|tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}",
    "llama": EACH + '{"name": "{{ f.name }}", "parameters": {{ f.arguments|tojson }}}{{ "; " if not loop.last }}{% endfor %}',
    "mistral": "[TOOL_CALLS][" + EACH + '{"name": "{{ f.name }}", "arguments": {{ f.arguments|tojson }}, "id": "abcdefghi"}{{ ", " if not loop.last }}{% endfor %}]',
    "mistral names": EACH + "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments|tojson }}{% endfor %}",
    "deepseek v3": "<｜tool▁calls▁begin｜>" + EACH + "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n{{ f.arguments|tojson }}\n```<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>",
    "deepseek v3.1": "<｜tool▁calls▁begin｜>" + EACH + "<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments|tojson }}<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>",
    "kimi": "<|tool_calls_section_begin|>" + EACH + "<|tool_call_begin|>functions.{{ f.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>{{ f.arguments|tojson }}<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>",
    "glm": EACH + "<tool_call>{{ f.name }}\n{% for k, v in f.arguments|items %}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v if v is string else v|tojson }}</arg_value>\n{% endfor %}</tool_call>\n{% endfor %}",
    "minimax": "<minimax:tool_call>\n" + EACH + '<invoke name="{{ f.name }}">\n{% for k, v in f.arguments|items %}<parameter name="{{ k }}">{{ v if v is string else v|tojson }}</parameter>\n{% endfor %}</invoke>\n{% endfor %}</minimax:tool_call>',
    "granite": "<|tool_call|>[" + EACH + '{"name": "{{ f.name }}", "arguments": {{ f.arguments|tojson }}}{{ ", " if not loop.last }}{% endfor %}]',
    "command r7b": "<|START_ACTION|>[" + EACH + '{"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f.name }}", "parameters": {{ f.arguments|tojson }}}{{ ", " if not loop.last }}{% endfor %}]<|END_ACTION|>',
    "functionary": "{# >>>all #}" + EACH + "{{ '>>>' if not loop.first }}{{ f.name }}\n{{ f.arguments|tojson }}{% endfor %}",
    "gpt-oss": "<|channel|>analysis<|message|>Hm.<|end|>" + EACH + "<|start|>assistant<|channel|>commentary to=functions.{{ f.name }} <|constrain|>json<|message|>{{ f.arguments|tojson }}<|call|>{% endfor %}",
}  # fmt: skip

NAMES = ("weather", "get_time", "x-1")
# what all of these formats can hold: bare text keeps no line break at its ends
WORDS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<>"), max_size=20
)
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.lists(WORDS, max_size=3),
    st.dictionaries(WORDS, WORDS | st.integers(-9, 9), max_size=2),
)
SCHEMA: dict[str, Any] = {"properties": {"s": {"type": "string"}, "v": {}}}
ARGUMENTS = st.fixed_dictionaries({}, optional={"s": WORDS, "v": VALUES})
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), min_size=1, max_size=3)


@pytest.mark.parametrize("family", TEMPLATES)
@given(calls=CALLS, cut=st.integers(1, 20))
def test_rendered_calls_are_read_back(
    family: str, calls: list[tuple[str, dict[str, object]]], cut: int
) -> None:
    made = tuple(
        ToolCall(id=f"call_{n}", name=name, arguments=arguments, index=n)
        for n, (name, arguments) in enumerate(calls)
    )
    text = rendered(TEMPLATES[family], [Message(role="assistant", tool_calls=made)])
    style = read_style(TEMPLATES[family])
    schemas = dict.fromkeys(NAMES, SCHEMA)
    tools = Toolset(schemas=schemas, form=style.form, markers=style.markers)
    splitter, scanner = ThinkSplitter(), CallScanner(tools)
    thinking = content = ""
    for start in range(0, len(text), cut):
        more, rest = splitter.feed(text[start : start + cut])
        thinking += more
        content += scanner.feed(rest)
    more, rest = splitter.finish()
    content += scanner.feed(rest)
    found, left = scanner.finish()
    assert [(call.name, call.arguments) for call in found] == calls
    assert (content + left).strip() == ""
    assert thinking == ("Hm." if family == "gpt-oss" else "")


def test_forms_are_told_by_the_template() -> None:
    forms = {family: read_style(source).form for family, source in TEMPLATES.items()}
    assert forms.pop("mistral") is forms.pop("mistral names") is Form.NAMED
    assert forms.pop("functionary") is Form.RECIPIENT
    assert forms.pop("llama") is Form.BARE  # which has no marker at all
    assert set(forms.values()) == {Form.TAGGED}
