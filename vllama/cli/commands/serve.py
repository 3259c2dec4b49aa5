"""`vllama serve` for click: the flags, their help, and their errors; see `serving`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from vllama.cli.commands.completion import model_names

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


@click.option(
    "--model",
    "-m",
    metavar="NAME",
    help="Model to load at the start.",
    shell_complete=model_names,
)
@click.option(
    "--engine", metavar="NAME", help="Engine to use instead of the best for this machine."
)
@click.option(
    "--strict",
    is_flag=True,
    default=None,
    help="Try no other plan if an engine does not start.",
)
@click.option("--host", metavar="ADDRESS", help="Address to listen on. [127.0.0.1]")
@click.option("--port", metavar="N", help="Port; 0 takes any free one. [11434]")
@click.option("--ctx", "context_length", metavar="N", help="Context in tokens; 0: as fits.")
@click.option("--gpu-layers", metavar="N", help="Layers to put on the GPU: all, or a number.")
@click.option("--threads", metavar="N", help="CPU threads of an engine.")
@click.option(
    "--keep-alive",
    "keep_alive_s",
    metavar="DURATION",
    help="How long an idle model stays loaded; negative: for ever. [5m]",
)
@click.option(
    "--parallel",
    "num_parallel",
    metavar="N",
    help="Requests at once per model; 0: as the engine likes.",
)
@click.option(
    "--max-loaded-models", metavar="N", help="Models loaded at once; 0: as memory allows."
)
@click.option(
    "--max-queue", metavar="N", help="Requests that may wait for a model; more are refused. [512]"
)
@click.option("--replicas", metavar="N", help="Processes of each model that share its requests.")
@click.option(
    "--hang-timeout",
    "hang_timeout_s",
    metavar="DURATION",
    help="How long an engine may be silent in an answer; 0: for ever. [30s]",
)
@click.option(
    "--load-timeout",
    "load_timeout_s",
    metavar="DURATION",
    help="How long a load may make no progress; 0: for ever. [5m]",
)
@click.option(
    "--upstream",
    "upstreams",
    multiple=True,
    metavar="URL",
    help="A running OpenAI server to put this API before; may be repeated.",
)
@click.option("--upstream-key", metavar="KEY", help="Key that the upstreams want.")
@click.option(
    "--api-key",
    multiple=True,
    metavar="KEY",
    help="Key that requests must show; may be repeated. Others on this machine can see flags.",
)
@click.option(
    "--api-key-file",
    metavar="FILE",
    help="File with such keys, one a line; SIGHUP reads it again.",
)
@click.option("--tls-cert", metavar="FILE", help="Certificate and chain to serve https with (PEM).")
@click.option("--tls-key", metavar="FILE", help="Its private key (PEM), if in another file.")
@click.option(
    "--read-only",
    is_flag=True,
    default=None,
    help="Refuse to pull, create, copy, delete and upload models over HTTP.",
)
@click.option(
    "--allow-registry",
    multiple=True,
    metavar="HOST",
    help="Pull models from this host only, such as huggingface.co; may be repeated.",
)
@click.option(
    "--max-blob-size",
    "max_blob_size_bytes",
    metavar="SIZE",
    help="Largest file to be uploaded or pulled, such as 20GB.",
)
@click.option("--debug", is_flag=True, default=None, help="Log more.")
@click.option("--config", "config_file", type=Path, metavar="FILE", help="Config file to use.")
@click.option("--log-format", metavar="FORM", help="Form of the log: text or json.")
@click.option("--yes", "-y", is_flag=True, help="Install an engine that is missing, unasked.")
@click.pass_obj
def serve(engine_args: Sequence[str], /, config_file: Path | None, yes: bool, **flags: Any) -> int:
    """Run the server, and load a model at once if one is named."""
    from vllama.cli.serving import serve_with

    return serve_with(engine_args, flags, config_file, yes=yes)
