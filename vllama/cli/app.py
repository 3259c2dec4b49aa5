"""The boundary of the command line: arguments in, exit code out.

Imports inside functions keep the short commands quick: each imports only what it needs.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from vllama import __version__
from vllama.base.spelling import find_similar, suggest
from vllama.cli.command_index import ALIASES, COMMANDS

INTERRUPTED = 130
USAGE = 2
REST = ("serve", "plan", "launch", "engines", "service")
"""The commands that pass what comes after -- on to another program."""
SWITCHES = (
    *("verbose", "hidethinking", "nowordwrap", "truncate", "insecure", "experimental"),
    *("license", "modelfile", "parameters", "system", "template", "config", "restore", "yes"),
)
"""Flags that may also be written with a value, `--verbose=false`, as Ollama's can."""
WORDS = (
    (r"^Invalid value for ('[^:]*): ", r"cannot use this value of \1: "),
    (r"Input should be greater than or equal to", "it must be at least"),
    (r"Input should be less than or equal to", "it must be at most"),
    (r"Input should be a valid integer.*", "it is not a whole number"),
    (r"Input should be a valid number.*", "it is not a number"),
    (r" \(Possible options: .*\)$", ""),  # the hint has those that are similar
    (r"^Option '(.*)' requires an argument", r"\1 needs a value"),
    (r"^Option '(.*)' does not take a value", r"\1 takes no value"),
)
"""What the parser says, and how we say it."""
OTHER_WORDS = {
    "list the models on this machine: vllama list": "models model images tags",
    "chat with a model: vllama run MODEL": "chat ask prompt generate complete exec",
    "list loaded models: vllama ps; check this machine: vllama doctor": "status health check",
    "list running requests: vllama ps --requests": "top stats",
    "an engine: vllama engines install ENGINE; a model: vllama pull MODEL": "install add",
    "an engine: vllama engines install ENGINE --upgrade; a model: vllama pull": "update upgrade",
    "search huggingface.co, then run: vllama pull ORG/REPO": "search find",
    "download a model: vllama pull MODEL": "get download fetch clone",
    "a request loads its model; to load one at startup: vllama serve MODEL": "load preload warmup",
    "unload a model: vllama stop MODEL": "unload eject kill",
    "a model: vllama rm MODEL; an engine: vllama engines remove E": "remove delete uninstall rmi",
    "show a model's details: vllama show MODEL": "info describe",
    "create a model from a Modelfile: vllama create MODEL -f Modelfile": "build",
    "copy a model to a second name: vllama cp MODEL NAME": "copy rename tag mv",
    "quantize a GGUF: vllama convert MODEL -q QUANT": "quantize quantise",
    "run the server as a service: vllama service install": "daemon up",
    "stop a server: Ctrl-C; stop a service: systemctl --user stop vllama": "restart down quit",
    "open the server in a browser: http://127.0.0.1:11434": "ui web webui gui open dashboard",
    "use an embedding model: vllama run MODEL TEXT": "embed embedding embeddings",
    "list the engines: vllama engines": "runtime runtimes backend backends",
    "change the config file: vllama config edit": "settings set env",
    "measure a server: vllama bench MODEL": "benchmark benchmarks perf",
}
"""What to do here for each of the commands that other tools have."""
OTHER_OPTIONS = {
    ("ps", "-a"): "list all models: vllama list",
    ("rm", "-f"): "vllama rm does not ask for confirmation: omit -f",
    ("run", "--ctx"): "in the conversation: /set parameter num_ctx VALUE; or use a Modelfile",
    ("stop", "--all"): "name the models; vllama ps lists the loaded ones",
}


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit code; prints the error if there is one."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an unencodable character must not end an answer
            stream.reconfigure(errors="replace")
    try:
        if argv and argv[0] in ("--version", "-v", "version"):
            sys.stdout.write(f"vllama version is {__version__}\n")
            status = 0
        elif not argv and sys.stdin.isatty() and sys.stdout.isatty():
            from vllama.cli.menu import show_menu

            status = show_menu(run)
        else:
            status = _run_command(*prepare(list(argv)))
            if status == USAGE and _is_agent():
                status = 0  # else launchd would start it again and again
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_gone()
    except OSError as error:
        from vllama.cli.output import show_error

        where = f"use '{error.filename}'" if error.filename else "write"
        show_error(f"cannot {where}: {error.strerror or error}")
        return 1


def _run_command(args: list[str], rest: tuple[str, ...]) -> int:
    """Parse the arguments and run the command; show what is wrong with either."""
    if args[0] in ("list", "ls", "ps", "show"):
        from vllama.cli.quick import answer

        if answer(args):
            return 0
    import typer

    from vllama.base.errors import VllamaError
    from vllama.cli.output import show_error, show_warning
    from vllama.cli.parser import COMPLETION_VARIABLE, list_options, root

    try:
        is_help = args[0][:1] == "-" or not {"--help", "-h"}.isdisjoint(args)
        if os.geteuid() == 0 and args[0] != "service" and not is_help:
            _become_owner(args)
        status = root().main(
            args,
            prog_name="vllama",
            complete_var=COMPLETION_VARIABLE,
            standalone_mode=False,
            obj=rest,
        )
    except VllamaError as error:
        show_error(error.message, error.hint)
        return error.exit_code
    except typer.TyperException as error:
        from vllama.config import removed

        problem, option = _explain(error.format_message()), getattr(error, "option_name", None)
        context = getattr(error, "ctx", None)
        new = removed.RENAMED_OPTIONS.get(option or "")
        if new and context and new in list_options(context.command):
            show_warning(f"{option} is now called {new}")
            given = [re.sub(rf"^{option}(?==|$)", new, word) for word in args]
            return _run_command(given, rest)
        action = args[1] if "No such command" in problem and args[1:] else None
        if gone := _find_removed(args, option or action):
            show_error(gone)
        else:
            show_error(problem, _usage_hint(args, problem, option, context))
        return USAGE
    except typer.Abort:
        return INTERRUPTED
    except SystemExit as end:  # how typer leaves when it has answered a shell
        return int(end.code or 0)
    return status if isinstance(status, int) else 0


