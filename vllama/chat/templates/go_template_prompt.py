"""Prompts by a model's Go template, as Ollama makes them.

Source: Ollama's template/template.go (`Parse`, `Vars`, `Execute`, `collate`, `deleteNode`) and
thinking/template.go (`InferTags`). A template that names `.Messages` is rendered once, with
everything; an older one, of `.System`, `.Prompt` and `.Response`, is rendered turn by turn, the
last turn only up to `.Response`, where the model goes on. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property, lru_cache

from vllama.base.errors import BadRequest
from vllama.chat.request import Message, Think
from vllama.chat.templates.go.execute import read, render
from vllama.chat.templates.go.parse import Branch, Include, Node, Path, Pipe, Print, Text, Tree
from vllama.chat.templates.go_template_data import (
    collate,
    message_value,
    thinking_values,
    tool_values,
)

_RESPONSE = Print(Pipe(0, ((Path("", ("Response",)),),)))

MAX_KEPT_LENGTH = 16 * 1024  # characters: a tree takes a hundred times the memory


class GoTemplate:
    """A template with what its text tells about the model."""

    def __init__(self, source: str) -> None:
        """Read `source`. Raises BadRequest naming the line."""
        self.source = source
        if "{%" in source:
            raise BadRequest(
                "cannot use the template: it is Jinja's ({% … %})",
                hint="use Go's text/template ({{ .Prompt }}), or the model's own template",
            )
        tree = read(source)
        bodies = (tree.body, *tree.defined.values())
        self.variables = frozenset(name.lower() for body in bodies for name in _names(body))
        """Every name that is looked up, in lower case."""
        if not self.variables & {"messages", "response"}:
            tree = replace(tree, body=(*tree.body, _RESPONSE))
        self._tree = tree

    def __reduce__(self) -> tuple[Callable[[str], GoTemplate], tuple[str]]:
        """Pickle only the source: a tree is larger, and a template worker may know it."""
        return parse_go_template, (self.source,)

    @property
    def takes_tools(self) -> bool:
        """True if tools are shown to the model."""
        return "tools" in self.variables

    @property
    def takes_suffix(self) -> bool:
        """True if text can be put into a gap."""
        return "suffix" in self.variables

    @cached_property
    def think_tags(self) -> tuple[str, str] | None:
        """Tags around thinking in a conversation, (opening, closing); None: no tags.

        They are the texts around `.Thinking` within the loop over the messages.
        """
        found = _think_tags(self._tree.body, within=None)
        return found if found and all(found) else None

    @cached_property
    def _until_response(self) -> Tree:
        return replace(self._tree, body=_cut(self._tree.body)[0])

    def chat(
        self,
        messages: Sequence[Message],
        *,
        now: float,
        tools: Sequence[Mapping[str, object]] = (),
        think: Think = None,
    ) -> str:
        """Return the prompt of a conversation; `now` in Unix seconds. Raises BadRequest."""
        moment, switches = datetime.fromtimestamp(now), thinking_values(think)
        system, turns = collate(messages)
        if "messages" in self.variables:
            data = {
                "System": system,
                "Messages": [message_value(message) for message in turns],
                "Tools": tool_values(tools),
                "Response": "",
            }
            return render(self._tree, data | switches, moment)
        *done, last = _turns(turns)
        parts = [render(self._tree, turn | switches, moment) for turn in done]
        return "".join([*parts, render(self._until_response, last | switches, moment)])

    def insert(self, prompt: str, suffix: str, *, now: float, think: Think = None) -> str:
        """Return the prompt that asks for the text between two. Raises BadRequest."""
        data = {"Prompt": prompt, "Suffix": suffix, "Response": ""}
        return render(self._tree, data | thinking_values(think), datetime.fromtimestamp(now))


def parse_go_template(source: str) -> GoTemplate:
    """Read a template, an ordinary one only once. Raises BadRequest."""
    return _kept(source) if len(source) <= MAX_KEPT_LENGTH else GoTemplate(source)


_kept = lru_cache(maxsize=64)(GoTemplate)


def _turns(messages: Iterable[Message]) -> list[dict[str, object]]:
    """Group messages into turns of system, prompt and response; the last may lack its response."""
    turns: list[dict[str, object]] = []
    turn = {"System": "", "Prompt": "", "Response": ""}
    for message in messages:
        begun = turn["Response"] or (message.role == "system" and turn["Prompt"])
        if begun and message.role in ("system", "user"):
            turns.append({**turn})
            turn = {"System": "", "Prompt": "", "Response": ""}
        match message.role:
            case "system":
                turn["System"] = message.content
            case "user":
                turn["Prompt"] = message.content
            case "assistant":
                turn["Response"] = message.content
    return [*turns, {**turn}]


def _names(nodes: Iterable[Node]) -> Iterator[str]:
    """Yield every name that is looked up, in any branch."""
    for node in nodes:
        match node:
            case Print(pipe):
                yield from _pipe_names(pipe)
            case Branch(_, pipe, body, otherwise):
                yield from _pipe_names(pipe)
                yield from _names((*body, *otherwise))
            case Include(_, _, Pipe() as pipe):
                yield from _pipe_names(pipe)


def _pipe_names(pipe: Pipe) -> Iterator[str]:
    for command in pipe.commands:
        for operand in command:
            if isinstance(operand, Path):
                yield from operand.names
                if isinstance(operand.start, Pipe):
                    yield from _pipe_names(operand.start)


def _cut(nodes: Iterable[Node]) -> tuple[tuple[Node, ...], bool]:
    """Return the nodes up to the one that writes `.Response`, and whether there is one."""
    kept: list[Node] = []
    for node in nodes:
        found = False
        match node:
            case Print(pipe):
                found = "Response" in _pipe_names(pipe)
            case Branch():
                body, found = _cut(node.body)
                otherwise, found = ((), True) if found else _cut(node.otherwise)
                node = replace(node, body=body, otherwise=otherwise)
        kept.append(node)
        if found:
            return tuple(kept), True
    return tuple(kept), False


def _think_tags(nodes: Sequence[Node], within: Branch | None) -> tuple[str, str] | None:
    """Look for `.Thinking` in the loop over the messages; return the texts around it."""
    for node in nodes:
        match node:
            case Print(pipe) if "Thinking" in _pipe_names(pipe):
                if within is None or "Messages" not in _pipe_names(within.pipe):
                    continue
                first, last = nodes[0], nodes[-1]
                opening = first.text.strip() if isinstance(first, Text) else ""
                closing = last.text.strip() if isinstance(last, Text) else ""
                return opening, closing
            case Branch(kind, _, body, otherwise):
                inner = node if kind == "range" else within
                found = _think_tags(body, inner) or _think_tags(otherwise, inner)
                if found:
                    return found
    return None
