"""A model as text, from the shapes of `/api/show` and of a row of `/api/ps`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from vllama.base.units import (
    format_ago,
    format_bytes_decimal,
    format_load,
    format_parameter_count,
    parse_rfc3339,
)

COLUMNS = ("NAME", "ID", "SIZE", "MODIFIED", "FORMAT", "QUANT", "STORE")
"""Ollama's four first: scripts count on them."""
OPTIONAL_COLUMNS = ("STORE", "FORMAT", "ID", "QUANT", "MODIFIED")
"""Those that go, in this order, where the terminal is too narrow."""


HEAD_LINES = 2
Row = tuple[str, ...]


def make_sections(
    shown: Mapping[str, object], *, verbose: bool = False
) -> list[tuple[str, list[Row]]]:
    """Return the sections of a model's description, without the empty ones."""
    found: list[tuple[str, list[Row]]] = [
        ("Model", _model(shown)),
        ("Capabilities", [(str(item),) for item in _list(shown.get("capabilities"))]),
        ("Projector", _projector(_mapping(shown.get("projector_info")))),
        ("Parameters", _parameters(str(shown.get("parameters") or ""))),
    ]
    if verbose:
        info = _mapping(shown.get("model_info"))
        found.append(("Metadata", [(key, _short(info[key])) for key in sorted(info)]))
        found.append(("Tensors", [_tensor(item) for item in _list(shown.get("tensors"))]))
    found.append(("System", _head(str(shown.get("system") or ""))))
    found.append(("License", _head(str(shown.get("license") or ""))))
    return [(title, rows) for title, rows in found if rows]


def format_sections(found: Sequence[tuple[str, Sequence[Row]]]) -> list[str]:
    """Lay the sections out as Ollama does: indented, columns four spaces apart."""
    lines: list[str] = []
    for title, rows in found:
        columns = max(len(row) for row in rows)
        widths = [max((len(r[i]) for r in rows if i < len(r)), default=0) for i in range(columns)]
        lines.append(f"  {title}")
        for row in rows:
            cells = "    ".join(cell.ljust(widths[i]) for i, cell in enumerate(row))
            lines.append(f"    {cells}".rstrip())
        lines.append("")
    return lines


def _model(shown: Mapping[str, object]) -> list[Row]:
    details = _mapping(shown.get("details"))
    info = _mapping(shown.get("model_info"))
    architecture = str(info.get("general.architecture") or details.get("family") or "")
    rows = [
        ("architecture", architecture),
        ("parameters", details.get("parameter_size")),
        ("context length", info.get(f"{architecture}.context_length")),
        ("embedding length", info.get(f"{architecture}.embedding_length")),
        ("quantization", details.get("quantization_level")),
        ("renderer", shown.get("renderer")),
        ("parser", shown.get("parser")),
        ("requires", shown.get("requires")),
        ("revision", shown.get("revision")),
        ("template", _mapping(shown.get("vllama")).get("template")),
    ]
    for index, key in ((2, "context_length"), (3, "embedding_length")):
        if not rows[index][1]:
            rows[index] = (rows[index][0], details.get(key))
    return [(name, str(value)) for name, value in rows if value]


def _projector(info: Mapping[str, object]) -> list[Row]:
    """Describe the model's image encoder, from the metadata of its file."""
    rows = [
        ("architecture", info.get("general.architecture")),
        ("parameters", _count(info.get("general.parameter_count"))),
        ("embedding length", info.get("clip.vision.embedding_length")),
        ("dimensions", info.get("clip.vision.projection_dim")),
    ]
    return [(name, str(value)) for name, value in rows if value]


def _count(value: object) -> str:
    return format_parameter_count(value) if isinstance(value, int) else ""


def _parameters(text: str) -> list[Row]:
    rows: list[Row] = []
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if name:
            rows.append((name, value.strip()))
    return rows


def _tensor(item: object) -> Row:
    tensor = _mapping(item)
    return (
        str(tensor.get("name", "")),
        str(tensor.get("type", "")),
        str(tensor.get("shape", "")),
    )


def _head(text: str) -> list[Row]:
    """Take the first lines that say something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    more = [("...",)] if len(lines) > HEAD_LINES else []
    return [*((line,) for line in lines[:HEAD_LINES]), *more]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def make_rows(models: Sequence[Mapping[str, object]], part: str = "") -> list[tuple[str, ...]]:
    """Return table rows of entries as in `/api/tags` that have `part` in their names."""
    now_s = time.time()
    return [
        (
            name,
            str(model.get("digest", ""))[:12],
            format_bytes_decimal(int(str(model.get("size") or 0))),
            _ago(str(model.get("modified_at", "")), now_s) if _is_dated(model) else "-",
            _word(model, "format"),
            _word(model, "quantization_level"),
            str(model.get("store") or "-"),
        )
        for model in models
        if part in (name := str(model.get("name", ""))).lower()
    ]


def _word(model: Mapping[str, object], key: str) -> str:
    """Return one of the details; `-` for none, so that no column is empty."""
    details = model.get("details")
    value = details.get(key) if isinstance(details, Mapping) else None
    return str(value or "-")


def _is_dated(model: Mapping[str, object]) -> bool:
    """Tell whether it is known when a model was changed; an upstream may not have said it."""
    return _word(model, "format") != "remote" or not str(model.get("modified_at")).startswith(
        "1970"
    )


def _ago(stamp: str, now_s: float) -> str:
    try:
        return format_ago(max(0.0, now_s - parse_rfc3339(stamp)))
    except ValueError:  # other servers may leave it out
        return ""


def has_prefix(row: Mapping[str, object], prefix: str) -> bool:
    """Tell whether one of a loaded model's names begins with `prefix`, ignoring case."""
    others = row.get("other_names")
    names = [row.get("name") or row.get("model", ""), *(others if isinstance(others, list) else ())]
    return any(str(name).lower().startswith(prefix.lower()) for name in names)


def describe_load(row: Mapping[str, Any]) -> str:
    """Say how far a load is, or else what it waits for; empty if neither is known."""
    if load := row.get("load"):
        return format_load(load["completed"], load["total"], parse_rfc3339(load["started_at"]))
    return str(row.get("cause") or "")
