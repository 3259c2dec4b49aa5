"""Go's text/template, second step: tokens → tree.

Frozen nodes, and a parser by recursive descent that knows the functions' names and the variables
in scope, so that a misspelled one is found before anything is rendered, as Go does. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from vllama.chat.templates.go.lex import Lexeme, tokens, wrong

MAX_NESTING = 64
MAX_LENGTH = 128 * 1024
"""Characters of a template; the longest that models come with have a fifth of that."""
_KEYWORDS = frozenset(
    ("if", "else", "end", "range", "with", "define", "block", "template", "break", "continue")
)
_CONSTANTS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Literal:
    """A string, a number or a boolean."""

    value: str | int | float


@dataclass(frozen=True, slots=True)
class Nil:
    """`nil`."""


@dataclass(frozen=True, slots=True)
class Path:
    """Names looked up in turn in what `start` gives: `.A.B`, `$x.A`, `(…).A`, `.`.

    `start` is "" for the dot, a variable's name with its $, or a pipeline in parentheses.
    """

    start: str | Pipe
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """A function's name."""

    name: str


Operand: TypeAlias = Literal | Nil | Path | Function
Command: TypeAlias = tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pipe:
    """Commands joined by |, its value perhaps kept in variables."""

    line: int
    commands: tuple[Command, ...]
    variables: tuple[str, ...] = ()
    declares: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """Literal text."""

    text: str


@dataclass(frozen=True, slots=True)
class Print:
    """A pipeline whose value is written, unless it is kept in a variable."""

    pipe: Pipe


@dataclass(frozen=True, slots=True)
class Branch:
    """`if`, `with` or `range` (`kind`), with its `else`."""

    kind: str
    pipe: Pipe
    body: tuple[Node, ...]
    otherwise: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Include:
    """`template` or `block`: another template, with the pipeline's value as its dot."""

    line: int
    name: str
    pipe: Pipe | None = None


@dataclass(frozen=True, slots=True)
class Jump:
    """`break` or `continue`."""

    kind: str


Node: TypeAlias = Text | Print | Branch | Include | Jump


@dataclass(frozen=True, slots=True)
class Tree:
    """A template, and those that it defines, by name."""

    body: tuple[Node, ...]
    defined: dict[str, tuple[Node, ...]] = field(default_factory=dict)


def parse(source: str, functions: Collection[str]) -> Tree:
    """Parse a template that may call `functions`. Raises BadRequest naming the line."""
    return _Parser(source, functions).tree()


