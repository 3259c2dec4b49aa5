"""`vllama serve`: run the server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllama.cli.completion import model_names

EXAMPLES = """\
\b
Examples:
  vllama serve
  vllama serve --model smollm2:135m
  vllama serve -m Qwen/Qwen3-0.6B --ctx 8192 --port 8080
  vllama serve -m ./model.gguf -- --seed 1

What comes after -- goes to the engine as it is. Every flag has a variable (VLLAMA_PORT, …) and a
line in the config file (port = 8080); OLLAMA_HOST and the other variables of Ollama work too.
"""


def serve(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="Model to load at the start.",
            autocompletion=model_names,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Engine to use instead of the best for this machine."),
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address to listen on. [127.0.0.1]")
    ] = None,
    port: Annotated[
        str | None, typer.Option(metavar="N", help="Port; 0 takes any free one. [11434]")
    ] = None,
    ctx: Annotated[
        str | None, typer.Option(metavar="N", help="Context in tokens; 0: as fits.")
    ] = None,
    gpu_layers: Annotated[
        str | None, typer.Option(metavar="N", help="Layers to put on the GPU: all, or a number.")
    ] = None,
    threads: Annotated[
        str | None, typer.Option(metavar="N", help="CPU threads of an engine.")
    ] = None,
    keep_alive: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How long an idle model stays loaded; negative: for ever. [5m]"
        ),
    ] = None,
    parallel: Annotated[
        str | None,
        typer.Option(metavar="N", help="Requests at once per model; 0: as the engine likes."),
    ] = None,
    max_loaded_models: Annotated[
        str | None, typer.Option(metavar="N", help="Models loaded at once; 0: as memory allows.")
    ] = None,
    max_queue: Annotated[
        str | None,
        typer.Option(metavar="N", help="Requests that may wait; more are refused. [512]"),
    ] = None,
    load_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How long a load may make no progress; 0: for ever. [5m]"
        ),
    ] = None,
    upstream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="A running OpenAI server to put this API before; may be repeated."
        ),
    ] = None,
    upstream_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Key that the upstreams want.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Log more.")] = False,
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Config file to use.")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORM", help="Form of the log: text or json.")
    ] = None,
) -> int:
    """Run the server, and load a model at once if one is named."""
    from vllama import config
    from vllama.cli.logs import set_up_logging
    from vllama.cli.serve_ui import TerminalUi

    given = {
        "model": model,
        "engine": engine,
        "host": host,
        "port": port,
        "context_length": ctx,
        "gpu_layers": gpu_layers,
        "threads": threads,
        "keep_alive_s": keep_alive,
        "num_parallel": parallel,
        "max_loaded_models": max_loaded_models,
        "max_queue": max_queue,
        "load_timeout_s": load_timeout,
        "upstreams": upstream or None,
        "upstream_key": upstream_key,
        "debug": True if debug else config.UNSET,
        "log_format": log_format,
        "engine_args": context.obj or config.UNSET,
    }
    loaded = config.load(given, config.environ(), config_file)
    config.prepare_environment()
    set_up_logging(debug=loaded.debug, log_format=loaded.log_format)
    from vllama import daemon

    ui = TerminalUi()
    for note in loaded.notes:
        ui.note(note)
    try:
        return daemon.serve(loaded, ui)
    finally:
        ui.close()
