"""`vllama serve`: run the server."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from vllama import config
from vllama.base import log_context
from vllama.base.errors import ConfigError, EngineMissing, VllamaError
from vllama.cli.options import Flags, model_argument, option, with_settings, yes_option

EXAMPLES = """\
\b
Examples:
  vllama serve
  vllama serve smollm2:135m
  vllama serve Qwen/Qwen3-0.6B --context-length 8192 --port 8080
  vllama serve ./model.gguf -- --seed 1

Arguments after -- are passed to the engine. Every flag has a variable (VLLAMA_PORT, …) and a
line in the config file (port = 8080); OLLAMA_HOST and the other variables of Ollama work too.
"""


@with_settings()
def serve(
    context: typer.Context,
    flags: Flags,
    name: Annotated[
        str | None, model_argument("Model to load at startup, as with --model.")
    ] = None,
    config_file: Annotated[Path | None, option("--config FILE", "Config file to use.")] = None,
    yes: Annotated[bool, yes_option("Install a missing engine without asking.")] = False,
    until_unused: Annotated[Path | None, typer.Option("--until-unused", hidden=True)] = None,
) -> int:
    """Start the server, and load a model if one is named."""
    from vllama.cli.reporter import LogReporter, TerminalReporter
    from vllama.cli.run_server import serve_users
    from vllama.cli.server_log import set_up_logging
    from vllama.server import startup
    from vllama.server.preflight import move_unwritable
    from vllama.supervise.logs import OWN_LOG

    if name and flags["model"]:
        raise ConfigError(
            f"cannot load both '{name}' and '{flags['model']}': name one model to load at once",
            hint="the others are loaded when they are first asked for",
        )
    given = {**flags, "model": name or flags["model"], "engine_args": context.obj or None}
    environ = config.environ()

    def load() -> config.Config:
        return replace(config.load(given, environ, config_file, serves=True), **moved)

    moved: dict[str, Any] = {}
    moved, warning = move_unwritable(load())
    settings = load()
    config.prepare_environment()
    as_json = settings.log_format == "json"
    announce = serve_users(until_unused, settings.stop_limit_s) if until_unused else None
    set_up_logging(
        debug=settings.debug, log_format=settings.log_format, file=settings.log_dir / OWN_LOG
    )
    log_context.port = settings.port
    logging.captureWarnings(True)
    terminal = TerminalReporter()
    reporter = LogReporter(None if as_json else terminal, announce)
    for note in settings.notes:
        reporter.warn(note)
    if warning:
        reporter.warn(warning)
    if settings.scheme == "https" and settings.tls_cert is None:
        reporter.note(
            "there is no certificate, so http is served, not https: give one with --tls-cert"
        )
    try:
        try:
            return startup.serve(settings, reporter, load)
        except EngineMissing as error:
            from vllama.cli.engine_install import offer_missing

            terminal.close()
            if not offer_missing(settings, error, yes=yes):
                raise
        return startup.serve(settings, reporter, load)
    except VllamaError as error:
        if not as_json:  # the boundary of the command line shows it
            reporter.log_error(error.message, error.hint)
            raise
        reporter.error(error.message, error.hint)
        return error.exit_code
    except Exception:
        reporter.log_bug()
        raise
    finally:
        terminal.close()
