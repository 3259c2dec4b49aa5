"""Print a generated part of the reference pages: settings, routes, metrics or python.

The documentation site puts each part where its page says `<!-- generated: NAME -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable


def settings() -> str:
    """Return the table of settings."""
    from vllama.config import reference_rows

    rows = []
    for row in reference_rows():
        names = ", ".join(f"`{name}`" for name in (row["env"], row["foreign"]) if name)
        flag, default = (f"`{row[key]}`" if row[key] else "" for key in ("flag", "default"))
        rows.append((f"`{row['key']}`", flag, names, default, row["help"]))
    return _table(("key in the file", "flag", "variables", "default", "meaning"), rows)


def routes() -> str:
    """Return the table of routes; a path that ends in `/…` takes a name or digest there."""
    from vllama.routes.route_table import PREFIXES, ROUTES

    paths = {**ROUTES, **{f"{start}…": methods for start, methods in PREFIXES}}
    rows = [(f"`{path}`", ", ".join(methods)) for path, methods in paths.items()]
    return _table(("path", "methods"), rows)


def metrics() -> str:
    """Return the table of metrics, from what a server without any requests exports."""
    from vllama.metrics import Metrics

    text = Metrics().text(loaded=0, queued=0).decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    helps = re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE)
    rows = [(f"`{name}`", kinds[name], help) for name, help in helps]
    return _table(("metric", "type", "meaning"), rows)


def python() -> str:
    """Return the directives from which mkdocstrings makes the pages of the public modules."""
    modules = ("vllama", "vllama.errors", "vllama.engines.base")
    return "\n\n".join(f"::: {module}" for module in modules)


PARTS: dict[str, Callable[[], str]] = {
    part.__name__: part for part in (settings, routes, metrics, python)
}


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in PARTS:
        sys.exit(f"usage: python scripts/reference.py {'|'.join(PARTS)}")
    print(PARTS[sys.argv[1]]())
