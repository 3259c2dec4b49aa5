"""Go's text/template, last step: tree and data → text.

A template is somebody else's program. It can reach nothing but the data it is given, and what it
does wrong is a BadRequest naming the line. Its time and memory are bounded by the process that it
is run in (`jinja.renderer`). Missing keys are as with Ollama's option `missingkey=zero`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from vllama.chat.templates.go.functions import NAMES, functions
from vllama.chat.templates.go.lex import wrong
from vllama.chat.templates.go.parse import (
    Branch,
    Command,
    Function,
    Include,
    Jump,
    Literal,
    Nil,
    Node,
    Operand,
    Path,
    Pipe,
    Print,
    Text,
    Tree,
    parse,
)
from vllama.chat.templates.go.values import (
    NO_VALUE,
    JsonMap,
    Struct,
    TemplateError,
    format_value,
    kind,
    truth,
)

MAX_INCLUDES = 50


def read(source: str) -> Tree:
    """Read a template. Raises BadRequest naming the line."""
    return parse(source, NAMES)


def render(tree: Tree, data: Mapping[str, object], now: datetime) -> str:
    """Write a template with `data` as its dot; `now` is local time. Raises BadRequest."""
    return _Run(tree, now).run(data)


class _Jumped(Exception):
    """`break` or `continue` on its way to the loop."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


class _Run:
    def __init__(self, tree: Tree, now: datetime) -> None:
        self._tree = tree
        self._functions = functions(now)
        self._out: list[str] = []
        self._includes = 0
        self._line = 1
        self._variables: list[tuple[str, object]] = []

    def run(self, data: object) -> str:
        try:
            self._template(self._tree.body, data)
        except TemplateError as error:
            wrong(self._line, str(error))
        except RecursionError:
            wrong(self._line, "it nests too deeply")
        return "".join(self._out)

    # -- nodes --------------------------------------------------------------------------------

    def _template(self, body: Iterable[Node], dot: object) -> None:
        outer, self._variables = self._variables, [("$", dot)]
        self._nodes(body, dot)
        self._variables = outer

    def _nodes(self, nodes: Iterable[Node], dot: object) -> None:
        scope = len(self._variables)
        for node in nodes:
            match node:
                case Text(text):
                    self._out.append(text)
                case Print(pipe):
                    value = self._pipe(pipe, dot)
                    if not pipe.variables:
                        self._out.append(NO_VALUE if value is None else format_value(value))
                case Branch("range"):
                    self._range(node, dot)
                case Branch():
                    self._branch(node, dot)
                case Include():
                    self._include(node, dot)
                case Jump(kind):
                    raise _Jumped(kind)
        del self._variables[scope:]

    def _branch(self, node: Branch, dot: object) -> None:
        scope = len(self._variables)
        value = self._pipe(node.pipe, dot)
        if truth(value):
            self._nodes(node.body, value if node.kind == "with" else dot)
        else:
            self._nodes(node.otherwise, dot)
        del self._variables[scope:]

    def _range(self, node: Branch, dot: object) -> None:
        scope = len(self._variables)
        pipe = node.pipe
        value = self._pipe(pipe, dot, keep=False)
        items = self._items(value)
        for key, item in items:
            # one variable gets the element, two get index and element
            given = (key, item) if len(pipe.variables) == 2 else (item,)
            for name, part in zip(pipe.variables, given, strict=False):
                self._set(name, part, declare=pipe.declares)
            try:
                self._nodes(node.body, item)
            except _Jumped as jump:
                if jump.kind == "break":
                    break
            finally:
                del self._variables[scope:]
        if not items:
            self._nodes(node.otherwise, dot)
        del self._variables[scope:]

    def _items(self, value: object) -> Sequence[tuple[object, object]]:
        """Return the pairs that `range` iterates over: index or key, and element."""
        match value:
            case None:
                return ()
            case list():
                return list(enumerate(value))
            case dict():
                return [(key, value[key]) for key in sorted(value)]
            case int() if not isinstance(value, bool):
                return [(number, number) for number in range(value)]
            case _:
                raise TemplateError(f"range can't iterate over a {kind(value)}")

    def _include(self, node: Include, dot: object) -> None:
        self._line = node.line
        body = self._tree.defined.get(node.name)
        if body is None:
            raise TemplateError(f'template "{node.name}" not defined')
        value = self._pipe(node.pipe, dot) if node.pipe else None
        self._includes += 1
        if self._includes > MAX_INCLUDES:
            raise TemplateError("its templates call each other too deeply")
        self._template(body, value)
        self._includes -= 1

    # -- values -------------------------------------------------------------------------------

    def _pipe(self, pipe: Pipe, dot: object, *, keep: bool = True) -> object:
        """Return a pipeline's value, kept in its variable if it names one."""
        value: object = None
        for number, command in enumerate(pipe.commands):
            self._line = pipe.line
            value = self._command(command, dot, (value,) if number else ())
        for name in pipe.variables if keep else ():
            self._set(name, value, declare=pipe.declares)
        return value

    def _set(self, name: str, value: object, *, declare: bool) -> None:
        if declare:
            self._variables.append((name, value))
            return
        for place in range(len(self._variables) - 1, -1, -1):
            if self._variables[place][0] == name:
                self._variables[place] = (name, value)
                return

    def _command(self, command: Command, dot: object, piped: tuple[object, ...]) -> object:
        first, *rest = command
        if isinstance(first, Function):
            return self._call(first.name, rest, dot, piped)
        if rest or piped:
            raise TemplateError("an argument for a value that is not a function")
        if isinstance(first, Nil):
            raise TemplateError("nil is not a command")
        return self._operand(first, dot)

    def _call(
        self, name: str, operands: Sequence[Operand], dot: object, piped: tuple[object, ...]
    ) -> object:
        if name in ("and", "or"):
            return self._choose(name, operands, dot, piped)
        arguments = [self._operand(operand, dot) for operand in operands]
        arguments += piped
        function: Callable[..., object] = self._functions[name]
        try:
            return function(*arguments)
        except TypeError:  # the functions check their arguments' types; only their number is left
            raise TemplateError(f"wrong number of arguments for {name}") from None

    def _choose(
        self, name: str, operands: Sequence[Operand], dot: object, piped: tuple[object, ...]
    ) -> object:
        """Evaluate `and` or `or`: up to the first argument that decides, which is the value."""
        if not operands and not piped:
            raise TemplateError(f"wrong number of arguments for {name}")
        value: object = None
        for operand in operands:
            value = self._operand(operand, dot)
            if truth(value) is (name == "or"):
                return value
        return piped[0] if piped else value

    def _operand(self, operand: Operand, dot: object) -> object:
        match operand:
            case Literal(value):
                return value
            case Nil():
                return None
            case Function(name):
                return self._call(name, (), dot, ())
            case Path(start, names):
                if start == "":
                    found = dot
                elif isinstance(start, str):
                    found = next(v for name, v in reversed(self._variables) if name == start)
                else:
                    found = self._pipe(start, dot)
                    if found is None:  # unlike a key that is missing, it may be asked for fields
                        return None
                for name in names:
                    found = _field(found, name)
                return found


def _field(value: object, name: str) -> object:
    match value:
        case Struct(fields) if name in fields:
            return fields[name]
        case JsonMap():
            return value.get(name, value.zero)
        case dict():
            return value.get(name)
        case None:
            raise TemplateError(f"nil has no field {name}")
        case _:
            raise TemplateError(f"a {kind(value)} has no field {name}")
