"""Analysis of a model's chat template: its tools, its syntax of calls, its switches.

Pure text, read once for each template. The words looked for are those of the Jinja templates on
the hub; Ollama reads the same from its Go templates.

See docs/reference/ollama-api.md#capabilities, #thinking.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from vllama.chat.parsers.call_values import Form
from vllama.chat.parsers.scan import find_markers
from vllama.chat.request import Message, Think

_TOOLS = re.compile(r"\btools\b")
_THINKING = re.compile(
    r"<[^<>\s]{0,20}think[^<>\s]{0,20}>|<[^<>\s]{0,20}THINKING[^<>\s]{0,20}>|\benable_thinking\b"
    r"|\breasoning_content\b|<\|channel>thought|<\|channel\|>analysis|\[THINK\]|◁think▷"
    r"|Here is my thought process|<\|open\|>think|to=self<\|message\|>|<\|inner_prefix\|>"
)
_CALLS = re.compile(r"tool_?calls", re.IGNORECASE)
_NO_SYSTEM = re.compile(r"raise_exception\(\s*['\"][^'\"]*system role", re.IGNORECASE)
# a variable of the template, not a message's field of that name
_SWITCH = re.compile(
    r"(?:\{%[^%]*?|\{\{[^{}]*?)(?<![.\w'\"])(enable_thinking|thinking|reasoning_effort)(?![\w'\"])"
)
_SHORT_IDS = re.compile(r"length\s*!=\s*9|length 9\b")
_FORMS = (
    (Form.NAMED, lambda source: "[TOOL_CALLS]" in source),
    (Form.RECIPIENT, re.compile(r">>>\s*(?:all|['\"{])").search),
    (Form.ACTION, lambda source: "tool_name" in source.partition("Action:")[2]),
    # Llama's words for it; or it writes earlier calls without any marker
    (Form.BARE, re.compile(r'"parameters": dictionary|\[func_name1\(').search),
    (Form.BARE, lambda source: _CALLS.search(source) and not find_markers(source)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Conventions of a model's conversations, as far as its template shows them.

    `takes_tools`: it shows tools to the model; `takes_system`: it does not refuse a system message;
    `form`: how calls are marked, and `markers`: by which of the known ones; `short_ids`: it takes
    ids of calls of nine characters only; `switches`: variables that it knows of
    `template_switches`. `keeps_history`: earlier calls stay calls even if it takes no tools, as in
    Ollama's templates.
    """

    takes_tools: bool = True
    takes_system: bool = True
    form: Form = Form.TAGGED
    markers: frozenset[str] = frozenset()
    short_ids: bool = False
    switches: frozenset[str] = frozenset()
    keeps_history: bool = False


@lru_cache(maxsize=64)
def read_style(template: str | None) -> Style:
    """Read a template; a model that has none takes no tools."""
    source = template or ""
    return Style(
        takes_tools=takes_tools(source),
        takes_system=_NO_SYSTEM.search(source) is None,
        form=next((form for form, sign in _FORMS if sign(source)), Form.TAGGED),
        markers=find_markers(source),
        short_ids=_SHORT_IDS.search(source) is not None,
        switches=frozenset(_SWITCH.findall(source)),
    )


def takes_tools(template: str) -> bool:
    """Tell whether a template shows tools to the model."""
    return _TOOLS.search(template) is not None


@lru_cache(maxsize=64)
def marks_thinking(template: str) -> bool:
    """Tell whether a template marks thinking or switches it."""
    return _THINKING.search(template) is not None


def choose_think(think: Think, style: Style | None) -> Think:
    """Return the template's switches: as in Ollama thinking is on unless it is switched off.

    It has to be said, because some templates leave it off by themselves (DeepSeek V3.1, Granite).
    """
    if think is None and style is not None and style.switches & {"enable_thinking", "thinking"}:
        return True
    return think


def template_switches(think: Think) -> dict[str, Any]:
    """Return the variables that switch thinking, for templates of every family.

    `enable_thinking`: Qwen 3, GLM 4.5, SmolLM 3. `thinking`: DeepSeek V3.1, Granite.
    `reasoning_effort`: gpt-oss, Seed. A template ignores names that it does not know. gpt-oss
    cannot be switched off, so it is asked for as little as possible.
    """
    if think is None:
        return {}
    switches: dict[str, Any] = {"enable_thinking": bool(think), "thinking": bool(think)}
    if think is False:
        switches["reasoning_effort"] = "low"
    elif isinstance(think, str):
        switches["reasoning_effort"] = think
    return switches


def template_variables(
    source: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[dict[str, object]] = (),
    add_generation_prompt: bool = True,
    bos: str = "",
    eos: str = "",
    **switches: object,
) -> dict[str, object]:
    """Return the variables for the template `source`.

    `bos` and `eos` are the texts of the model's special tokens, `switches` the template's own, as
    `enable_thinking`.
    """
    # OpenAI's new name for the system message, which most templates do not know
    roles = {} if "developer" in source else {"developer": "system"}
    return {
        **switches,
        "messages": [_message(message, roles) for message in messages],
        "tools": list(tools) or None,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos,
        "eos_token": eos,
    }


def _message(message: Message, roles: dict[str, str]) -> dict[str, object]:
    """Return the dict that templates expect; keys only where there is something."""
    role = roles.get(message.role, message.role)
    out: dict[str, object] = {"role": role, "content": message.content}
    if message.thinking:
        out["reasoning_content"] = message.thinking
        out["thinking"] = message.thinking
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_name:
        out["name"] = message.tool_name
    if message.tool_call_id:
        out["tool_call_id"] = message.tool_call_id
    return out
