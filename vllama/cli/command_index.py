"""The commands: their names, one line about each, and the help page made of them.

The help page imports no command, and a command only its own module.
"""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill

GROUPS = {
    "Commands": {
        "serve": "Start the server, and optionally load a model.",
        "run": "Prompt a model once, or chat with it.",
        "pull": "Download a model, or resume an interrupted download.",
        "list": "List installed models.",
        "ps": "List loaded models, or running requests.",
        "stop": "Unload a model, or stop a request; the server keeps running.",
        "batch": "Run a batch file when the server is idle, or list batches.",
        "logs": "Show the log of a model's engine, or of the server.",
        "engines": "List, install or remove engines.",
    },
    "Models": {
        "recommend": "Recommend models that suit this machine.",
        "plan": "Show the plan for loading a model, and the reasons.",
        "show": "Show the details of a model.",
        "create": "Create a model from another one, with its own defaults.",
        "convert": "Convert safetensors to GGUF, or quantize a GGUF.",
        "cp": "Copy a model to a new name; the files are shared.",
        "rm": "Unload and remove models.",
        "inspect": "Collect the residual stream of a prompt.",
        "cache": "List or remove conversations stored on disk.",
    },
    "Watch": {
        "events": "Stream server events.",
        "usage": "Show requests, tokens and time by key, model and day.",
        "requests": "List the captured requests, or show one.",
    },
    "Operate": {
        "launch": "Configure a tool to use this server, and start it.",
        "doctor": "Find problems that keep models from running.",
        "config": "Show settings and their sources, edit the config file, or print its schema.",
        "nodes": "List, drain or undrain the nodes of a cluster.",
        "keys": "List, add, change, rotate, revoke or remove API keys.",
        "service": "Install, show or remove the vllama service.",
    },
    "Measure": {
        "bench": "Measure the speed of the server, alone or against another one.",
        "verify": "Check whether two engines give the same responses.",
        "replay": "Replay a captured request, and compare the responses.",
    },
}
HIDDEN = {
    "push": "Upload a model (not supported).",
    "signin": "Sign in to ollama.com (not needed).",
    "signout": "Sign out of ollama.com.",
    "completion": "Print a shell completion script.",
}
ALIASES = {"ls": "list", "start": "serve", "login": "signin", "logout": "signout"}

_PLACES = {
    "inspect": "inspect_:inspect_",
    "list": "list:list_models",
    "push": "account:push",
    "signin": "account:signin",
    "signout": "account:signout",
}
"""The commands whose functions or modules have other names."""
PLUGINS = ("bench", "replay", "requests", "verify")
"""The commands of the lab, which are found as those of other packages: by an entry point."""


def find_place(name: str) -> str:
    """Return the module and the function of a command; empty for one of another package."""
    if name in PLUGINS or name not in COMMANDS:
        return ""
    return f"vllama.cli.commands.{_PLACES.get(name, f'{name}:{name}')}"


LINES = {name: line for rows in (*GROUPS.values(), HIDDEN) for name, line in rows.items()}
COMMANDS = tuple(LINES)
INTRODUCTION = "Serve language models with the official inference servers, behind Ollama's API."
HEAD = """\
Usage: vllama [OPTIONS] COMMAND [ARGS]...

{introduction}

Options:
  -v, --version  Show the version.
  -h, --help     Show this message and exit.
"""
EXAMPLES = {
    "vllama serve --model smollm2:135m": "start the server and load a model",
    'vllama run smollm2:135m "Why?"': "prompt it, from another terminal",
    "vllama pull Qwen/Qwen3-0.6B": "download a model from the Hugging Face hub",
    "vllama launch codex": "use a coding agent with your own model",
    "vllama list": "list installed models",
}
EXIT_CODES = {
    "1": "the command failed; see the error message",
    "2": "the command line or a setting is invalid",
    "3": "no engine can serve the model, or a check failed",
    "4": "the port is in use",
    "130": "interrupted by Ctrl-C",
}
MORE = (
    "For help on a command, run 'vllama COMMAND --help'. OLLAMA_HOST sets the server's address.",
    "'vllama completion bash' (zsh, fish) prints a script that completes commands, models and "
    "engines.",
)
LEAST_TEXT = 20
"""Columns that a text needs beside its name; else it goes below."""


def help_page(width: int) -> str:
    """Return the page for a terminal with so many columns."""
    introduction = fill(INTRODUCTION, width, initial_indent="  ", subsequent_indent="  ")
    names = max(len(name) for rows in GROUPS.values() for name in rows)
    sections = [HEAD.format(introduction=introduction)]
    sections += [write_section(title, rows, names, width) for title, rows in GROUPS.items()]
    for title, lines in (("Examples", EXAMPLES), ("Exit codes", EXIT_CODES)):
        sections.append(write_section(title, lines, max(map(len, lines)), width))
    sections.append("".join(f"{fill(line, width)}\n" for line in MORE))
    return "\n".join(sections)


def write_section(title: str, rows: Mapping[str, str], names: int, width: int) -> str:
    """Return a title and its rows: names in `names` columns, and a text about each beside it."""
    lines = [f"{title}:"]
    indent = " " * (names + 4)
    for name, text in rows.items():
        if len(indent) + LEAST_TEXT > width:
            lines += [
                f"  {name}",
                fill(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6),
            ]
        else:
            start = f"  {name.ljust(names)}  "
            lines.append(fill(text, width, initial_indent=start, subsequent_indent=indent))
    return "".join(f"{line}\n" for line in lines)
