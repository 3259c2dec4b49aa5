"""Finding calls in a text: the table of markers, and what stays when they are taken out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from itertools import starmap
from typing import TypeAlias

from vllama.chat.parsers.call_values import Form, Found, Named, Toolset, skip, write_call
from vllama.chat.parsers.json_calls import (
    LONGEST_START,
    json_begins,
    name_begins,
    read_action,
    read_bare,
    read_deepseek,
    read_harmony,
    read_kimi,
    read_mistral,
    read_recipient,
    read_values,
)
from vllama.chat.parsers.python_calls import list_begins, read_gemma, read_python
from vllama.chat.parsers.quoting import Before, Spot, is_indented
from vllama.chat.parsers.tag_calls import read_function, read_invoke, read_keyed

Reader: TypeAlias = Callable[[str, int, Toolset], Found | None]

Known: TypeAlias = dict[int, Found | None]
"""What was read at each place."""

MAX_TRIES = 64
"""After so many markers among text, or of calls that cannot be read, the rest is text: to look at
all that stands before each, and to read each again, takes long."""

LONG_TRY = 50_000
"""A call that cannot be read counts once more for each so many characters that follow."""


def _read_tagged(text: str, at: int, tools: Toolset) -> Found | None:
    """Read the content of a general tag, whichever syntax that is."""
    for reader in (read_values, read_keyed, read_python):
        read = reader(text, at, tools)
        if read is not None:
            return read
    return None


def _wrapper(text: str, at: int, tools: Toolset) -> Found | None:
    """Pass over a tag around others."""
    return [], at


def _read_list(text: str, at: int, tools: Toolset) -> Found | None:
    """Read the list that a tag opens."""
    return read_values(text, at - 1, tools)


_READERS: Mapping[str, Reader] = {
    **dict.fromkeys(
        ("<tool_call>", "<|tool_call|>", "<tool_calls>", "<|tool_calls|>", "<TOOLCALL>",
         "<|START_ACTION|>", "<|tool_call_start|>", "<|python_start|>", "<|python_tag|>",
         "<function_calls>", "<function_call>", "<longcat_tool_call>"), _read_tagged,
    ),
    **dict.fromkeys(
        ("<seed:tool_call>", "<minimax:tool_call>", "<｜DSML｜function_calls>",
         "<｜DSML｜tool_calls>", "<dots_function_call>", "<|action_start|>",
         "<｜tool▁calls▁begin｜>", "<|tool_calls_section_begin|>"), _wrapper,
    ),
    "[TOOL_CALLS]": read_mistral,
    **dict.fromkeys(
        ("<|plugin|>", "<|function_call|>", "function call<|role_sep|>"), read_values
    ),
    "functools[": _read_list,
    "<function=": read_function,
    "<invoke name=": read_invoke,
    "<｜DSML｜invoke name=": read_invoke,
    "<｜tool▁call▁begin｜>": read_deepseek,
    "<|tool_call_begin|>": read_kimi,
    "<|channel|>commentary to=": read_harmony,
    "<start_function_call>": read_gemma,
    "<|tool_call>": read_gemma,
}  # fmt: skip
_OF_FORM: Mapping[Form, Mapping[str, Reader]] = {
    Form.TAGGED: {}, Form.NAMED: {}, Form.BARE: {},
    Form.RECIPIENT: {">>>": read_recipient}, Form.ACTION: {"Action:": read_action},
}  # fmt: skip
_CLOSING = (
    "</tool_call>", "<|/tool_call|>", "</tool_calls>", "<|/tool_calls|>", "</TOOLCALL>",
    "<|END_ACTION|>", "<|tool_call_end|>", "<|python_end|>", "</function_calls>", "</function>",
    "</invoke>", "</｜DSML｜invoke>", "</seed:tool_call>", "</minimax:tool_call>",
    "</｜DSML｜function_calls>", "</｜DSML｜tool_calls>", "</function_call>",
    "</longcat_tool_call>", "</dots_function_call>", "<|action_end|>",
    "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>", "<|tool_calls_section_end|>", "<|tool_call_argument_begin|>", "<|call|>",
    "<end_function_call>", "<tool_call|>", "<|eom_id|>", "<|eot_id|>", "[ARGS]", "[CALL_ID]",
    "<|message_sep|>", "<|end|>",
)  # fmt: skip
MARKS = (*_READERS, *_CLOSING)
# what follows a tag in a sentence: punctuation, or the next word
_STOP = re.compile(r"[.,;:!?)]")
_TALK = re.compile(r"[.,;:!?)]|[ \t]++[^\W\d_][\w'-]*+(?:[ \t.,;:!?)]|$)")
# a form's own marker may as well be text, as `>>>` is in Python; it stays if no call follows
_PLAIN = frozenset({">>>", "Action:"})


class Markers:
    """The markers of a family, and how to look for them in a stream."""

    __slots__ = ("_all", "_between", "_first", "_longest", "_opening", "_starts")

    def __init__(self, form: Form, family: frozenset[str]) -> None:
        own = {marker: _READERS[marker] for marker in family} or _READERS
        self._opening = {**own, **_OF_FORM[form]}
        self._first = _any(self._opening)
        self._all = _any((*self._opening, *_CLOSING))
        self._between = re.compile(rf"\s++|{_any(_CLOSING).pattern}")
        self._starts = frozenset(
            marker[:size] for marker in self._opening for size in range(1, len(marker))
        )
        self._longest = max(map(len, self._opening)) - 1

    def find(self, text: str, at: int = 0) -> int:
        """Return where the first marker begins, -1 if there is none."""
        found = self._first.search(text, at)
        return found.start() if found else -1

    def partial(self, text: str) -> int:
        """Return how many characters at the end of `text` may begin a marker."""
        for size in range(min(self._longest, len(text)), 0, -1):
            if text[-size:] in self._starts:
                return size
        return 0

    def pass_calls(self, text: str, at: int, tools: Toolset, known: Known) -> int | None:
        """Return where the calls from `at` on, and what closes them, end; None: the text is cut."""
        end = at
        while True:
            while found := self._between.match(text, at):
                at = found.end()
                end = end if found[0].isspace() else at
            marker = self._first.match(text, at)
            if marker is None:
                is_cut = any(tag.startswith(text[at:]) for tag in (*self._opening, *_CLOSING))
                return None if is_cut else end
            read = self._read_at(text, marker, tools, known)
            if read is None:
                return None  # the answer was cut in a call
            at = end = read[1]

    def _read_at(
        self, text: str, marker: re.Match[str], tools: Toolset, known: Known
    ) -> Found | None:
        """Read what follows a marker, once."""
        at = marker.end()
        if at not in known:
            known[at] = self._opening[marker[0]](text, at, tools)
        return known[at]

    def read(self, text: str, at: int, tools: Toolset, before: Before) -> tuple[list[Named], str]:
        """Return the calls from `at` on, and the text around them, as it was; it is `before` it.

        A marker that is only talked about stays in the text, and so does what closes it. As in
        Ollama, a call of a tool that nobody has offered is text. Of a call that cannot be read,
        because it is wrong or was cut, the markers are left out.
        """
        calls: list[Named] = []
        texts: list[str] = []
        tries = fed = 0
        known: Known = {}
        state = _State.TEXT
        while marker := self._all.search(text, at):
            start, end = marker.span()
            between = text[at:start]
            follows = state is not _State.TEXT and not between.strip()
            if not follows:
                texts.append(between)
            at = end
            if marker[0] not in self._opening:
                if state is _State.TEXT or (state is _State.CALL and not follows):
                    texts.append(marker[0])
                else:
                    state = _State.CALL
                    at = skip(text, at) if calls else at
                continue
            place, read = Spot.QUOTED, None
            if tries < MAX_TRIES:
                before.feed(text[fed:start])
                fed = start
                place = Spot.LINE if follows else before.find_place(tools)
            if place is not Spot.QUOTED:
                read = self._read_at(text, marker, tools, known)
                tries += 0 if read else (len(text) - end) // LONG_TRY
            tries += read is None or not follows
            quoted = 0
            if read and not follows:
                quoted = self._find_quoted(text, read[1], place, tools, known)
            if quoted:
                state, at = _State.TEXT, quoted
                texts.append(text[start:at])
            elif place is Spot.QUOTED or (read is None and _TALK.match(text, end)):
                state = _State.TEXT
                texts.append(marker[0])
            elif read is None:
                state = _State.BROKEN
                texts.append(marker[0] if marker[0] in _PLAIN else "")
            elif read[0] and not any(tools.knows(name) for name, _ in read[0]):
                state, at = _State.TEXT, read[1]
                texts.append(text[start:at])
            else:
                state, at = _State.CALL, read[1]
                if not calls and not "".join(texts).strip():
                    texts.clear()  # white space before a call
                calls += [call for call in read[0] if tools.knows(call[0])]
                unknown = [call for call in read[0] if not tools.knows(call[0])]
                texts.append("\n".join(starmap(write_call, unknown)))
                at = skip(text, at) if calls else at
        texts.append(text[at:])
        return calls, "".join(texts)

    def _find_quoted(self, text: str, at: int, place: Spot, tools: Toolset, known: Known) -> int:
        """Return where the calls from `at` on end, if the text goes on so that they are quoted."""
        end = self.pass_calls(text, at, tools, known)
        if end is None:
            return 0
        if place is Spot.AFTER_TEXT:
            return end if text[end:].strip() else 0
        return end if (_STOP if tools.after_text else _TALK).match(text, end) else 0


class _State(Enum):
    TEXT = 1  # the latest marker was talked about
    CALL = 2
    BROKEN = 3


def _any(markers: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True))))


_markers = lru_cache(maxsize=64)(Markers)


def markers_of(tools: Toolset) -> Markers:
    """Return the markers to look for."""
    return _markers(tools.form, tools.markers)


def find_markers(template: str) -> frozenset[str]:
    """Return the markers that a chat template writes."""
    words = {marker: marker.split(" ")[0] if marker[0] == "<" else marker for marker in _READERS}
    return frozenset(marker for marker, word in words.items() if word in template)


def begins_bare(start: str, tools: Toolset) -> bool | None:
    """Tell whether an answer begins with a call that has no marker; None: too early to say.

    Looks at `LONGEST_START` characters at most, and then says no: a stream asks for each token.
    """
    early = len(start) < LONGEST_START
    start = start[:LONGEST_START]
    json = tools.takes_json and json_begins(start)
    answers = (json, name_begins(start, tools), list_begins(start, tools))
    return True if True in answers else None if None in answers and early else False


def read_calls(text: str, tools: Toolset, before: Before | None) -> tuple[list[Named], str]:
    """Return all calls of a held text, and what of it is text; `before` it the answer had more."""
    markers = markers_of(tools)
    bare = _read_bare(text, tools) if before is None else None
    if bare and bare[0] and not tools.forced:
        end = markers.pass_calls(text, bare[1], tools, {})
        if end is not None and text[end:].strip():
            bare = None  # more than a call, so a text that begins like one
    calls, at = bare or ([], 0)
    more, rest = markers.read(text, skip(text, at) if calls else at, tools, before or Before())
    calls += more
    return calls[: tools.most], rest if rest.strip() or not calls else ""


def _read_bare(text: str, tools: Toolset) -> Found | None:
    if not tools.forced and is_indented(text[: skip(text, 0)]):
        return None
    bare = read_bare(text, tools)
    if bare is None and list_begins(text.lstrip()[:LONGEST_START], tools):
        bare = read_python(text, 0, tools)
    return bare
