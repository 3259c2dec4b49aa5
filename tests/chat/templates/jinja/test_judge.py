"""Templates are judged before an engine renders them: only a limit condemns one."""

from __future__ import annotations

import asyncio
import os

import pytest

from vllama.base.errors import TemplateTooCostly
from vllama.chat.templates.jinja.renderer import Renderer
from vllama.models.headers.chat_templates import KNOWN

DOUBLES = (
    "{% set n = namespace(x=1) %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
)
COSTLY = [
    DOUBLES,
    "{% if tools %}" + DOUBLES + "{% endif %}",
    "{% if messages[0].role == 'system' %}" + DOUBLES + "{% endif %}",
    "{% for a in range(10 ** 12) %}{{ a }}{% endfor %}",  # the sandbox ends it, an engine does not
    "{% for a in range(99999) %}{% for b in range(99999) %}{{ 'abcdef' }}{% endfor %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) ~ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",  # an engine ends with its stack
    "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}",
    "{% if x %}" * 9999 + "{% endif %}" * 9999,
]
HONEST = [
    "{{ raise_exception('never') }}",
    "{% for message in messages %}{{ message.content }}{% endfor %}",
    "{{ messages[9].content }}",
    "{{ nothing.at.all }}",
    "{{ 1 / 0 }}",
    "{% llama_cpp_only %}",
    "{{ messages | unknown }}",
    "",
]


def judge(*sources: str) -> None:
    async def main() -> None:
        renderer = Renderer(os.environ)
        try:
            for source in sources:
                await renderer.judge(source)
        finally:
            renderer.close()

    asyncio.run(main())


@pytest.mark.parametrize("source", COSTLY)
def test_a_template_that_breaks_a_limit_is_refused(source: str) -> None:
    with pytest.raises(TemplateTooCostly, match="cannot render the model's chat template: "):
        judge(source)


def test_honest_templates_are_not_refused() -> None:
    judge(*HONEST, *(row.template for row in KNOWN))
