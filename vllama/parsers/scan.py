"""Finding calls in a text: the table of markers, and what stays when they are taken out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import starmap
from typing import TypeAlias

from vllama.parsers.call_values import Form, Found, Named, Toolset, skip, write_call
from vllama.parsers.json_calls import (
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
from vllama.parsers.python_calls import list_begins, read_gemma, read_python
from vllama.parsers.tag_calls import read_function, read_invoke, read_keyed

Reader: TypeAlias = Callable[[str, int, Toolset], Found | None]

_TRIES = 16
"""After so many calls that cannot be read, the rest is text: reading each again takes long."""


def _tagged(text: str, at: int, tools: Toolset) -> Found | None:
    """Read what a general tag holds, whichever syntax that is."""
    for reader in (read_values, read_keyed, read_python):
        read = reader(text, at, tools)
        if read is not None:
            return read
    return None


def _wrapper(text: str, at: int, tools: Toolset) -> Found | None:
    """Pass over a tag around others."""
    return [], at


_READERS: Mapping[str, Reader] = {
    **dict.fromkeys(
        ("<tool_call>", "<|tool_call|>", "<tool_calls>", "<|tool_calls|>", "<TOOLCALL>",
         "<|START_ACTION|>", "<|tool_call_start|>", "<|python_start|>", "<|python_tag|>",
         "<function_calls>"), _tagged,
    ),
    **dict.fromkeys(
        ("<seed:tool_call>", "<minimax:tool_call>", "<｜DSML｜function_calls>", "<|action_start|>",
         "<｜tool▁calls▁begin｜>", "<|tool_calls_section_begin|>"), _wrapper,
    ),
    "[TOOL_CALLS]": read_mistral,
    "<|plugin|>": read_values,
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
    Form.TAGGED: {}, Form.NAMED: {},
    Form.RECIPIENT: {">>>": read_recipient}, Form.ACTION: {"Action:": read_action},
}  # fmt: skip
_CLOSING = (
    "</tool_call>", "<|/tool_call|>", "</tool_calls>", "<|/tool_calls|>", "</TOOLCALL>",
    "<|END_ACTION|>", "<|tool_call_end|>", "<|python_end|>", "</function_calls>", "</function>",
    "</invoke>", "</｜DSML｜invoke>", "</seed:tool_call>", "</minimax:tool_call>",
    "</｜DSML｜function_calls>", "<|action_end|>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>", "<|tool_calls_section_end|>", "<|tool_call_argument_begin|>", "<|call|>",
    "<end_function_call>", "<tool_call|>", "<|eom_id|>", "<|eot_id|>", "[ARGS]", "[CALL_ID]",
)  # fmt: skip
_QUOTES = ("`", '"', "'", "*")
# what follows a tag in a sentence: punctuation, or the next word
_TALK = re.compile(r"[.,;:!?)]|[ \t]++[^\W\d_][\w'-]*+(?:[ \t.,;:!?)]|$)")
# a form's own marker may as well be text, as `>>>` is in Python; it stays if no call follows
_PLAIN = frozenset({">>>", "Action:"})


class Markers:
    """The markers of a form, and how to look for them in a stream."""

    __slots__ = ("_all", "_first", "_longest", "_opening", "_starts")

    def __init__(self, form: Form) -> None:
        self._opening = {**_READERS, **_OF_FORM[form]}
        self._first = _any(self._opening)
        self._all = _any((*self._opening, *_CLOSING))
        self._starts = frozenset(
            marker[:size] for marker in self._opening for size in range(1, len(marker))
        )
        self._longest = max(map(len, self._opening)) - 1

    def find(self, text: str) -> int:
        """Return where the first marker begins, -1 if there is none."""
        found = self._first.search(text)
        return found.start() if found else -1

    def partial(self, text: str) -> int:
        """Return how many characters at the end of `text` may begin a marker."""
        for size in range(min(self._longest, len(text)), 0, -1):
            if text[-size:] in self._starts:
                return size
        return 0

    def read(self, text: str, at: int, tools: Toolset) -> tuple[list[Named], str]:
        """Return the calls from `at` on, and the text around them without any marker.

        As in Ollama, a call of a tool that nobody has offered is text. A marker that is only talked
        about stays in the text, and so does what closes it.
        """
        calls: list[Named] = []
        texts: list[str] = []
        failures = 0
        is_talk = False
        while marker := self._all.search(text, at):
            between = text[at : marker.start()]
            if is_talk or not between.isspace():
                texts.append(between)
            at = marker.end()
            reader = self._opening.get(marker[0])
            read = reader(text, at, tools) if reader and failures < _TRIES else None
            if reader and failures < _TRIES and _is_talk(text, marker, read, tools):
                failures += 1
                is_talk = True
                texts.append(marker[0])
            elif reader is None and is_talk:
                texts.append(marker[0])
            elif read is not None:
                is_talk = False
                calls += [call for call in read[0] if tools.knows(call[0])]
                unknown = [call for call in read[0] if not tools.knows(call[0])]
                texts.append("\n".join(starmap(write_call, unknown)))
                at = read[1]
            elif reader is not None:
                failures += 1
                is_talk = False
                if marker[0] in _PLAIN:
                    texts.append(marker[0])
            if calls:
                at = skip(text, at)
        texts.append(text[at:])
        return calls, "".join(texts)


def _is_talk(text: str, marker: re.Match[str], read: Found | None, tools: Toolset) -> bool:
    """Tell whether an opening marker is quoted, or part of a sentence, and begins no call."""
    start, end = marker.span()
    if start and text[start - 1] in _QUOTES and text[end : end + 1] == text[start - 1]:
        return True
    if read is not None and (read[1] == end or any(tools.knows(name) for name, _ in read[0])):
        return False  # a call, or a tag around others
    if text[start - 1 : start] == "`" or text.count("```", 0, start) % 2 == 1:
        return True
    return read is None and _TALK.match(text, end) is not None


def _any(markers: Mapping[str, Reader] | tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True))))


_MARKERS = {form: Markers(form) for form in Form}


def markers_of(tools: Toolset) -> Markers:
    """Return the markers to look for."""
    return _MARKERS[tools.form]


def begins_bare(start: str, tools: Toolset) -> bool | None:
    """Tell whether an answer begins with a call that has no marker; None: too early to say.

    Looks at `LONGEST_START` characters at most, and then says no: a stream asks for each token.
    """
    early = len(start) < LONGEST_START
    start = start[:LONGEST_START]
    answers = (json_begins(start), name_begins(start, tools), list_begins(start, tools))
    return True if True in answers else None if None in answers and early else False


def read_calls(text: str, tools: Toolset, before: str = "") -> tuple[list[Named], str]:
    """Return all calls of a held text, and what of it is text; `before` it the answer had more."""
    if before:
        calls, rest = markers_of(tools).read(before + text, len(before), tools)
        return calls[: tools.most], rest if rest.strip() or not calls else ""
    bare = read_bare(text, tools)
    if bare is None and list_begins(text.lstrip()[:LONGEST_START], tools):
        bare = read_python(text, 0, tools)
    calls, at = bare or ([], 0)
    more, rest = markers_of(tools).read(text, skip(text, at) if calls else at, tools)
    calls += more
    return calls[: tools.most], rest if rest.strip() or not calls else ""
