"""`vllama serve`: run the server. Knows no click: a start does without, see `plain_flags`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllama import config
from vllama.cli.reporter import LogReporter, TerminalReporter
from vllama.cli.server_log import set_up_logging
from vllama.errors import EngineMissing, VllamaError
from vllama.server import startup
from vllama.supervise.logs import OWN_LOG


def plain_flags(arguments: Sequence[str]) -> tuple[dict[str, Any], Path | None, bool] | None:
    """Read the arguments of a start that are plainly right, as the settings' table has them.

    Returns what `serve_with` takes: flags by field, the config file, and whether to install
    unasked. None for anything else, help among it: click looks at that, and says what is wrong.
    """
    rows = {row.flag: row for row in config.SETTINGS if row.flag}
    flags: dict[str, Any] = {}
    file: Path | None = None
    yes = False
    rest = iter(arguments)
    for word in rest:
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        row = rows.get("--model" if name == "-m" else name)
        if row is not None and row.is_switch and not equals:
            flags[row.field] = True
        elif name in ("--yes", "-y") and not equals:
            yes = True
        elif (row is not None and not row.is_switch) or name == "--config":
            if not equals and (value := next(rest, "")) == "":
                return None
            if row is None:
                file = Path(value)
            else:
                flags[row.field] = (*flags.get(row.field, ()), value) if row.many else value
        else:
            return None
    return flags, file, yes


def serve_with(
    engine_args: Sequence[str], flags: Mapping[str, Any], config_file: Path | None, *, yes: bool
) -> int:
    """Run the server with flags by the name of their setting; return the exit code.

    `engine_args` go to the engine as they are; with `yes` a missing engine is installed unasked.
    Raises VllamaError.
    """
    # a flag's parameter has the name of its setting; an empty tuple was not given
    given = {field: value or None for field, value in flags.items()}
    given["engine_args"] = engine_args or None
    environ = config.environ()

    def load() -> config.Config:
        return config.load(given, environ, config_file)

    loaded = load()
    config.prepare_environment()
    as_json = loaded.log_format == "json"
    own_log = loaded.log_dir / OWN_LOG
    set_up_logging(debug=loaded.debug, log_format=loaded.log_format, file=own_log)
    logging.captureWarnings(True)
    terminal = TerminalReporter()
    reporter = LogReporter(None if as_json else terminal)
    for note in loaded.notes:
        reporter.note(note)
    if loaded.scheme == "https" and loaded.tls_cert is None:
        reporter.note(
            "there is no certificate, so http is served, not https: give one with --tls-cert"
        )
    try:
        try:
            return startup.serve(loaded, reporter, load)
        except EngineMissing as error:
            from vllama.cli.installing import offer_missing

            terminal.close()
            if not offer_missing(loaded, error, yes=yes):
                raise
        return startup.serve(loaded, reporter, load)
    except VllamaError as error:
        if not as_json:  # the boundary of the command line tells it
            reporter.log_error(error.message, error.hint)
            raise
        reporter.error(error.message, error.hint)
        return error.exit_code
    except Exception:
        reporter.log_bug()
        raise
    finally:
        terminal.close()
