"""The lines of vllama's own log: a file has them as JSON, people read them as text."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def name_component(logger: str) -> str:
    """Return the part of vllama, or the library, that a logger belongs to."""
    first, *others = logger.split(".")
    return others[0] if first == "vllama" and others else first


def as_text(fields: dict[str, Any]) -> str:
    """Return a line of JSON as a line for people: the time is a local one."""
    when = datetime.fromisoformat(fields["ts"]).astimezone()
    return text_line(
        f"{when:%Y-%m-%d %H:%M:%S},{when.microsecond // 1000:03d}",
        str(fields["level"]).upper(),
        str(fields.get("component") or name_component(str(fields.get("logger", "")))),
        str(fields["msg"]),
        str(fields.get("request_id", "")),
        str(fields.get("exception", "")),
    )


def is_of_port(line: str, port: int) -> bool:
    """Tell whether the server on a port wrote a line of JSON, or may have: it names no port."""
    mark = '"port": '  # unescaped, so it is no part of a text
    return f"{mark}{port}," in line or mark not in line


def text_line(
    when: str, level: str, component: str, text: str, request: str, exception: str
) -> str:
    """Put a line for people together; nothing in it can forge a line or steer a terminal."""
    line = f"{when} {level:7} {component}: {escape_control(text)}"
    if request:
        line += f" [{request}]"
    return "\n".join((line, *map(escape_control, exception.splitlines())))


def escape_control(text: str) -> str:
    """Escape control characters: anybody may request any path."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
