"""Protocol between the server and its workers, and the limits of a job.

Both ends are on one socket. A job is a head and a pickled function with its arguments; an answer
is a head and UTF-8 text, since a worker is not to be believed. Before the first job a worker
answers once, with no text: it is ready.
"""

from __future__ import annotations

import struct
from enum import Enum

MIB = 1024 * 1024
MEMORY_BYTES = 96 * MIB
MEMORY_PER_BYTE = 24
"""A job has `MEMORY_BYTES`, and this for each of its own bytes."""
TEXT_BYTES = 4 * MIB
TEXT_PER_BYTE = 8
"""The same for the length of what it makes."""

JOB = struct.Struct(">fI")
"""Of a job: its seconds of CPU time, and its length."""
HEAD = struct.Struct(">c?I")
"""Of an answer: a `Outcome`, whether the worker ends now, and the length of the text."""


class Outcome(Enum):
    """Outcome of a job; its text is the result, or the message of an error."""

    DONE = b"d"
    FAILED = b"f"
    REFUSED = b"x"
    COSTLY = b"c"
    DEEP = b"n"


def text_limit(job_bytes: int) -> int:
    """Return the most bytes of a result, by the size of the job."""
    return TEXT_BYTES + TEXT_PER_BYTE * job_bytes


def render_template(source: str, variables: bytes, now: float) -> str:
    """Render a template of Jinja with `variables` (JSON)."""
    from vllama.chat.templates.jinja.chat_template import (
        render,  # Jinja is not for the server's process
    )

    return render(source, variables, now, text_limit(len(variables)))
