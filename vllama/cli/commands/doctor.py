"""`vllama doctor`: what keeps models from running here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllama import config
from vllama.base.errors import ConfigError
from vllama.cli.options import AsJson
from vllama.cli.output import console, is_terminal, say, show_json, wrap_words
from vllama.config import Config

if TYPE_CHECKING:
    from vllama.doctor.check import Finding

EXAMPLES = """\
\b
Examples:
  vllama doctor
  vllama doctor --json
  vllama engines doctor          start and check each engine

The exit code is 1 if a check failed, otherwise 0, even with warnings.
"""

MARKS = {"ok": "✓", "skipped": "-", "warning": "!", "failed": "✗"}
PLAIN = {"ok": "ok", "skipped": "-", "warning": "warning", "failed": "FAILED"}
STYLES = {"ok": "green", "skipped": "dim", "warning": "yellow", "failed": "bold red"}


def doctor(as_json: AsJson = False) -> int:
    """Find problems that keep models from running."""
    from vllama.doctor.check import failure

    try:
        settings = config.load({}, config.environ())
    except ConfigError as error:  # everything else can be checked without them
        unread = failure(error.message, error.hint)
        return examine(Config(), engines_only=False, as_json=as_json, first=[("settings", unread)])
    return examine(settings, engines_only=False, as_json=as_json)


def examine(
    settings: Config,
    *,
    engines_only: bool,
    as_json: bool,
    first: Sequence[tuple[str, Finding]] = (),
) -> int:
    """Run the checks, print the findings, and return the exit code."""
    from vllama.doctor.check import Once, Severity, run
    from vllama.doctor.checks import all_checks, engine_checks
    from vllama.server.preflight import gather_facts

    config.prepare_environment()
    facts = Once(lambda: gather_facts(settings))
    checks = engine_checks(settings, facts) if engines_only else all_checks(settings, facts)
    told = {name for name, _ in first}
    found = [*first, *run([check for check in checks if check.name not in told])]
    bad = any(finding.status is Severity.FAILED for _, finding in found)
    if as_json:
        rows = [
            {
                "check": name,
                "status": str(finding.status),
                "text": finding.text,
                "hint": finding.hint,
            }
            for name, finding in found
        ]
        show_json({"ok": not bad, "findings": rows})
    else:
        show(found)
    return 1 if bad else 0


def show(found: Sequence[tuple[str, Finding]]) -> None:
    """Print one line for each finding, and its hint below."""
    fancy = is_terminal(sys.stdout)
    width = max(len(name) for name, _ in found)
    last = ""
    for name, finding in found:
        shown = "" if name == last else name
        last = name
        if not fancy:
            say(f"{PLAIN[finding.status]:<8}{shown.ljust(width)}  {finding.text}")
            if finding.hint:
                say(f"{'':8}{'':{width}}  hint: {finding.hint}")
            continue
        from rich.text import Text

        out, style = console(), STYLES[finding.status]
        text = wrap_words(finding.text, sys.stdout, width + 5)
        out.print(
            Text.assemble(
                (f" {MARKS[finding.status]} ", style), (shown.ljust(width), "bold"), "  ",
                (text, "" if finding.status != "skipped" else "dim"),
            )
        )  # fmt: skip
        if finding.hint:
            hint = wrap_words(finding.hint, sys.stdout, width + 5)
            out.print(Text.assemble(" " * (width + 5), (hint, "cyan")))
