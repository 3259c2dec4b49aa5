"""Write the generated parts of the reference into its pages, or check that they are in date.

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`. That of the Python modules is
made by the documentation site alone. The config file with all settings is a page of its own.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path


def settings() -> str:
    """Return the table of settings."""
    from vllama.config import SETTINGS

    rows = []
    for one in SETTINGS:
        names = ", ".join(f"`{name}`" for name in (one.env, one.foreign) if name)
        flag, default = (f"`{text}`" if text else "" for text in (one.flag, one.default_text))
        rows.append((f"`{one.key}`", flag, names, default, one.effect, one.help))
    head = ("key in the file", "flag", "variables", "default", "holds", "meaning")
    return _table(head, rows)


def tables() -> str:
    """Return the fields of the tables in the config file."""
    from vllama.accounts.keys.group import GROUP_FIELDS
    from vllama.models.settings import MODEL_FIELDS, UPSTREAM_FIELDS

    sections = []
    for title, fields in (
        ('[models."NAME"]', MODEL_FIELDS),
        ("[upstreams.NAME]", UPSTREAM_FIELDS),
        ("[groups.NAME]", GROUP_FIELDS),
    ):
        rows = [(f"`{each.key}`", f"`{each.example}`", each.effect, each.help) for each in fields]
        head = ("field", "for example", "holds", "meaning")
        sections.append(f"### `{title}`\n\n{_table(head, rows)}")
    return "\n\n".join(sections)


def routes() -> str:
    """Return the routes by their APIs, as the description of the API has them."""
    from vllama.routes.route import Tag
    from vllama.routes.route_table import ROUTES

    sections = []
    for tag in Tag:
        rows = (
            (f"`{path}`", ", ".join(route.methods), ". ".join(route.read_docstring()).strip())
            for route in ROUTES
            if route.described and route.tag is tag
            for path in route.paths
        )
        sections.append(f"## {tag}\n\n{_table(('path', 'methods', 'purpose'), rows)}")
    return "\n\n".join(sections)


def metrics() -> str:
    """Return the table of metrics, from what a server without any requests exports."""
    from vllama.observe.metrics.exposition import (
        collect_process_families,
        make_families,
        write_families,
    )
    from vllama.observe.metrics.server_metrics import Metrics
    from vllama.routes.server.metrics import StateGauges

    families = make_families([*Metrics().list_instruments(), *StateGauges().list_instruments()])
    text = write_families([*families, *collect_process_families()], "")[0].decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    helps = re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE)
    rows = [(f"`{name}`", kinds[name], help) for name, help in helps]
    return _table(("metric", "type", "meaning"), rows)


def commands() -> str:
    """Return the help of every command and action, as the command line prints it."""
    from vllama.cli.app import run
    from vllama.cli.command_index import GROUPS
    from vllama.cli.parser import list_actions

    os.environ["COLUMNS"] = "100"  # the width of the help
    sections = []
    for title, rows in GROUPS.items():
        sections.append(f"## {title}")
        for name in rows:
            for words in ((name,), *((name, action) for action in list_actions(name))):
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    run([*words, "--help"])
                head = f"{'#' * (2 + len(words))} {' '.join(words)}"
                sections.append(f"{head}\n\n```\n{out.getvalue().strip()}\n```")
    return "\n\n".join(sections)


def python() -> str:
    """Return the directives from which mkdocstrings makes the pages of the public modules."""
    modules = (
        *("vllama.api", "vllama.plan.types", "vllama.models.types"),
        *("vllama.base.errors", "vllama.engines.base", "vllama.engines.testing"),
    )
    return "\n\n".join(f"::: {module}" for module in modules)


PARTS: dict[str, Callable[[], str]] = {
    part.__name__: part for part in (settings, tables, commands, routes, metrics)
}
ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "docs" / "reference" / "vllama.toml.example"
GENERATED = re.compile(
    rf"(<!-- generated: ({'|'.join(PARTS)}) -->)\n(?:.*?\n<!-- end -->)?", re.DOTALL
)


def make_config_file() -> str:
    """Return a config file with every setting, commented out."""
    from vllama.accounts.keys.group import GROUP_FIELDS
    from vllama.config import SETTINGS
    from vllama.models.settings import MODEL_FIELDS, UPSTREAM_FIELDS

    lines = [
        "# Every setting of vllama, with its default or an example.",
        "# vllama config edit opens your own file; see docs/reference/configuration.md.",
    ]
    # what is set for single models and servers has tables of its own, which come last in a file
    for one in SETTINGS:
        if one.key not in ("models", "upstreams", "groups"):
            lines += ["", f"# {one.help}", _comment(one.key, one.default_text or one.example)]
    for title, fields in (
        ('[models."qwen3:8b"]', MODEL_FIELDS),
        ("[upstreams.gpu]", UPSTREAM_FIELDS),
        ("[groups.research]", GROUP_FIELDS),
    ):
        lines += ["", "", f"# {title}"]
        for each in fields:
            lines += ["", f"# {each.help}", _comment(each.key, each.example)]
    return "\n".join(lines) + "\n"


def _comment(key: str, value: str) -> str:
    """Return a line of TOML, commented out. What is no literal of TOML is a string."""
    try:
        tomllib.loads(f"x = {value}")
    except tomllib.TOMLDecodeError:
        value = json.dumps(value, ensure_ascii=False)
    return f"# {key} = {value}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def fill(text: str) -> str:
    """Return a page with its generated parts as they are now."""
    return GENERATED.sub(lambda m: f"{m[1]}\n\n{PARTS[m[2]]()}\n\n<!-- end -->", text)


def main() -> None:
    """Write the pages; with `--check`, fail if one is out of date."""
    wanted = {EXAMPLE: make_config_file()}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if GENERATED.search(text := page.read_text()):
            wanted[page] = fill(text)
    old = [page for page, text in wanted.items() if not page.exists() or page.read_text() != text]
    if "--check" in sys.argv:
        names = "".join(f"\n  {page.relative_to(ROOT)}" for page in old)
        sys.exit(f"out of date; run: make fix{names}" if old else 0)
    for page in old:
        page.write_text(wanted[page])


if __name__ == "__main__":
    main()
