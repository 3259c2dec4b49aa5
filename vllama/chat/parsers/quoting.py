"""Detection of quoted markers: in code, in HTML, in quotation marks, in a sentence.

Code is that of CommonMark (sections 4.4, 4.5 and 6.1); a fence may also begin within a line, as
models have it. The text is read once, however often somebody asks.
"""

from __future__ import annotations

import re
from enum import Enum

from vllama.chat.parsers.call_values import Toolset

_FENCE = re.compile(r"[ \t>*+\-\d.)]*+(`{3,}+|~{3,}+)(.*+)")  # also in lists and quotations
_ELEMENTS = (
    r"(?:pre|code|samp|kbd|blockquote|q|table|details|textarea|script|style|xmp|examples?)\b"
)
_SIGN = re.compile(rf'`++|"""|<!--|-->|</?{_ELEMENTS}', re.IGNORECASE)
_SIGNS = re.compile(rf'`|~~~|"""|<!--|-->|</?{_ELEMENTS}', re.IGNORECASE)
_FENCE_TICKS, _CODE_INDENT, _INDENT = 3, 4, 2
_BLOCK = re.compile(r" {0,3}\t| {4}|\s*+(?:>|[*+-]\s|\d++[.)]\s)")
_LAZY = re.compile(r" {0,3}>")
# what opens a quotation: a bracket, an arrow, or a quotation mark after white space
_OPENS = re.compile(r"""[(\[{<“‘«„‚「『《【|=#/\\+-]$|[-=]>$|(?:^|[\s(\[{=:,|])["'*_~]{1,3}$""")
_TAG = re.compile(r"<\w")
_OPENS_LINES = re.compile(r"""[(\[{“‘«„‚「『《【]$|(?:^|[\s(\[{=:,|])["']{1,3}$""")
_LOOKED_AT = 200  # characters before a marker


class Spot(Enum):
    """Position of a marker."""

    QUOTED = 1
    LINE = 2  # at the start of a line
    AFTER_TEXT = 3


class Before:
    """The text before a marker; it comes in pieces."""

    __slots__ = (
        "_fence", "_html", "_is_empty", "_is_text", "_last", "_line", "_marked", "_scanned",
        "_ticks",
    )  # fmt: skip

    def __init__(self, text: str = "") -> None:
        self._fence = ""  # what opened the fence
        self._ticks = 0  # how many backticks the inline code began with
        self._html = ""  # what closes the HTML, or the string of Python
        self._line = ""
        self._is_text = False  # the line has inline code or ends HTML, so that it opens no fence
        self._scanned = 0  # characters of the line whose backticks and tags were read
        self._marked = -1  # where in the line the last marker was looked at
        self._last = ""  # the line before, or the last one that is not empty
        self._is_empty = True
        self.feed(text)

    def feed(self, text: str) -> None:
        """Read the next piece."""
        at = 0
        while (end := text.find("\n", at)) >= 0:
            sign = None if self._line else _SIGNS.search(text, at)
            plain = text.rfind("\n", at, sign.start() if sign else len(text)) + 1
            if plain > at and not self._line:
                self._pass_plain(text[at : plain - 1])
                at = plain
                continue
            self._line += text[at:end]
            self._end_line()
            at = end + 1
        self._line += text[at:]

    def ends_in_code(self) -> bool:
        """Tell whether the text ends inside a fence, inline code, or HTML that quotes."""
        if self._fence:
            return not self._closes_fence()
        return bool(self._find_fence()) or self._find_inline()

    def find_place(self, tools: Toolset) -> Spot:
        """Tell where a marker stands that follows: one in code or in a sentence is quoted."""
        line, is_marked = self._line, 0 <= self._marked < len(self._line)
        self._marked = len(line)
        if self.ends_in_code():
            return Spot.QUOTED
        if not line.strip():
            is_block = len(line) >= (_CODE_INDENT if self._is_empty else _INDENT) or "\t" in line
            if is_block or _LAZY.match(self._last):
                return Spot.QUOTED
            last = self._last[-_LOOKED_AT:].rstrip()
            return Spot.QUOTED if _OPENS_LINES.search(last) else Spot.LINE
        if not tools.after_text or is_marked or _BLOCK.match(line) or line.count('"') % 2:
            return Spot.QUOTED
        end = line[-_LOOKED_AT:].rstrip()
        opens = _OPENS.search(end) or (end[-1] == ">" and _TAG.match(end, end.rfind("<")))
        is_tight = not line[-1].isspace() and not opens
        return Spot.AFTER_TEXT if is_tight or end[-1:] in (".", "!", "?") else Spot.QUOTED

    def _end_line(self) -> None:
        line = self._line
        self._note(line)
        if self._fence:
            self._fence = "" if self._closes_fence() else self._fence
        elif fence := self._find_fence():
            self._fence = fence
        else:
            if self._ticks < _FENCE_TICKS and not line.strip():
                self._ticks = 0
            self._line += "\n"  # so that the last backticks have ended
            self._find_inline()
        self._line, self._is_text, self._scanned, self._marked = "", False, 0, -1

    def _pass_plain(self, lines: str) -> None:
        """Pass over lines without any sign."""
        full = lines.rstrip()
        if 0 < self._ticks < _FENCE_TICKS and not all(map(str.strip, lines.split("\n"))):
            self._ticks = 0
        if full:
            self._note(full[full.rfind("\n") + 1 :])
        if not full or "\n" in lines[len(full) :]:
            self._note("")

    def _note(self, line: str) -> None:
        is_blank = not line.strip()
        self._is_empty &= is_blank
        if not is_blank or _LAZY.match(self._last):
            self._last = line

    def _closes_fence(self) -> bool:
        found = _FENCE.match(self._line)
        return bool(found and found[1].startswith(self._fence) and not found[2].strip())

    def _find_fence(self) -> str:
        """Return the fence that the line opens, as far as it goes."""
        is_text = self._ticks or self._html or self._is_text
        found = None if is_text else _FENCE.match(self._line)
        return found[1] if found and ("`" not in found[2] or "~" in found[1]) else ""

    def _find_inline(self) -> bool:
        """Read the new part of the line; tell whether it ends in inline code or HTML."""
        line = self._line
        for sign in _SIGN.finditer(line, self._scanned):
            size = len(sign[0])
            if sign[0][0] != "`":
                self._is_text |= bool(self._html)
                if not self._ticks:
                    self._read_tag(sign[0].lower(), line[: sign.start()])
            elif not self._html:
                if not self._ticks and line[max(0, sign.start() - 1)] == "\\":
                    size -= 1  # the first one is escaped
                ticks = 0 if size == self._ticks else self._ticks or size
                if sign.end() == len(line):  # there may be more of them
                    return bool(ticks)
                self._ticks, self._is_text = ticks, True
            self._scanned = sign.end()
        return bool(self._ticks or self._html)

    def _read_tag(self, tag: str, before: str) -> None:
        if self._html:
            self._html = "" if tag == self._html else self._html
        elif tag == '"""':
            self._html = tag
        elif tag == "<!--":
            self._html = "-->"
        elif tag[1] not in "/-" and not before.strip():  # else it may be talked about
            self._html = f"</{tag[1:]}"


def is_indented(blank: str) -> bool:
    """Tell whether white space at the start of an answer makes a block of code of what follows."""
    line = blank[blank.rfind("\n") + 1 :]
    return len(line) >= _CODE_INDENT or "\t" in line
