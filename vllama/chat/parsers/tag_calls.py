"""Calls written as tags: a function's tag with a tag for each argument.

Qwen 3 Coder, Seed: `<function=name><parameter=key>value</parameter></function>`; functionary and
Llama 3.1 put a JSON object into the same tag. MiniMax M2: `<invoke name="…"><parameter
name="…">value</parameter></invoke>`, DeepSeek V3.2 the same with `｜DSML｜` in each tag. GLM 4.5:
`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>`. Values are bare text, so that
the tool's schema tells what they are. Sources: the models' chat templates on the hub.
"""

from __future__ import annotations

import re

from vllama.chat.parsers.call_values import Found, Toolset, decode_at, object_of, parse_bare, skip

# possessive, as in `jsons`
_FUNCTION = re.compile(r"\s*+([^>\s]++)\s*+>\s*+")
_PARAMETER = re.compile(r"\s*+<parameter=([^>]++)>")
_INVOKE = re.compile(r"""\s*+["']?([^"'>]++)["']?\s*+>\s*+""")
_INVOKE_PARAMETER = re.compile(
    r"""\s*+<(?:｜DSML｜)?parameter name=["']?([^"'>]++)["']?(?: string="(true|false)")?\s*+>"""
)
_INVOKE_END = re.compile(r"\s*+</(?:｜DSML｜)?invoke>")
_KEYED = re.compile(r"\s*+([^\s<>{}\[\]\"]++)\s*+(?=<arg_key>|</tool_call>)")
_PAIR = re.compile(r"\s*+<arg_key>([^<]*+)</arg_key>\s*+<arg_value>")


def read_function(text: str, at: int, tools: Toolset) -> Found | None:
    """Read what follows `<function=`: a JSON object or parameters, up to the closing tag."""
    head = _FUNCTION.match(text, at)
    if head is None:
        return None
    name, at = head[1], head.end()
    if text.startswith("{", at):
        decoded = decode_at(text, at)
        arguments = object_of(decoded[0]) if decoded else None
        if decoded is None or arguments is None:
            return None
        return [(name, arguments)], _after(text, decoded[1], "</function>")
    read = _pairs(text, at, _PARAMETER, "</parameter>", name, tools)
    if read is None or not text.startswith("</function>", skip(text, read[1])):
        return None
    return [(name, read[0])], _after(text, read[1], "</function>")


def read_invoke(text: str, at: int, tools: Toolset) -> Found | None:
    """Read what follows `<invoke name=`."""
    head = _INVOKE.match(text, at)
    if head is None:
        return None
    closing = "</｜DSML｜parameter>" if text.startswith("<｜DSML｜", head.end()) else "</parameter>"
    read = _pairs(text, head.end(), _INVOKE_PARAMETER, closing, head[1], tools)
    end = _INVOKE_END.match(text, read[1]) if read else None
    return ([(head[1], read[0])], end.end()) if read and end else None


def read_keyed(text: str, at: int, tools: Toolset) -> Found | None:
    """Read GLM's name and pairs of key and value."""
    head = _KEYED.match(text, at)
    if head is None or not tools.knows(head[1]):
        return None
    read = _pairs(text, head.end(), _PAIR, "</arg_value>", head[1], tools)
    if read is None or not text.startswith("</tool_call>", skip(text, read[1])):
        return None
    return [(head[1], read[0])], read[1]


def _pairs(
    text: str, at: int, opening: re.Pattern[str], closing: str, name: str, tools: Toolset
) -> tuple[dict[str, object], int] | None:
    """Read arguments, each between `opening` and `closing`; None if one is not closed."""
    arguments: dict[str, object] = {}
    while match := opening.match(text, at):
        end = _end(text, match.end(), closing)
        if end < 0:
            return None
        # templates put each value on lines of its own; these two line breaks are not its own
        raw = text[match.end() : end].removeprefix("\n").removesuffix("\n")
        key = match[1].strip()
        stated = match[2] if opening.groups > 1 else None
        arguments[key] = raw if stated == "true" else parse_bare(raw, name, key, tools)
        at = end + len(closing)
    return arguments, at


def _end(text: str, at: int, closing: str) -> int:
    """Return where a value ends: its own text may hold the closing tag, if no tag follows it."""
    first = end = text.find(closing, at)
    while end >= 0:
        after = skip(text, end + len(closing))
        if text.startswith(("<parameter", "</", "<arg_key>", "<｜DSML｜"), after):
            return end
        end = text.find(closing, end + 1)
    return first


def _after(text: str, at: int, closing: str) -> int:
    """Return the place after `closing`, if it is there."""
    place = skip(text, at)
    return place + len(closing) if text.startswith(closing, place) else at
