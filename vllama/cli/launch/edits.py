"""Edits that put values into settings files of other tools: JSON (by `jsonc`), TOML and YAML.

In YAML single values are changed, and every other character stays as it is: ruamel.yaml finds out
where a value stands; a round trip through its writer would lay out the rest of the file anew.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from vllama.cli.launch import jsonc
from vllama.cli.launch.jsonc import nest
from vllama.cli.launch.types import Edit

if TYPE_CHECKING:
    from ruamel.yaml.nodes import CollectionNode, Node

Values = Mapping[tuple[str, ...], object]
"""Values by the keys that lead to them."""

_END_OF_LINE = re.compile(r"[^\r\n]*")
_PLAIN_KEY = re.compile(r"[A-Za-z][\w-]*", re.ASCII)
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Keys that YAML 1.1 or 1.2 reads as something else than text."""


def put_values(path: Path, values: Values, *, new: Values | None = None) -> Edit:
    """Return the edit that puts values into a JSON or YAML file; `new` are only for a new one."""
    put = put_yaml if path.suffix in (".yml", ".yaml") else jsonc.put

    def change(text: str) -> str:
        first = {} if text.strip() or new is None else new
        for keys, value in {**first, **values}.items():
            text = put(text, keys, value)
        return text

    return Edit(path=path, change=change)


def put_tables(path: Path, values: Mapping[str, object]) -> Edit:
    """Return the edit that merges values into a TOML file."""
    return Edit(path=path, change=lambda text: merge_tables(text, values))


def write_text(path: Path, text: str) -> Edit:
    """Return the edit that writes a file of our own."""
    return Edit(path=path, change=lambda before: text)


def merge_tables(text: str, values: Mapping[str, object]) -> str:
    """Return the text with these values; tables are merged, not replaced. Raises ValueError."""
    try:
        document = tomlkit.parse(text)
        _merge_into(document, values)
        return tomlkit.dumps(document)
    except TOMLKitError as error:
        raise ValueError(str(error)) from None


def _merge_into(table: MutableMapping[str, object], values: Mapping[str, object]) -> None:
    for key, value in values.items():
        if not isinstance(value, Mapping):
            if table.get(key) != value:
                table[key] = value
            continue
        child = table.get(key)
        if child is None:
            only_tables = all(isinstance(item, Mapping) for item in value.values())
            child = tomlkit.table(is_super_table=only_tables)
            _merge_into(child, value)
            table[key] = child
        elif isinstance(child, MutableMapping):
            _merge_into(child, value)
        else:
            raise ValueError(f"{key} is not a table")


def put_yaml(text: str, path: Sequence[str], value: object) -> str:
    """Return the text with `value` at `path`; mappings that are missing on the way are made.

    Blank text becomes a document. Raises ValueError if the text is no YAML document, has something
    else than a mapping on the way, or is laid out so that the value cannot be inserted.
    """
    before = _load(text)
    if before is None:
        separator = "" if not text or text.endswith("\n") else "\n"
        return text + separator + _dump(nest(path, value))
    wanted = _with(before, path, value)
    if wanted == before:
        return text
    changed = _changed(text, path, value)
    try:
        done = _load(changed) == wanted
    except ValueError:
        done = False
    if not done:
        raise ValueError(f"its layout is too unusual to insert {'.'.join(path)}")
    return changed


def _load(text: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        line = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{error.problem or error.context}{line}") from None
    except YAMLError as error:
        raise ValueError(str(error)) from None


def _with(document: Any, path: Sequence[str], value: object, where: str = "the whole") -> Any:
    """Return the document with the value at the path. What an alias shares is not touched."""
    if not path:
        return value
    if not isinstance(document, dict):
        raise ValueError(f"{where} is not a mapping")
    key, *rest = path
    child = document.get(key)
    return {**document, key: _with({} if child is None else child, rest, value, key)}


def _changed(text: str, path: Sequence[str], value: object) -> str:
    from ruamel.yaml import YAML

    node = YAML(pure=True).compose(text)
    for depth, key in enumerate(path):
        found = [(name, child) for name, child in node.value if name.value == key]
        rest = nest(path[depth + 1 :], value)
        if not found:
            return _insert(text, node, key, rest)
        name, child = found[0]
        is_empty = child.tag == "tag:yaml.org,2002:null"
        if depth == len(path) - 1 or is_empty:
            return _replace(text, node, name, child, rest)
        node = child
    raise AssertionError("a path has at least one key")


def _insert(text: str, mapping: CollectionNode, key: str, value: object) -> str:
    """Insert an entry behind the last one of a mapping."""
    if mapping.flow_style:
        at = mapping.end_mark.index - 1
        separator = ", " if mapping.value else ""
        return text[:at] + separator + _flow(key, value) + text[at:]
    at = _end(mapping)
    if text[at - 1] not in "\r\n":  # a comment may follow on the line
        line = _END_OF_LINE.match(text, at)
        at = line.end() if line else at
    newline = "\r\n" if "\r\n" in text else "\n"
    entry = _block(key, value, mapping.start_mark.column, newline)
    if text[at - 1] in "\r\n":
        return text[:at] + entry + newline + text[at:]
    return text[:at] + newline + entry + text[at:]


def _replace(text: str, mapping: CollectionNode, name: Node, old: Node, value: object) -> str:
    """Replace an entry of a mapping; a comment behind its value stays."""
    start, end = name.start_mark.index, _end(old)
    if old.start_mark.index == old.end_mark.index:  # nothing but the colon
        end = text.index(":", name.end_mark.index) + 1
    if mapping.flow_style:
        return text[:start] + _flow(name.value, value) + text[end:]
    newline = "\r\n" if "\r\n" in text else "\n"
    column = mapping.start_mark.column
    entry = _block(name.value, value, column, newline)[column:]
    tail = newline if text[end - 1] in "\r\n" else ""
    return text[:start] + entry + tail + text[end:]


def _end(node: Node) -> int:
    """Return where a node's text ends. That of a block collection includes comments behind it."""
    from ruamel.yaml.nodes import CollectionNode

    if isinstance(node, CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return max(map(_end, last)) if isinstance(last, tuple) else _end(last)
    return int(node.end_mark.index)


def _flow(key: str, value: object) -> str:
    return f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"


def _block(key: str, value: object, column: int, newline: str) -> str:
    lines = _dump({key: value}).splitlines()
    return newline.join(" " * column + line for line in lines)


def _dump(value: object) -> str:
    """Return a value as a block. Strings are quoted, as readers disagree about what needs it."""
    from ruamel.yaml import YAML

    writer = YAML()
    writer.width = 1 << 20  # never fold a line
    out = io.StringIO()
    writer.dump(_quoted(value), out)
    return out.getvalue()


def _quoted(value: object) -> object:
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    match value:
        case dict():
            return {_key(key): _quoted(item) for key, item in value.items()}
        case list():
            return [_quoted(item) for item in value]
        case str():
            return DoubleQuotedScalarString(value)
    return value


def _key(key: str) -> str:
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    is_plain = _PLAIN_KEY.fullmatch(key) and key.lower() not in _WORDS
    return key if is_plain else DoubleQuotedScalarString(key)
