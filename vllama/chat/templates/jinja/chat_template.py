"""Renders the chat templates of model files as transformers does; runs in a worker.

As in `transformers/utils/chat_template_utils.py`: sandboxed and immutable, `trim_blocks`,
`lstrip_blocks`, loop controls, `raise_exception`, `strftime_now`, `tojson` without HTML escaping,
the `generation` tag without effect.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vllama.base.errors import BadRequest, TemplateRefused, TemplateTooCostly, TemplateTooDeep

KEPT_TEMPLATES = 16
DETAIL_CHARS = 1000
"""The most of an error of a template's own."""

ERRORS = (
    TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip


class Endless(Exception):
    """A template renders more than any prompt is."""


class Refused(TemplateError):
    """A template has called `raise_exception`."""


def render(source: str, variables: bytes, now: float, most: int) -> str:
    """Return the prompt, of at most `most` bytes; `variables` are JSON.

    Raises BadRequest with the template's words.
    """
    try:
        template = compile_template(source)
    except ERRORS as error:
        raise _explain("cannot read the model's chat template", error) from None
    try:
        return _render(template, json.loads(variables), now, most)
    except Refused as error:
        raise TemplateRefused(f"cannot render the chat template: {detail(error)}") from None
    except (OverflowError, Endless) as error:  # engines know no limit to a range
        raise TemplateTooCostly(detail(error)) from None
    except ERRORS as error:
        raise _explain("cannot render the chat template", error) from None


def _explain(problem: str, error: Exception) -> BadRequest:
    kind = TemplateTooDeep if isinstance(error, RecursionError) else BadRequest
    return kind(f"{problem}: {detail(error)}")


def _render(template: Template, variables: dict[str, Any], now: float | None, most: int) -> str:
    """Return the prompt, of at most `most` bytes. Raises `Endless`, and what a template can.

    `now` is shown in local time, as transformers does; without it there is no `strftime_now`.
    """
    if now is not None:
        variables["strftime_now"] = datetime.fromtimestamp(now).strftime
    pieces: list[str] = []
    size = 0
    for piece in template.generate(variables):
        pieces.append(piece)
        size += len(piece.encode())
        if size > most:
            raise Endless("its output does not end")
    return "".join(pieces)


@lru_cache(maxsize=KEPT_TEMPLATES)
def compile_template(source: str) -> Template:
    """Compile a template once."""
    return environment().from_string(source)


def environment() -> ImmutableSandboxedEnvironment:
    """Return the globals of a template."""
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
    """Raise the refusal of a template."""
    raise Refused(message)


def detail(error: Exception) -> str:
    """Return the words of an error; a template may have made them long."""
    return str(error)[:DETAIL_CHARS]
