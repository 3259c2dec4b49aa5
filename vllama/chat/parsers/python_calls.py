"""Calls written as Python, and as the object notation of Gemma.

Llama 3.2 and 4, LFM 2: `[name(key="value"), other()]`; Llama 3.1's own tools: `name.call(…)`;
OLMo 3: one call a line. FunctionGemma: `call:name{key:<escape>text<escape>,n:1}`, Gemma 4 the same
with another quote. Sources: the models' chat templates and prompt formats.
"""

from __future__ import annotations

import ast
import re
import warnings

from vllama.chat.parsers.call_values import Form, Found, Named, Toolset, encodable, skip

_MOST = 100_000  # characters; Python's own parser is not made for more
_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
# possessive, as in `jsons`
_CALL = re.compile(r"\s*+[A-Za-z_][\w.]*+\s*+\(")
_QUOTED = re.compile(r"'[^'\\]*+(?:\\.[^'\\]*+)*+'|\"[^\"\\]*+(?:\\.[^\"\\]*+)*+\"", re.DOTALL)
_WORD = re.compile(r"[\w.]*+", re.ASCII)
_GEMMA = re.compile(r"\s*+call:([\w.\-]++)\s*+\{")
QUOTES = ("<escape>", '<|"|>')
_KEY = re.compile(r"([^:{}\[\],]++):")
_BARE_VALUE = re.compile(r"[^,{}\[\]]*+")
_DEPTH = 32


def list_begins(start: str, tools: Toolset) -> bool | None:
    """Tell whether an answer's start is `[name(` of a known tool; None: too early to say."""
    if tools.form is not Form.BARE or not tools.schemas or start[:1] not in ("[", ""):
        return False
    inner = start[1:].lstrip()
    head = _WORD.match(inner)
    word = head[0] if head else ""
    rest = inner[len(word) :].lstrip()
    if rest:
        return rest[0] == "(" and word in tools.schemas
    return None if any(name.startswith(word) for name in tools.schemas) else False


def read_python(text: str, at: int, tools: Toolset) -> Found | None:
    """Read a list of calls, or calls on lines of their own; None if it is nothing of the kind."""
    at = skip(text, at)
    if text.startswith("[", at):
        end = _close(text, at)
        found = _calls(text[at:end], tools) if end else None
        return (found, end) if found else None
    calls: list[Named] = []
    while _CALL.match(text, at):
        end = _close(text, text.index("(", at))
        found = _calls(text[skip(text, at) : end], tools) if end else None
        if not found:
            break
        calls += found
        at = end
    return (calls, at) if calls else None


def _calls(source: str, tools: Toolset) -> list[Named] | None:
    if len(source) > _MOST:
        return None
    try:
        with warnings.catch_warnings():  # of escapes in a model's strings
            warnings.simplefilter("ignore")
            body = ast.parse(source, mode="eval").body
            nodes = body.elts if isinstance(body, ast.List) else [body]
            return [_call(node, tools) for node in nodes]
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None


def _call(node: ast.expr, tools: Toolset) -> Named:
    """Turn a call's node into name and arguments. Raises ValueError for anything else."""
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    name = ast.unparse(node.func)
    if not tools.knows(name):
        name = name.removesuffix(".call")
    arguments = {word.arg: _literal(word.value) for word in node.keywords if word.arg}
    if len(arguments) < len(node.keywords) or not encodable(arguments):
        raise ValueError("arguments that JSON does not have")
    return name, arguments


def _literal(node: ast.expr) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id.lower() in _CONSTANTS:
        return _CONSTANTS[node.id.lower()]
    if isinstance(node, ast.List):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_literal(key) for key in node.keys if key is not None]
        return dict(zip(keys, map(_literal, node.values), strict=True))
    value: object = ast.literal_eval(node)
    return value


def _close(text: str, at: int) -> int:
    """Return the place after the bracket that closes the one at `at`; 0 if there is none."""
    depth = 0
    last = min(len(text), at + _MOST)
    while at < last:
        character = text[at]
        if character in "\"'":
            quoted = _QUOTED.match(text, at)
            if quoted is None:
                return 0
            at = quoted.end()
            continue
        depth += (character in "[({") - (character in "])}")
        at += 1
        if depth == 0:
            return at
    return 0


def read_gemma(text: str, at: int, tools: Toolset) -> Found | None:
    """Read `call:name{…}`."""
    head = _GEMMA.match(text, at)
    if head is None:
        return None
    try:
        value, end = _value(text, head.end() - 1, 0)
    except (ValueError, IndexError):
        return None
    return ([(head[1], value)], end) if isinstance(value, dict) else None


def _value(text: str, at: int, depth: int) -> tuple[object, int]:
    """Read one value at `at`. Raises ValueError or IndexError if it is not whole."""
    if depth > _DEPTH:
        raise ValueError("too deep")
    for quote in QUOTES:
        if text.startswith(quote, at):
            end = text.index(quote, at + len(quote))
            return text[at + len(quote) : end], end + len(quote)
    if text[at] == "{":
        return _members(text, at + 1, depth)
    if text[at] == "[":
        items: list[object] = []
        at = skip(text, at + 1)
        while text[at] != "]":
            item, at = _value(text, at, depth + 1)
            items.append(item)
            at = _comma(text, at)
        return items, at + 1
    bare = _BARE_VALUE.match(text, at)
    word = bare[0].strip() if bare else ""
    if not word:
        raise ValueError("no value")
    return _scalar(word), at + len(bare[0] if bare else "")


def _members(text: str, at: int, depth: int) -> tuple[dict[str, object], int]:
    members: dict[str, object] = {}
    at = skip(text, at)
    while text[at] != "}":
        key = _KEY.match(text, at)
        if key is None:
            raise ValueError("no key")
        name = key[1].strip()
        for quote in QUOTES:
            name = name.removeprefix(quote).removesuffix(quote)
        members[name], at = _value(text, skip(text, key.end()), depth + 1)
        at = _comma(text, at)
    return members, at + 1


def _comma(text: str, at: int) -> int:
    at = skip(text, at)
    return skip(text, at + 1) if text[at] == "," else at


def _scalar(word: str) -> object:
    if word.lower() in _CONSTANTS:
        return _CONSTANTS[word.lower()]
    for kind in (int, float):
        try:
            value = kind(word)
        except ValueError:
            continue
        return value if encodable(value) else word
    return word
