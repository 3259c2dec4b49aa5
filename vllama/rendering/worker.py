"""A worker: renders chat templates of model files as transformers does, in a process of its own.

A template is a stranger's program. Jinja's sandbox keeps it from files and from Python; this
process keeps it from the server's time and memory. It is started with a socket as stdin and speaks
`wire` on it; it imports jinja and the standard library. When the server ends, however it does, so
does the socket, and with it the worker; one that renders just then is ended by its limits.

Templates are rendered as in `transformers/utils/chat_template_utils.py`: sandboxed and immutable,
`trim_blocks`, `lstrip_blocks`, loop controls, `raise_exception`, `strftime_now`, `tojson` without
HTML escaping, the `generation` tag without effect.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vllama.rendering.wire import (
    CPU_S,
    DETAIL_CHARS,
    HEAD,
    LENGTH,
    MEMORY_BYTES,
    MEMORY_PER_BYTE,
    MIB,
    Verdict,
    text_limit,
)

KEPT_TEMPLATES = 16
KEPT_BYTES = 32 * MIB
"""A worker that has grown by more than this ends, so that no template takes from the next."""

ERRORS = (
    TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip


class Endless(Exception):
    """A template renders more than any prompt is."""


class Refused(TemplateError):
    """A template has called `raise_exception`."""


def main() -> None:
    """Answer jobs until the socket ends, or the process has grown too large."""
    jobs, answers = sys.stdin.buffer, open(0, "wb", closefd=False)  # noqa: SIM115
    limit(resource.RLIMIT_CORE, 0)
    size = mapped_bytes()
    answers.write(HEAD.pack(Verdict.RENDERED.value, False, 0))
    answers.flush()
    ends = False
    while not ends and (length := jobs.read(LENGTH.size)):
        (job_bytes,) = LENGTH.unpack(length)
        limit(resource.RLIMIT_CPU, math.ceil(sum(os.times()[:2]) + CPU_S))
        if size:
            limit(resource.RLIMIT_AS, size + MEMORY_BYTES + MEMORY_PER_BYTE * job_bytes)
        verdict, text = answer(jobs.read(job_bytes))
        ends = verdict is Verdict.MEMORY or mapped_bytes() > size + KEPT_BYTES
        answers.write(HEAD.pack(verdict.value, ends, len(text)))
        answers.write(text)
        answers.flush()


def answer(job: bytes) -> tuple[Verdict, bytes]:
    """Do one job: say how it went, and the prompt or the reason in UTF-8."""
    try:
        asked = json.loads(job)
        try:
            template = compiled(asked["source"])
        except ERRORS as error:
            return Verdict.UNREADABLE, detail(error)
        if asked["variables"] is None:
            return Verdict.RENDERED, b""
        try:
            most = text_limit(len(job))
            return Verdict.RENDERED, rendered(template, asked["variables"], asked["now"], most)
        except Refused as error:
            return Verdict.REFUSED, detail(error)
        except (*ERRORS, Endless) as error:
            return Verdict.FAILED, detail(error)
    except MemoryError:
        return Verdict.MEMORY, b""


def rendered(template: Template, variables: dict[str, Any], now: float | None, most: int) -> bytes:
    """Return the prompt, of at most `most` bytes. Raises `Endless`, and what a template can raise.

    `now` is shown in local time, as transformers does; without it there is no `strftime_now`.
    """
    if now is not None:
        variables["strftime_now"] = datetime.fromtimestamp(now).strftime
    pieces: list[bytes] = []
    size = 0
    for piece in template.generate(variables):
        pieces.append(piece.encode())
        size += len(pieces[-1])
        if size > most:
            raise Endless("its output has no end")
    return b"".join(pieces)


@lru_cache(maxsize=KEPT_TEMPLATES)
def compiled(source: str) -> Template:
    """Compile a template once."""
    return environment().from_string(source)


def environment() -> ImmutableSandboxedEnvironment:
    """Return what a template knows."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, LoopControlExtension]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    return made


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks what is trained on; here it is only its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as `json.dumps` does, which is what templates rely on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def raise_exception(message: str) -> NoReturn:
    """Let a template refuse what it is given."""
    raise Refused(message)


def detail(error: Exception) -> bytes:
    """Return the words of an error; a template may have made them long."""
    return str(error)[:DETAIL_CHARS].encode("utf-8", "replace")


def limit(kind: int, value: int) -> None:
    """Set a limit of this process, as far as whoever started the server allows."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def mapped_bytes() -> int:
    """Return the size of the address space; 0 except on Linux, which alone limits it as well."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


if __name__ == "__main__":
    main()
