"""Go's text/template, first step: text → tokens.

Source of the grammar: the documentation of Go's package text/template and the Go language
specification (literals). `{{- ` trims white space before an action, ` -}}` after it; an action may
span lines; `{{/* … */}}` is a comment. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from vllama.base.errors import BadRequest

SPACE = " \t\r\n"
INT_BITS = 63

_OPEN = re.compile(r"\{\{(-(?=[ \t\r\n]))?")
_COMMENT = re.compile(r"[ \t\r\n]*/\*.*?\*/(?P<trim>[ \t\r\n]+-)?\}\}", re.DOTALL)
_CLOSE = re.compile(r"(?P<trim>[ \t\r\n]+-)?\}\}")
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<raw>`[^`]*`)
    |(?P<char>'(?:[^'\\\n]|\\.)+')
    |(?P<number>[+-]?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+
        |(?:[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?!\w))
    |(?P<field>\.[^\W\d]\w*)
    |(?P<variable>\$\w*)
    |(?P<word>[^\W\d]\w*)
    |(?P<sign>:=|[=|(),.])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))", re.DOTALL
)
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_SIMPLE |= {"\\": "\\", '"': '"', "'": "'"}


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A piece of a template; `spaced`: white space precedes it.

    `kind` is text, open, close, or the name of a group of `_TOKEN`. `value` is the text, or what a
    literal stands for.
    """

    kind: str
    value: object
    line: int
    spaced: bool = False


def wrong(line: int, reason: str) -> NoReturn:
    """Raise the BadRequest that names the line."""
    raise BadRequest(f"cannot use the template: line {line}: {reason}")


def tokens(source: str) -> Iterator[Lexeme]:
    """Yield the tokens of a template. Raises BadRequest."""
    at, line, trim_next = 0, 1, False
    while at < len(source):
        opening = _OPEN.search(source, at)
        end = opening.start() if opening else len(source)
        text = source[at:end]
        if trim_next:
            text = text.lstrip(SPACE)
        if opening and opening[1]:
            text = text.rstrip(SPACE)
        if text:
            yield Lexeme("text", text, line)
        line += source.count("\n", at, end)
        if opening is None:
            return
        at = opening.end()
        comment = _COMMENT.match(source, at)
        if comment:
            line += source.count("\n", at, comment.end())
            at, trim_next = comment.end(), bool(comment["trim"])
            continue
        yield Lexeme("open", None, line)
        spaced = True
        while not (closing := _CLOSE.match(source, at)):
            match = _TOKEN.match(source, at)
            if match is None:
                _refuse(source, at, line)
            kind, text = str(match.lastgroup), match.group()
            if kind != "space":
                yield Lexeme(kind, _value(kind, text, line), line, spaced)
            spaced = kind == "space"
            line += text.count("\n")
            at = match.end()
        yield Lexeme("close", None, line)
        line += source.count("\n", at, closing.end())
        at, trim_next = closing.end(), bool(closing["trim"])


def _refuse(source: str, at: int, line: int) -> NoReturn:
    if at >= len(source):
        wrong(line, "unclosed action: }} is missing")
    if source[at] in "\"'`":
        wrong(line, "unclosed quoted string")
    if source.startswith("/*", at):
        wrong(line, "a comment must fill its action: {{/* … */}}")
    wrong(line, f"unexpected {source[at]!r} in an action")


def _value(kind: str, text: str, line: int) -> object:
    match kind:
        case "string":
            return _unquote(text[1:-1], line)
        case "raw":
            return text[1:-1].replace("\r", "")
        case "char":
            char = _unquote(text[1:-1], line)
            if len(char) != 1:
                wrong(line, f"{text} is not one character")
            return ord(char)
        case "number":
            return _number(text, line)
        case "field":
            return text[1:]
        case _:
            return text


def _number(text: str, line: int) -> int | float:
    try:
        if re.fullmatch(r"[+-]?0[0-7_]+", text):  # Go reads a leading 0 as octal
            value = int(text.replace("_", ""), 8)
        else:
            value = int(text, 0)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            wrong(line, f"{text} is not a number")
    if not -(1 << INT_BITS) <= value < 1 << INT_BITS:
        wrong(line, f"{text} is too large")
    return value


def _unquote(text: str, line: int) -> str:
    def replace_escape(match: re.Match[str]) -> str:
        *codes, octal, simple = match.groups()
        if simple is not None:
            if simple not in _SIMPLE:
                wrong(line, f"unknown escape \\{simple} in a string")
            return _SIMPLE[simple]
        number = int(octal, 8) if octal else int(next(code for code in codes if code), 16)
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            wrong(line, f"{match.group()} is not a character")
        return chr(number)

    return _ESCAPE.sub(replace_escape, text)
