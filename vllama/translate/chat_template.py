"""A model's own jinja chat template, rendered as transformers does.

Follows `transformers/utils/chat_template_utils.py`: sandboxed and immutable, `trim_blocks`,
`lstrip_blocks`, loop controls, `raise_exception`, `strftime_now`, `tojson` without HTML escaping,
the `generation` tag without effect. A template is somebody else's program: what makes output or
loops explode is bounded, its errors are BadRequest. Imported with the first template only, since
jinja takes 4 MiB and 50 ms.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vllama.errors import BadRequest
from vllama.translate.types import Message

MAX_PROMPT_CHARS = 64 * 1024 * 1024
MAX_LOOP_STEPS = 1_000_000
MAX_REPEAT = 100_000

_TEMPLATE_ERRORS = (
    TemplateError, ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError,
    TypeError, ValueError,
)  # fmt: skip


class ChatTemplate:
    """A compiled template with the model's special tokens."""

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        """Compile `source`. Raises BadRequest if it is no template."""
        self.source = source
        self._bos, self._eos = bos, eos
        # OpenAI's new name for the system message, which most templates do not know
        self._roles = {} if "developer" in source else {"developer": "system"}
        try:
            self._template = _environment().from_string(source)
        except (TemplateError, RecursionError, ValueError) as error:
            raise BadRequest(f"cannot read the model's chat template: {error}") from None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, object]] = (),
        add_generation_prompt: bool = True,
        now: float | None = None,
        **kwargs: object,
    ) -> str:
        """Return the prompt. `now` (Unix seconds) is shown in local time, as transformers does.

        Without it the template has no `strftime_now`. `kwargs` are the template's own switches, as
        `enable_thinking`. Raises BadRequest with the template's words.
        """
        variables: dict[str, Any] = {
            **kwargs,
            "messages": [self._message(message) for message in messages],
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self._bos,
            "eos_token": self._eos,
            "range": _Ranges(),
        }
        if now is not None:
            moment = datetime.fromtimestamp(now)
            variables["strftime_now"] = moment.strftime
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(variables):
                size += len(piece)
                if size > MAX_PROMPT_CHARS:
                    raise BadRequest("cannot render the chat template: its output has no end")
                pieces.append(piece)
        except _TEMPLATE_ERRORS as error:
            raise BadRequest(f"cannot render the chat template: {error}") from None
        return "".join(pieces)

    def _message(self, message: Message) -> dict[str, object]:
        """Return the dict that templates expect; keys only where there is something."""
        role = self._roles.get(message.role, message.role)
        out: dict[str, object] = {"role": role, "content": message.content}
        if message.thinking:
            out["reasoning_content"] = message.thinking
            out["thinking"] = message.thinking
        if message.tool_calls:
            out["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in message.tool_calls
            ]
        if message.tool_name:
            out["name"] = message.tool_name
        if message.tool_call_id:
            out["tool_call_id"] = message.tool_call_id
        return out


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with products bounded as well: `'a' * 10**10` is one operation."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse to repeat text or to raise to a power without bound."""
        if operator == "**" and (abs(left) > MAX_REPEAT or abs(right) > 64):
            raise SecurityError("a power in the template is too large")
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if (
                    isinstance(one, str | list | tuple)
                    and isinstance(other, int)
                    and len(one) * other > MAX_REPEAT
                ):
                    raise SecurityError("a repetition in the template is too long")
        return super().call_binop(context, operator, left, right)


class _Ranges:
    """`range` for one rendering, with a budget that all loops share."""

    def __init__(self) -> None:
        self._left = MAX_LOOP_STEPS

    def __call__(self, *args: int) -> range:
        """Return a range. Raises SecurityError when the budget is used up."""
        wanted = range(*args)
        self._left -= len(wanted) + 1
        if self._left < 0:
            raise SecurityError("the template's loops have no end")
        return wanted


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks what is trained on; here it is only its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, LoopControlExtension]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
