"""Edits of other tools' settings files: JSON, TOML and YAML, told apart by their suffix.

An edit changes plain data; a round trip through the library of the format writes it and keeps the
comments. Nothing does that for JSON with comments: the user has to change such a file.
"""

from __future__ import annotations

import io
import json
import re
import tomllib
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from vllama.cli.launch.types import Edit, HasComments

Values = Mapping[tuple[str, ...], object]
"""Values by the keys that lead to them."""

_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])')
_PLAIN_KEY = re.compile(r"(?!(y|n|yes|no|on|off|true|false|null)$)[a-z][\w-]*", re.ASCII | re.I)
_INDENTED = re.compile(r"^([ \t]+)[^\s#-]", re.MULTILINE)


def put_values(path: Path, values: Values, *, new: Values | None = None) -> Edit:
    """Return the edit that puts values into a file; `new` are only for a new one."""
    return make_edit(path, lambda document: with_values(document, values, new=new))


def with_values(document: Any, values: Values, *, new: Values | None = None) -> Any:
    """Return a document with these values, and with `new` if it is None. Raises ValueError."""
    first = new if new and document is None else {}
    for keys, value in {**first, **values}.items():
        document = _with(document, keys, value)
    return document


def _with(document: Any, keys: Sequence[str], value: object, where: str = "the whole") -> Any:
    if not keys:
        return value
    if not isinstance(document, dict | None):
        raise ValueError(f"{where} is not a mapping")
    known, (key, *rest) = document or {}, keys
    return {**known, key: _with(known.get(key), rest, value, key)}


def write_text(path: Path, text: str) -> Edit:
    """Return the edit that writes a file of our own."""
    return Edit(path=path, change=lambda before: text)


def make_edit(path: Path, change: Callable[[Any], Any]) -> Edit:
    """Return the edit that replaces a file's data, None if it is empty, by what `change` makes."""
    load: Callable[[str], Any] = load_json
    write = _write_json
    if path.suffix == ".toml":
        load, write = tomllib.loads, _write_toml
    elif path.suffix in (".yml", ".yaml"):
        load, write = _load_yaml, _write_yaml

    def change_text(text: str) -> str:
        before = load(text) if text.strip() else None
        wanted = change(before)
        if wanted == before:
            return text
        plain = text.replace("\r\n", "\n")
        if before is None:  # nothing, or nothing but comments
            after = (f"{plain.rstrip()}\n" if plain.strip() else "") + write("", wanted)
        else:
            after = write(plain, wanted)
        if load(after) != wanted:  # such as a value that an anchor of YAML shares
            raise ValueError("its structure is too unusual to edit")
        return after.replace("\n", "\r\n") if "\r\n" in text else after

    return Edit(path=path, change=change_text)


def load_json(text: str) -> Any:
    """Return the data of JSON as editors take it: with comments, and with commas at the end."""
    for pattern in (_COMMENT, _LAST_COMMA):
        text = pattern.sub(lambda found: found[1] or re.sub(r"\S", " ", found[0]), text)
    try:
        return json.loads(text) if text.strip() else None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _write_json(text: str, wanted: Any) -> str:
    try:
        json.loads(text or "null")
    except ValueError:
        raise HasComments from None
    indented = _INDENTED.search(text)
    unit = indented[1] if indented else "  "
    end = "" if text and not text.endswith("\n") else "\n"
    return json.dumps(wanted, indent=unit, ensure_ascii=False, allow_nan=False) + end


def _write_toml(text: str, wanted: Any) -> str:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
        _merge(document, wanted, lambda entry: entry)
        return tomlkit.dumps(document)
    except TOMLKitError as error:
        raise ValueError(str(error)) from None


def _merge(table: MutableMapping[str, Any], wanted: Any, make: Callable[[Any], Any]) -> None:
    """Change a library's document to what is wanted; `make` prepares each new entry for it."""
    for key, value in wanted.items():
        child = table.get(key)
        if isinstance(child, MutableMapping) and isinstance(value, Mapping):
            _merge(child, value, make)
        elif key not in table or child != value:
            table.update(make({key: value}))


def _load_yaml(text: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        mark, problem = (getattr(error, name, None) for name in ("problem_mark", "problem"))
        line = f" at line {mark.line + 1}" if mark else ""
        raise ValueError(f"{problem or error}{line}") from None


def _write_yaml(text: str, wanted: Any) -> str:
    from ruamel.yaml import YAML
    from ruamel.yaml.util import load_yaml_guess_indent

    yaml, out = YAML(), io.StringIO()
    yaml.preserve_quotes = True
    yaml.width = 1 << 20  # never fold a line
    yaml.explicit_start = text.startswith("---")
    indented, dash = _INDENTED.search(text), load_yaml_guess_indent(text)[2] or 0
    yaml.indent(mapping=len(indented[1]) if indented else 2, sequence=dash + 2, offset=dash)
    document = yaml.load(text or "{}")
    document.fa.set_block_style()
    _merge(document, wanted, _quote)
    yaml.dump(document, out)
    return out.getvalue()


def _quote(value: Any) -> Any:
    """Return a value whose strings are quoted, as readers of YAML disagree about what needs it."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    match value:
        case dict():
            return {
                key if _PLAIN_KEY.fullmatch(key) else _quote(key): _quote(item)
                for key, item in value.items()
            }
        case list():
            return [_quote(item) for item in value]
        case str():
            return DoubleQuotedScalarString(value)
    return value
