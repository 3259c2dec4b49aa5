"""Checks of a JSON schema, and the resolution of its references.

Engines differ in what they make of one with a fault: any JSON without a word, an error in their own
words, or no answer at all (llama-server builds the grammar of a `minLength` above its `maxLength`
for ever, and answers nobody meanwhile; it makes a rule for each of `maxItems`, and ends at a
`maxLength` of 2,147,483,647). So it is refused or bounded before an engine sees it. The rules are
those of JSON Schema 2020-12 for the types of keywords, and of older drafts where they allow more.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn
from urllib.parse import unquote

from vllama.base.errors import BadRequest
from vllama.chat.bodies import encode_json
from vllama.chat.grammar_cost import measure_grammar

KINDS = ("string", "number", "integer", "boolean", "object", "array", "null")
MOST_DEPTH = 128
MOST_BYTES = 256 * 1024
MOST_PATTERN = 4096
"""Characters of a regular expression; `re` keeps hundreds of those that it has compiled."""
MOST_COUNT = 50_000
"""Of items, members and characters: more than an answer reaches."""
MOST_ITEMS = 200_000
"""All `minItems` and `maxItems` together: llama-server takes 1.7 s for so many."""
MOST_NESTED = 1000
"""Brackets of a grammar: llama-server reads it recursively, on stacks of 512 KiB on macOS."""
MOST_SKIPPED = 100
"""Parts of a grammar (`measure_grammar`): llama-server takes about a second for so many."""
_ONE = frozenset({
    "additionalItems", "additionalProperties", "contains", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_MAPS = frozenset({"dependentSchemas", "patternProperties", "properties"})
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_DEFINITIONS = frozenset({"$defs", "definitions"})
_RANGES = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}
_COUNTS = frozenset(name for names in _RANGES.values() for name in names)
_HAS_COUNTS = re.compile(rb'"(?:min|max)(?:Items|Length|Properties)":')
_DATA = frozenset({"const", "default", "enum", "examples"})
_LIMITS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
# what a regular expression cannot mean in any dialect, in the words of Python's `re`
_BROKEN = re.compile(r"unterminated|unbalanced|nothing to repeat|min repeat greater than max")


def check_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema for engines; raise BadRequest, with the place, if it cannot be used.

    Definitions that nothing refers to are not looked at. Counts above `MOST_COUNT` are left out, or
    lowered to it.
    """
    text = check_size(schema)
    references = References(schema)
    todo: list[tuple[object, str, int]] = [(schema, "#", 0)]
    referred: set[str] = set()
    while todo:
        found, where, depth = todo.pop()
        if isinstance(found, bool):
            continue
        if not isinstance(found, Mapping):
            _refuse(where, f"a schema is an object or a boolean, not {_show(found)}")
        if depth > MOST_DEPTH:
            _refuse("#", f"it is nested more than {MOST_DEPTH} levels deep")
        for name, value in found.items():
            check = _CHECKS.get(name)
            if check is not None:
                check(f"{where}/{_escape(name)}", value)
        _check_ranges(found, where)
        todo += ((inner, f"{where}/{path}", depth + 1) for path, inner in _schemas_in(found))
        reference = found.get("$ref")
        if reference is not None and reference not in referred:
            referred.add(reference)
            todo.append((references.end(reference, f"{where}/$ref"), reference, 0))
    if not _HAS_COUNTS.search(text):
        return schema
    items: list[int] = []
    bounded: Mapping[str, Any] = _bound_counts(schema, items)
    if sum(items) > MOST_ITEMS:
        _refuse("#", f"all minItems and maxItems add up to more than {MOST_ITEMS}")
    return bounded


