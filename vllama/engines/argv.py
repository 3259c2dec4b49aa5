"""Read the arguments that a user gives an engine, so that nothing is decided against them."""

from __future__ import annotations

from collections.abc import Sequence


def flag_value(args: Sequence[str], *names: str) -> str | None:
    """Return the value of the last of the flags `names`, as `--flag value` or `--flag=value`.

    None if none of them is given; "" for one without a value. Underscores count as dashes.
    """
    wanted = {_normalize(name) for name in names}
    found = None
    for position, word in enumerate(args):
        name, equals, value = word.partition("=")
        if not word.startswith("-") or _normalize(name) not in wanted:
            continue
        following = args[position + 1] if position + 1 < len(args) else "--"
        found = value if equals else "" if following.startswith("--") else following
    return found


def has_flag(args: Sequence[str], *names: str) -> bool:
    """Tell whether one of the flags is given, with or without a value."""
    return flag_value(args, *names) is not None


def flag_number(args: Sequence[str], *names: str, default: int) -> int:
    """Return the value of a flag as a whole number; `default` if it is absent or no number."""
    text = flag_value(args, *names) or ""
    try:
        return int(text)
    except ValueError:
        return default


def _normalize(name: str) -> str:
    return name.replace("_", "-")
