"""Special tokens in the text of an engine that was asked to leave them there. Pure.

Those that mark calls and thinking are read; the others are noise, and would hide a mark beside
them. Of what was read nothing may be left in the end. An engine sends a special token in one piece.
"""

from __future__ import annotations

import re
from functools import lru_cache

from vllama.chat.parsers.harmony import TAGS
from vllama.chat.parsers.python_calls import QUOTES
from vllama.chat.parsers.scan import MARKS
from vllama.chat.parsers.thinking import PAIRS

_OF_VALUES = (
    "<parameter=", "<parameter name=", "</parameter>", "<｜DSML｜parameter name=",
    "</｜DSML｜parameter>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
)  # fmt: skip
_OF_CALLS = (*MARKS, *_OF_VALUES, *QUOTES, *TAGS)
_READ = (*_OF_CALLS, *PAIRS, *PAIRS.values())
_LIKE_MARKS = re.compile(r"think|tool|call|channel|invoke|action|prefix", re.IGNORECASE)
_ENDS = {"<|end|>", "<|return|>", "<|eom_id|>", "<|eot_id|>"}  # of other texts, too
PRESERVED = sorted(set(re.findall(r"<[^<>=]++>|\[/?+[A-Z_]++\]", " ".join(_OF_CALLS))) - _ENDS)
"""The marks of calls that may be one token each."""


@lru_cache(maxsize=64)
def has_marks(tokens: tuple[str, ...]) -> bool:
    """Tell whether any of the tokens may mark a call or thinking, also in ways not read here."""
    return any(map(_LIKE_MARKS.search, tokens))


@lru_cache(maxsize=64)
def find_noise(tokens: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern of the tokens that neither are nor belong to a mark that is read here."""
    return compile_tokens(
        tuple(token for token in tokens if not any(token in mark for mark in _READ))
    )


@lru_cache(maxsize=64)
def compile_tokens(tokens: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern of all of the tokens; of none it matches nothing."""
    longest_first = sorted(filter(None, tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
