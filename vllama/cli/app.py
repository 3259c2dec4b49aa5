"""The command table and the boundary of the command line: arguments in, exit code out.

Every command's module is light; what is heavy is imported inside the commands.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from vllama import __version__
from vllama.cli import cp, create, ps, pull, rm, serve, show, stop
from vllama.cli import list as list_command
from vllama.cli import run as run_command
from vllama.cli.output import say, show_error
from vllama.errors import VllamaError

INTERRUPTED = 130
USAGE = 2

GROUPS: tuple[tuple[str, tuple[tuple[str, Callable[..., object], str], ...]], ...] = (
    (
        "Serve and ask",
        (
            ("serve", serve.serve, serve.EXAMPLES),
            ("run", run_command.run, run_command.EXAMPLES),
        ),
    ),
    (
        "Running models",
        (
            ("ps", ps.ps, ps.EXAMPLES),
            ("stop", stop.stop, stop.EXAMPLES),
        ),
    ),
    (
        "Models on this disk",
        (
            ("pull", pull.pull, pull.EXAMPLES),
            ("list", list_command.list_models, list_command.EXAMPLES),
            ("show", show.show, show.EXAMPLES),
            ("create", create.create, create.EXAMPLES),
            ("cp", cp.cp, cp.EXAMPLES),
            ("rm", rm.rm, rm.EXAMPLES),
        ),
    ),
)
ALIASES = {"ls": "list", "start": "serve"}

EXAMPLES = """\
Examples:
  vllama serve --model smollm2:135m      start the server and load a model
  vllama run smollm2:135m "Why?"         ask it, from another terminal
  vllama pull Qwen/Qwen3-0.6B            download a model of the Hugging Face hub
  vllama list                            see what is there

'vllama COMMAND --help' tells more about a command. The server is found at OLLAMA_HOST.
"""


class Group(TyperGroup):
    """Shows the commands by what they are for, and guesses what an unknown one was meant to be."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section a group, then the examples."""
        for title, commands in GROUPS:
            with formatter.section(title):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(70)) for name, _, _ in commands]
                )
        formatter.write("\n" + EXAMPLES)


def version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        say(f"vllama version is {__version__}")
        raise typer.Exit


def main(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", "-v", callback=version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Serve language models with the vendors' own servers, behind the API of Ollama."""
    if context.invoked_subcommand is None:
        say(context.get_help())


def build() -> typer.Typer:
    """Build the command table."""
    app = typer.Typer(
        cls=Group,
        suggest_commands=False,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(invoke_without_command=True)(main)
    handlers = {}
    for _, commands in GROUPS:
        for name, handler, examples in commands:
            handlers[name] = (handler, examples)
            app.command(name, epilog=examples)(handler)
    for alias, name in ALIASES.items():
        app.command(alias, epilog=handlers[name][1], hidden=True)(handlers[name][0])
    return app


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit code; prints the error if there is one."""
    args, engine_args = prepare(list(argv))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # half a character must not end an answer
            stream.reconfigure(errors="replace")
    try:
        command = typer.main.get_command(build())
        status = command.main(args=args, prog_name="vllama", standalone_mode=False, obj=engine_args)
        sys.stdout.flush()
    except TyperException as error:
        problem = error.format_message().rstrip(".")
        show_error(problem, _usage_hint(args, problem))
        return USAGE
    except VllamaError as error:
        show_error(error.message, error.hint)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_gone()
    except OSError as error:
        show_error(f"cannot write: {error.strerror or error}")
        return 1
    except SystemExit as error:  # typer's own way with a broken pipe
        _reader_gone()
        return error.code if isinstance(error.code, int) else 1
    return status if isinstance(status, int) else 0


def prepare(args: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Bring arguments into the form that the parser takes; cut off those for the engine.

    `help X` is `X --help`, `--think` alone is `--think=true`, as in Ollama.
    """
    engine_args: tuple[str, ...] = ()
    if args[:1] == ["help"]:
        args = [*args[1:2], "--help"]
    if args[:1] and ALIASES.get(args[0], args[0]) == "serve" and "--" in args:
        cut = args.index("--")
        args, engine_args = args[:cut], tuple(args[cut + 1 :])
    end = args.index("--") if "--" in args else len(args)
    args = ["--think=true" if a == "--think" and i < end else a for i, a in enumerate(args)]
    return args, engine_args


def _usage_hint(args: Sequence[str], problem: str) -> str:
    """Say what was meant: the nearest command, or where the help is."""
    known = [name for _, commands in GROUPS for name, _, _ in commands]
    named = next((a for a in args if not a.startswith("-")), "")
    if ALIASES.get(named, named) == "serve" and "unexpected" in problem:
        return "name the model with --model; arguments for the engine go after --"
    if named in known or named in ALIASES:
        return f"see 'vllama {named} --help'"
    nearest = difflib.get_close_matches(named, [*known, *ALIASES], n=1)
    return f"did you mean 'vllama {nearest[0]}'?" if nearest else "see 'vllama --help'"


def _reader_gone() -> int:
    """Keep the interpreter from complaining, at its end, that nobody reads its output."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return 1