class _Parser:
    def __init__(self, source: str, functions: Collection[str]) -> None:
        if len(source) > MAX_LENGTH:
            wrong(1, f"it is longer than {MAX_LENGTH} characters")
        self._tokens = list(tokens(source))
        self._last_line = 1 + source.count("\n")
        self._at = 0
        self._functions = functions
        self._variables = ["$"]
        self._defined: dict[str, tuple[Node, ...]] = {}
        self._depth = 0
        self._loops = 0

    def tree(self) -> Tree:
        body, ended_by = self._nodes(())
        assert ended_by == ""
        return Tree(body, self._defined)

    # -- tokens -------------------------------------------------------------------------------

    def _peek(self) -> Lexeme:
        if self._at < len(self._tokens):
            return self._tokens[self._at]
        return Lexeme("end", None, self._last_line)

    def _next(self) -> Lexeme:
        token = self._peek()
        self._at += 1
        return token

    def _take(self, kind: str, value: object = None) -> bool:
        """Take the next token if it is this one."""
        token = self._peek()
        found = token.kind == kind and (value is None or token.value == value)
        self._at += found
        return found

    def _close(self) -> None:
        token = self._next()
        if token.kind != "close":
            wrong(token.line, f"unexpected {token.value!r} before }}}}")

    # -- nodes --------------------------------------------------------------------------------

    def _nodes(self, ends: Collection[str]) -> tuple[tuple[Node, ...], str]:
        """Read until a keyword of `ends`; return what was read and that keyword ("" at the end)."""
        self._depth += 1
        if self._depth > MAX_NESTING:
            wrong(self._peek().line, f"blocks are nested more than {MAX_NESTING} levels deep")
        found: list[Node] = []
        while True:
            token = self._next()
            if token.kind == "end":
                if ends:
                    wrong(token.line, "an {{end}} is missing")
                self._depth -= 1
                return tuple(found), ""
            if token.kind == "text":
                found.append(Text(str(token.value)))
                continue
            word = self._peek()
            if word.kind != "word" or word.value not in _KEYWORDS:
                pipe = self._pipe("an action")
                self._close()
                found.append(Print(pipe))
                continue
            self._next()
            keyword = str(word.value)
            if keyword in ("end", "else"):
                if keyword not in ends:
                    wrong(word.line, f"unexpected {{{{{keyword}}}}}")
                self._depth -= 1
                return tuple(found), keyword
            node = self._statement(keyword, word.line)
            if node is not None:
                found.append(node)

    def _statement(self, keyword: str, line: int) -> Node | None:
        match keyword:
            case "if" | "with" | "range":
                return self._branch(keyword)
            case "define":
                self._define(line)
                return None
            case "block":
                name = self._name(line)
                pipe = self._pipe("block")
                self._close()
                self._body(name, line)
                return Include(line, name, pipe)
            case "template":
                name = self._name(line)
                dot = None if self._peek().kind == "close" else self._pipe("template")
                self._close()
                return Include(line, name, dot)
            case _:
                if not self._loops:
                    wrong(line, f"{{{{{keyword}}}}} outside of {{{{range}}}}")
                self._close()
                return Jump(keyword)

    def _branch(self, kind: str) -> Branch:
        scope = len(self._variables)
        pipe = self._pipe(kind)
        self._close()
        self._loops += kind == "range"
        body, ended_by = self._nodes(("else", "end"))
        self._loops -= kind == "range"
        otherwise: tuple[Node, ...] = ()
        if ended_by == "else":
            if kind != "range" and self._take("word", kind):  # {{else if …}} shares our {{end}}
                self._depth += 1
                if self._depth > MAX_NESTING:
                    wrong(pipe.line, f"blocks are nested more than {MAX_NESTING} levels deep")
                otherwise = (self._branch(kind),)
                self._depth -= 1
                del self._variables[scope:]
                return Branch(kind, pipe, body, otherwise)
            self._close()
            otherwise, _ = self._nodes(("end",))
        self._close()
        del self._variables[scope:]
        return Branch(kind, pipe, body, otherwise)

    def _define(self, line: int) -> None:
        if self._depth > 1:
            wrong(line, "{{define}} inside another block")
        name = self._name(line)
        self._close()
        self._body(name, line)

    def _body(self, name: str, line: int) -> None:
        """Read the body of `define` or `block`, which has only $ in scope."""
        variables, self._variables = self._variables, ["$"]
        loops, self._loops = self._loops, 0
        body, _ = self._nodes(("end",))
        self._close()
        self._variables, self._loops = variables, loops
        # an empty definition does not replace one that says something
        if any(not _is_blank(node) for node in body):
            if not all(map(_is_blank, self._defined.get(name, ()))):
                wrong(line, f'multiple definition of template "{name}"')
            self._defined[name] = body
        self._defined.setdefault(name, body)

    def _name(self, line: int) -> str:
        token = self._next()
        if token.kind not in ("string", "raw"):
            wrong(line, "a quoted template name is missing")
        return str(token.value)

    # -- pipelines ----------------------------------------------------------------------------

    def _pipe(self, where: str, closing: str = "close") -> Pipe:
        line = self._peek().line
        variables, declares = self._assignment(where) if closing == "close" else ((), False)
        commands: list[Command] = []
        while True:
            command = tuple(self._operands())
            if not command:
                wrong(self._peek().line, f"a value is missing in {where}")
            if commands and not isinstance(command[0], Function | Path):
                wrong(line, "only a function can stand after |")
            commands.append(command)
            if not self._take("sign", "|"):
                break
        if declares:
            self._variables += variables
        return Pipe(line, tuple(commands), variables, declares)

    def _assignment(self, where: str) -> tuple[tuple[str, ...], bool]:
        """Read `$x :=`, `$x =`, and after range `$i, $x :=`, if one is there."""
        start, names = self._at, []
        while self._peek().kind == "variable":
            names.append(str(self._next().value))
            sign = self._peek()
            if sign.kind == "sign" and sign.value in (":=", "="):
                self._next()
                declares = sign.value == ":="
                for name in names:
                    if not declares:
                        self._check_known(name, sign.line)
                if len(names) > 1 + (where == "range"):
                    wrong(sign.line, "too many variables")
                return tuple(names), declares
            if where != "range" or not self._take("sign", ","):
                break
        self._at = start
        return (), False

    def _operands(self) -> Iterator[Operand]:
        """Read the operands of one command."""
        first = True
        while True:
            token = self._peek()
            if token.kind == "close" or (token.kind == "sign" and token.value in ("|", ")")):
                return
            if not first and not token.spaced:
                wrong(token.line, f"unexpected {token.value!r}: is a space missing?")
            yield self._operand()
            first = False

    def _operand(self) -> Operand:
        token = self._next()
        operand: Operand
        match token.kind, token.value:
            case (("string" | "raw" | "char" | "number"), value):
                assert isinstance(value, str | int | float)
                operand = Literal(value)
            case "word", ("true" | "false" as word):
                operand = Literal(_CONSTANTS[word])
            case "word", "nil":
                operand = Nil()
            case "word", str(name):
                if name not in self._functions:
                    wrong(token.line, f'function "{name}" not defined')
                operand = Function(name)
            case "field", str(name):
                return Path("", (name, *self._names()))
            case "variable", str(name):
                self._check_known(name, token.line)
                return Path(name, self._names())
            case "sign", ".":
                return Path("")
            case "sign", "(":
                return self._parenthesis(token.line)
            case _:
                wrong(token.line, f"unexpected {token.value!r}")
        following = self._peek()
        if following.kind == "field" and not following.spaced:
            wrong(token.line, f"unexpected .{following.value} after {token.value!r}")
        return operand

    def _parenthesis(self, line: int) -> Path:
        self._depth += 1
        if self._depth > MAX_NESTING:
            wrong(line, "parentheses are nested too deeply")
        pipe = self._pipe("parentheses", closing=")")
        self._depth -= 1
        if not self._take("sign", ")"):
            wrong(self._peek().line, "a ) is missing")
        return Path(pipe, self._names())

    def _names(self) -> tuple[str, ...]:
        """Read the fields that follow without a space."""
        names = []
        while self._peek().kind == "field" and not self._peek().spaced:
            names.append(str(self._next().value))
        return tuple(names)

    def _check_known(self, name: str, line: int) -> None:
        if name not in self._variables:
            wrong(line, f"undefined variable {name}")


def _is_blank(node: Node) -> bool:
    return isinstance(node, Text) and not node.text.strip()
