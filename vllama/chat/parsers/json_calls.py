"""Calls written as JSON: after a tag, after a name, or bare at the start of an answer.

Hermes, Qwen 2.5 and 3: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. Llama 3:
`<|python_tag|>{"name": …, "parameters": {…}}`, or without the tag. Mistral: `[TOOL_CALLS][{…}, …]`,
since Small 3.2 `[TOOL_CALLS]name[ARGS]{…}`. Granite, Phi 4: a list after `<|tool_call|>`.
Command R7B: `<|START_ACTION|>[{"tool_name": …, "parameters": {…}}]`. DeepSeek and Kimi K2: a name,
a token, the arguments. Sources: the models' chat templates on the hub.
"""

from __future__ import annotations

import re

from vllama.chat.parsers.call_values import (
    Form,
    Found,
    Named,
    Toolset,
    calls_of,
    decode_at,
    object_of,
    skip,
)

# a model may write anything, so that no repeat in these may be given back: they are possessive
_FENCE = re.compile(r"```\w*+\s*+")
_SEPARATOR = re.compile(r"\s*+[;,]?\s*+(?=[\[{])")
_CLOSING_FENCE = re.compile(r"\s*+```[ \t]*+")
_WORD = re.compile(r"[\w.\-]++", re.ASCII)
_KEYS = ("name", "type", "function", "tool_name", "tool_calls", "tool_call")
_NAME = re.compile(
    r"\s*+([\w.\-]++)\s*+(?:\[CALL_ID\]\s*+[\w\-]*+\s*+)?(?:\[ARGS\])?\s*+(?=\{)", re.ASCII
)
_DEEPSEEK = re.compile(
    r"\s*+(?:function<｜tool▁sep｜>\s*+([^\s<{]++)\s*+|([^\s<{]++)\s*+<｜tool▁sep｜>\s*+)"
    r"(?:```(?:json)?)?\s*+(?=\{)"
)
_KIMI = re.compile(
    r"\s*+(?:functions\.)?([^\s:<]++)(?::\d++)?\s*+<\|tool_call_argument_begin\|>\s*+(?=\{)"
)
_HARMONY = re.compile(
    r"(?:functions\.)?([\w.\-]++)[^<]*+(?:<\|constrain\|>[^<]*+)?<\|message\|>\s*+"
)
LONGEST_START = 400
"""So many characters tell whether an answer begins with a call that has no marker."""

_ANSWERS = frozenset({"directly_answer", "directly-answer"})


def read_values(text: str, at: int, tools: Toolset) -> Found | None:
    """Read calls, or lists of calls, one after the other; None if there is none."""
    at = skip(text, at)
    fence = _FENCE.match(text, at)
    at = fence.end() if fence else at
    found: list[Named] = []
    end = at
    while True:
        decoded = decode_at(text, at) if text[at : at + 1] in ("{", "[") else None
        calls = calls_of(decoded[0]) if decoded else None
        if decoded is None or calls is None:
            break
        found += calls
        end = decoded[1]
        separator = _SEPARATOR.match(text, end)
        if separator is None:
            break
        at = separator.end()
    if not found:
        return None
    closing = _CLOSING_FENCE.match(text, end) if fence else None
    return found, closing.end() if closing else end


def read_action(text: str, at: int, tools: Toolset) -> Found | None:
    """Read Command-R's list of actions; its own tool to answer directly is no call."""
    read = read_values(text, at, tools)
    if read is None:
        return None
    return [call for call in read[0] if call[0] not in _ANSWERS], read[1]


def read_mistral(text: str, at: int, tools: Toolset) -> Found | None:
    """Read Mistral's list, else names each with its arguments."""
    return read_values(text, at, tools) or _read_named(text, at, _NAME)


def read_deepseek(text: str, at: int, tools: Toolset) -> Found | None:
    """Read one call of DeepSeek: V3 and R1 name a kind and fence the JSON, V3.1 does not."""
    read = _read_named(text, at, _DEEPSEEK, only=1)
    if read is None:
        return None
    closing = _CLOSING_FENCE.match(text, read[1])
    return read[0], closing.end() if closing else read[1]


def read_kimi(text: str, at: int, tools: Toolset) -> Found | None:
    """Read one call of Kimi K2, whose names are numbered: `functions.name:0`."""
    return _read_named(text, at, _KIMI, only=1)


def read_harmony(text: str, at: int, tools: Toolset) -> Found | None:
    """Read a gpt-oss message to a function (format: OpenAI's harmony guide)."""
    head = _HARMONY.match(text, at)
    if head is None:
        return None
    decoded = decode_at(text, head.end())
    arguments = object_of(decoded[0]) if decoded else None
    if decoded is None or arguments is None:
        return None
    return [(head[1], arguments)], decoded[1]


def read_recipient(text: str, at: int, tools: Toolset) -> Found | None:
    """Read functionary's `>>>name` and its arguments, or `>>>all`, after which text follows."""
    if text.startswith("all\n", at):
        return [], at + len("all\n")
    read = _read_named(text, at, _NAME, only=1)
    return read if read and tools.knows(read[0][0][0]) else None


def read_bare(text: str, tools: Toolset) -> Found | None:
    """Read calls that an answer begins with, without any tag; their names must be known."""
    at = skip(text, 0)
    read: Found | None = None
    if tools.takes_json and json_begins(text[at : at + LONGEST_START]):
        read = read_values(text, at, tools)
    elif tools.form is Form.RECIPIENT:
        read = read_recipient(text, at, tools)
    elif tools.form is Form.NAMED:
        read = _read_named(text, at, _NAME)
    return read if read and all(tools.knows(name) for name, _ in read[0]) else None


def json_begins(start: str) -> bool | None:
    """Tell whether an answer's start is that of a call in JSON; None: too early to say.

    `start` has no white space before it.
    """
    if start[:1] == "[":
        start = start[1:].lstrip()
    for character in "{", '"':
        if not start.startswith(character):
            return False if start else None
        start = start[1:].lstrip() if character == "{" else start[1:]
    key, quote, after = start.partition('"')
    if not quote:
        return None if any(known.startswith(key) for known in _KEYS) else False
    after = after.lstrip()
    if key not in _KEYS or (after and after[0] != ":"):
        return False
    return True if after else None


def name_begins(start: str, tools: Toolset) -> bool | None:
    """Tell the same of a call that begins with a tool's name, in the families that do so."""
    if tools.form not in (Form.NAMED, Form.RECIPIENT):
        return False
    recipient = tools.form is Form.RECIPIENT
    names = [*tools.schemas, *(["all"] if recipient else [])]
    head = _WORD.match(start)
    word = head[0] if head else ""
    rest = start[len(word) :]
    if not rest:
        return None if any(name.startswith(word) for name in names) else False
    if word == "all" and recipient and rest[0] == "\n":
        return True
    if word not in tools.schemas:
        return False
    rest = rest.lstrip()
    return rest[0] in "{[" if rest else None


def _read_named(text: str, at: int, head: re.Pattern[str], only: int = 0) -> Found | None:
    """Read names, each with its arguments; `only`: so many at most."""
    found: list[Named] = []
    while match := head.match(text, at):
        decoded = decode_at(text, match.end())
        arguments = object_of(decoded[0]) if decoded else None
        if decoded is None or arguments is None:
            break
        found.append((next(filter(None, match.groups())), arguments))
        at = decoded[1]
        if only and len(found) == only:
            break
    return (found, at) if found else None
