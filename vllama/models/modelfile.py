"""Modelfile text from a model's settings (contract §1.6, §4.4)."""

from __future__ import annotations

from collections.abc import Mapping

from vllama.models.types import Bundle, ModelInfo

NAME_WIDTH = 30


def parameters_text(parameters: Mapping[str, object]) -> str:
    """Return one line a value, the name padded, strings quoted; lists give several lines."""
    lines = []
    for name, value in sorted(parameters.items()):
        values = value if isinstance(value, list | tuple) else [value]
        lines += [f"{name:<{NAME_WIDTH}} {_quoted(item)}" for item in values]
    return "\n".join(lines)


def modelfile_text(bundle: Bundle, info: ModelInfo) -> str:
    """Return a Modelfile that would make this model again."""
    lines = [
        "# Modelfile made by vllama",
        f"# To build on this model, use: FROM {bundle.name}",
        "",
        f"FROM {bundle.path}",
    ]
    if info.chat_template:
        lines.append(f'TEMPLATE """{info.chat_template}"""')
    if bundle.system:
        lines.append(f'SYSTEM """{bundle.system}"""')
    for name, value in sorted(bundle.parameters.items()):
        values = value if isinstance(value, list | tuple) else [value]
        lines += [f"PARAMETER {name} {_quoted(item)}" for item in values]
    return "\n".join(lines) + "\n"


def _quoted(value: object) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value).lower() if isinstance(value, bool) else str(value)
