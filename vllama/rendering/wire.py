"""What the server and its workers say to each other, and what a template may take.

Both ends are on one socket. A job is its length and JSON: `source`, the template; `variables`,
what it is rendered with, or null if it is only to be compiled; `now`, Unix seconds, or null. An
answer is a head and UTF-8 text. Before the first job a worker answers once, with no text: it is
ready.
"""

from __future__ import annotations

import struct
from enum import Enum

MIB = 1024 * 1024
CPU_S = 2
"""Processor time that a template has for one rendering; up to a second more, as systems count."""
MEMORY_BYTES = 96 * MIB
MEMORY_PER_BYTE = 24
"""A template has `MEMORY_BYTES`, and this for each byte of its job."""
TEXT_BYTES = 4 * MIB
TEXT_PER_BYTE = 8
"""The same for the length of what it renders."""
DETAIL_CHARS = 1000
"""The most of an error of a template's own."""

LENGTH = struct.Struct(">I")
HEAD = struct.Struct(">c?I")
"""Of an answer: a `Verdict`, whether the worker ends now, and the length of the text."""


class Verdict(Enum):
    """How it went; the text is the prompt, or the template's error."""

    RENDERED = b"r"
    UNREADABLE = b"u"
    FAILED = b"f"
    REFUSED = b"x"
    MEMORY = b"m"


def text_limit(job_bytes: int) -> int:
    """Return the most bytes of a prompt, by the size of the job."""
    return TEXT_BYTES + TEXT_PER_BYTE * job_bytes