def _is_agent() -> bool:
    """Tell whether this is launchd's agent of `vllama service`."""
    from vllama import config
    from vllama.cli.commands.service import LABEL

    return config.environ().get("XPC_SERVICE_NAME") == LABEL


def _become_owner(args: Sequence[str]) -> None:
    """Run root's command as the user whose the data folder is, such as that of a service."""
    from pathlib import Path

    from vllama import config
    from vllama.base.errors import ConfigError
    from vllama.base.owner import become_owner

    words, file = [part for arg in args for part in arg.split("=", 1)], None
    if ALIASES.get(args[0], args[0]) in ("serve", "config"):
        file = next((Path(b) for a, b in pairwise(words) if a == "--config"), None)
    with contextlib.suppress(ConfigError):  # by which the command fails, too, or it is to mend it
        become_owner(config.load({}, config.environ(), file).data_dir, words)


def prepare(args: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Rewrite what Ollama accepts and typer does not; split off the arguments for another program.

    `help X` becomes `X --help`, `--think` becomes `--think=true`, and `--verbose=false` goes.
    """
    rest: tuple[str, ...] = ()
    if not args or args[0] == "help":
        args = [*args[1:], "--help"]
    if args[:1] and ALIASES.get(args[0], args[0]) in REST and "--" in args:
        cut = args.index("--")
        args, rest = args[:cut], tuple(args[cut + 1 :])
    end = args.index("--") if "--" in args else len(args)
    return [new for arg in args[:end] for new in _switch(arg)] + args[end:], rest


def _switch(arg: str) -> list[str]:
    if arg == "--think":
        return ["--think=true"]
    name, _, value = arg.removeprefix("--").partition("=")
    if not arg.startswith("--") or name not in SWITCHES or value not in ("true", "false"):
        return [arg]
    if value == "true":
        return [f"--{name}"]
    return ["--no-truncate"] if name == "truncate" else []


def _explain(message: str) -> str:
    """Translate an error of typer or pydantic about an argument."""
    message = message.rstrip(".")
    for pattern, words in WORDS:
        message = re.sub(pattern, words, message)
    return message


def _find_removed(args: Sequence[str], option: str | None) -> str | None:
    """Return the replacement of a removed command or option; None if it never existed."""
    from vllama.config import removed

    name = next((a for a in args if not a.startswith("-")), "")
    known = ALIASES.get(name, name)
    if known not in COMMANDS and (advice := removed.COMMANDS.get(name)):
        return f"'vllama {name}' was removed; {advice}"
    if option and (advice := removed.OPTIONS.get((known, option))):
        return f"'vllama {known} {option}' was removed; {advice}"
    return None


def _usage_hint(args: Sequence[str], problem: str, option: str | None, context: Any) -> str:
    """Suggest the nearest command, or the nearest option for one that is unknown."""
    named = next((a for a in args if not a.startswith("-")), "")
    if ALIASES.get(named, named) == "serve" and "unexpected" in problem:
        return "name one model; arguments for the engine go after --"
    if named in COMMANDS or named in ALIASES:
        page = f"see '{context.command_path if context else _find_path(args, named)} --help'"
        if "No such command" in problem:
            return suggest(args[1], context.command.commands)
        if option and "No such option" in problem:
            return _option_hint(context.command, named, option, page)
        return page
    for hint, words in OTHER_WORDS.items():
        if named in words.split():
            return hint
    nearest = find_similar(named, [*COMMANDS, *ALIASES])
    return f"did you mean 'vllama {nearest[0]}'?" if nearest else "see 'vllama --help'"


def _find_path(args: Sequence[str], named: str) -> str:
    """Return a command's full name, which an error about the value of an option comes without."""
    from vllama.cli.parser import list_actions

    action = [word for word in args[1:2] if word in list_actions(ALIASES.get(named, named))]
    return " ".join(["vllama", named, *action])


def _option_hint(command: Any, name: str, option: str, page: str) -> str:
    from vllama.cli.parser import list_options
    from vllama.config import removed
    from vllama.models.modelfile import KNOWN

    word, known = option.lstrip("-").replace("-", "_"), list_options(command)
    other = f"--{removed.ELSEWHERE.get(word, '').replace('_', '-')}"
    if hint := OTHER_OPTIONS.get((name, option)):
        return hint
    if other in known:
        return f"did you mean {other}?"
    if name == "run" and word in KNOWN:
        return f"in the conversation: /set parameter {word} VALUE; or use a Modelfile"
    return suggest(option, known, page)


def _reader_gone() -> int:
    """Keep Python from complaining at its end that nobody reads its output."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return 1