def _bound_counts(schema: Any, items: list[int]) -> Any:
    """Return a copy with bounded counts; note those of lists in `items`."""
    if isinstance(schema, list):
        return [_bound_counts(one, items) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    bounded = {
        name: value if name in _DATA else _bound_counts(value, items)
        for name, value in schema.items()
    }
    for low, high in _RANGES.values():
        if isinstance(count := bounded.get(high), int | float) and count > MOST_COUNT:
            del bounded[high]
        if isinstance(count := bounded.get(low), int | float) and count > MOST_COUNT:
            bounded[low] = MOST_COUNT
    counts = (bounded.get(name) for name in _RANGES["array"])
    items += [max(0, int(count)) for count in counts if isinstance(count, int | float)]
    return bounded


def check_grammar(grammar: str) -> None:
    """Raise BadRequest if a grammar is nested so deeply that it ends the engine, or too costly."""
    if (skipped := measure_grammar(grammar)) > MOST_SKIPPED:
        raise BadRequest(
            f"cannot use the grammar: one place in it costs {skipped:.0f}, at most {MOST_SKIPPED}",
            hint="do not repeat parts that can be empty, and use fewer alternatives",
        )
    depth = 0
    for bracket in re.findall(r"[()]", grammar):
        depth += 1 if bracket == "(" else -1
        if depth > MOST_NESTED:
            raise BadRequest(
                f"cannot use the grammar: it is nested more than {MOST_NESTED} levels deep"
            )


def check_size(schema: object) -> bytes:
    """Return a schema's text; raise BadRequest if to look through so large a one takes long."""
    if len(text := encode_json(schema)) > MOST_BYTES:
        raise BadRequest(f"cannot use the JSON schema: it is larger than {MOST_BYTES} bytes")
    return text


class References:
    """Targets of the references in one schema; all names are collected once."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._names: dict[tuple[int, str], dict[str, object]] = {}
        self._ends: dict[str, object] = {}

    def resolve(self, reference: str) -> object:
        """Return the part of the schema that is meant. Raises LookupError if there is none.

        By a pointer (`#/$defs/a`), an anchor (`#a`) or a schema's `$id`; nothing is fetched.
        """
        root = self._root
        base, _, fragment = reference.partition("#")
        target = root
        if base and not (isinstance(root, Mapping) and root.get("$id") == base):
            target = self._look_up(root, "$id", base)
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._look_up(target, "$anchor", fragment)
        for step in fragment.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, Mapping) and step in target:
                target = target[step]
            elif isinstance(target, list) and step.isdecimal() and int(step) < len(target):
                target = target[int(step)]
            else:
                raise LookupError(reference)
        return target

    def end(self, reference: str, where: str) -> object:
        """Return the final target of a reference, which must be more than another one.

        Raises BadRequest.
        """
        seen: dict[str, None] = {}
        while reference not in self._ends:
            seen[reference] = None
            try:
                target = self.resolve(reference)
            except LookupError:
                _refuse(where, f"{_show(reference)} is not in the schema")
            following = target.get("$ref") if isinstance(target, Mapping) else None
            if not isinstance(following, str):
                self._ends[reference] = target
            elif following in seen:
                _refuse(where, f"{_show(reference)} only refers to itself")
            else:
                reference = following
        self._ends |= dict.fromkeys(seen, self._ends[reference])
        return self._ends[reference]

    def _look_up(self, root: object, keyword: str, name: str) -> object:
        names = self._names.get((id(root), keyword))
        if names is None:
            names = self._names[id(root), keyword] = {}
            todo = [root]
            while todo:
                found = todo.pop()
                if isinstance(found, Mapping):
                    if isinstance(own := found.get(keyword), str):
                        names.setdefault(own, found)
                    todo += found.values()
                elif isinstance(found, list):
                    todo += found
        return names[name]  # a KeyError is a LookupError


def _schemas_in(schema: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the schemas that one consists of, with their paths in it."""
    for name, value in schema.items():
        if name in _MAPS:
            yield from ((f"{name}/{_escape(key)}", inner) for key, inner in value.items())
        elif name in _ONE and not (name == "items" and isinstance(value, list)):
            yield name, value
        elif name in _ONE or name in _LISTS:  # in older drafts `items` may be a list
            yield from ((f"{name}/{number}", inner) for number, inner in enumerate(value))


def _check_ranges(schema: Mapping[str, Any], where: str) -> None:
    kinds = schema.get("type")
    kinds = KINDS if kinds is None else [kinds] if isinstance(kinds, str) else kinds
    for kind, (least, most) in _RANGES.items():
        if kind in kinds and schema.get(least, 0) > schema.get(most, float("inf")):
            _refuse(where, f"{least} is larger than {most}")
    if not {"number", "integer"}.isdisjoint(kinds):
        low = max(_bounds(schema, "minimum", "exclusiveMinimum"), default=None)
        highs = [(value, not out) for value, out in _bounds(schema, "maximum", "exclusiveMaximum")]
        high = min(highs, default=None)
        if low and high and (low[0], low[1] or not high[1]) > (high[0], False):
            _refuse(where, "no number is within its limits")


def _bounds(schema: Mapping[str, Any], name: str, exclusive: str) -> Iterator[tuple[float, bool]]:
    """Yield the bounds of one side, and whether each is itself out of bounds."""
    other = schema.get(exclusive)
    if name in schema:
        yield schema[name], other is True  # in draft 4 it says what the first one is
    if other is not None and not isinstance(other, bool):
        yield other, True


# -- keywords ---------------------------------------------------------------------------------


def _type(where: str, value: object) -> None:
    if value is None:  # as if it were not there, for Ollama too
        return
    kinds = value if isinstance(value, list) else [value]
    if not kinds:
        _refuse(where, "it specifies no type")
    for kind in kinds:
        if not isinstance(kind, str) or kind not in KINDS:
            _refuse(where, f"{_show(kind)} is not a type; the types are {', '.join(KINDS)}")


def _is(words: str, test: Callable[[Any], bool]) -> Callable[[str, object], None]:
    """Return the check that a value passes a test; `words` say what it is then."""

    def check(where: str, value: object) -> None:
        if not test(value):
            _refuse(where, f"it must be {words}, not {_show(value)}")

    return check


def _is_count(value: object) -> bool:
    if isinstance(value, float):
        return value.is_integer() and value >= 0
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_map = _is("an object", lambda value: isinstance(value, Mapping))
_list = _is("a non-empty list", lambda value: isinstance(value, list) and bool(value))
_names = _is(
    "a list of names",
    lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
)
_text = _is("a string", lambda value: isinstance(value, str))
_count = _is("a whole number of 0 or more", _is_count)
_above_0 = _is("a number above 0", lambda value: value > 0)


def _number(where: str, value: object) -> None:
    draft_4 = isinstance(value, bool) and "/exclusive" in where
    if not (draft_4 or (isinstance(value, int | float) and not isinstance(value, bool))):
        _refuse(where, f"it must be a number, not {_show(value)}")


def _pattern(where: str, value: object) -> None:
    _text(where, value)
    if len(str(value)) > MOST_PATTERN:
        _refuse(where, f"the expression is longer than {MOST_PATTERN} characters")
    pattern = str(value).replace("[^]", r"[\s\S]").replace("[]", r"(?!)")  # JavaScript's own
    try:
        with warnings.catch_warnings():  # of what Python may read otherwise one day
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        if _BROKEN.search(str(error)):
            _refuse(where, f"{_show(value)} is not a regular expression: {error}")


def _step(where: str, value: object) -> None:
    _number(where, value)
    _above_0(where, value)


_CHECKS: dict[str, Callable[[str, object], None]] = {
    "type": _type,
    "enum": _list,
    "required": _names,
    "format": _text,
    "pattern": _pattern,
    "$ref": _text,
    "multipleOf": _step,
    **dict.fromkeys(_MAPS | _DEFINITIONS, _map),
    **dict.fromkeys(_LISTS, _list),
    **dict.fromkeys(_COUNTS, _count),
    **dict.fromkeys(_LIMITS, _number),
}


def _show(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")[:60]


def _refuse(where: str, reason: str) -> NoReturn:
    raise BadRequest(f"cannot use the JSON schema: {where}: {reason}")
