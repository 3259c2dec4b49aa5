"""`vllama run`: ask a model, once or in a conversation."""

from __future__ import annotations

import json
import re
import sys
from typing import Annotated

from vllama.base.errors import ConfigError, VllamaError
from vllama.base.units import parse_keep_alive
from vllama.cli.context import load_settings
from vllama.cli.options import Insecure, argument, complete_words, model_argument, option
from vllama.cli.output import is_terminal, say

EXAMPLES = """\
\b
Examples:
  vllama run smollm2:135m
  vllama run smollm2:135m "Why is the sky blue?"
  cat report.txt | vllama run smollm2:135m "Summarize this:"
  vllama run nomic-embed-text "text to embed"
"""

LEVELS = ("low", "medium", "high", "max")


def run(
    model: Annotated[str, model_argument("Name of the model; pulled if missing.")],
    prompt: Annotated[list[str] | None, argument("PROMPT", "Prompt; stdin is prepended.")] = None,
    verbose: Annotated[bool, option("--verbose", "Show timings.")] = False,
    keepalive: Annotated[
        str | None, option("--keepalive DURATION", "Time to keep the model loaded. [the server's]")
    ] = None,
    format_: Annotated[
        str | None,
        option("--format FORM", "Response format: json or a schema.", complete_words("json")),
    ] = None,
    think: Annotated[
        str | None,
        option(
            "--think LEVEL",
            "Enable thinking: --think, --think=false, --think=high.",
            complete=complete_words("true", "false", *LEVELS),
        ),
    ] = None,
    hidethinking: Annotated[bool, option("--hidethinking", "Hide thinking.")] = False,
    nowordwrap: Annotated[bool, option("--nowordwrap", "Do not wrap long lines.")] = False,
    truncate: Annotated[
        bool | None, option("--truncate/--no-truncate", "Truncate text that is too long to embed.")
    ] = None,
    dimensions: Annotated[
        int | None, option("--dimensions N", "Dimensions of the embedding.", min=1)
    ] = None,
    keep: Annotated[
        bool, option("--keep", "Keep a server started by this command running.")
    ] = False,
    insecure: Insecure = False,
) -> None:
    """Prompt a model once, or chat with it."""
    from vllama.cli.chat.session import Session
    from vllama.cli.run_server import open_server

    settings = load_settings()
    keep_alive, form = parse_keep_alive_flag(keepalive), parse_format(format_)
    thinking = parse_think(think)
    with open_server(settings, keep=keep) as client:
        session = Session(
            client=client,
            model=model,
            keep_alive=keep_alive,
            format=form,
            think=thinking,
            hide_thinking=hidethinking,
            verbose=verbose,
            wrap=not nowordwrap,
        )
        talks = is_terminal(sys.stdin) and is_terminal(sys.stdout) and not prompt
        piped = b"" if is_terminal(sys.stdin) else sys.stdin.buffer.read()
        # what came on stdin stands before the prompt, as in Ollama
        words = [piped.decode(errors="replace").strip(), " ".join(prompt or ())]
        text = " ".join(filter(None, words))
        shown = session.describe_or_pull()
        if "embedding" in (shown.get("capabilities") or []):
            if not text:
                raise VllamaError(
                    f"cannot run '{model}' without text: it is an embedding model",
                    hint=f'add the text: vllama run {model} "your text"',
                )
            say(json.dumps(session.embed(text, truncate=truncate, dimensions=dimensions)))
        elif talks:
            from vllama.cli.chat.repl import converse

            session.load()
            history = None if settings.nohistory else settings.data_dir / "history"
            converse(session, history)
        elif text:
            session.generate(text)
        else:
            session.load()


def parse_keep_alive_flag(text: str | None) -> object:
    """Read `--keepalive`: a duration as it is, bare digits as seconds. Raises ConfigError."""
    if text is None:
        return None
    try:
        parse_keep_alive(text, bare_numbers=True)
    except ValueError as error:
        raise ConfigError(
            f'invalid keep_alive "{text}" in --keepalive: {error}',
            hint="use a duration such as 10m, or -1 for forever",
        ) from None
    return int(text) if re.fullmatch(r"[+-]?[0-9]+", text) else text


def parse_format(text: str | None) -> object:
    """Read `--format`: `json` or a JSON schema. Raises ConfigError."""
    if not text or text == "json":
        return text or None
    try:
        schema = json.loads(text)
    except ValueError:
        schema = None
    if not isinstance(schema, dict):
        raise ConfigError(
            f'invalid format "{text}" in --format: neither json nor a JSON schema',
            hint="""use --format json, or --format '{"type": "object", …}'""",
        )
    return schema


def parse_think(text: str | None) -> bool | str | None:
    """Read `--think`. Raises ConfigError."""
    match (text or "").lower():
        case "":
            return None
        case "true" | "yes" | "on" | "1":
            return True
        case "false" | "no" | "off" | "0":
            return False
        case level if level in LEVELS:
            return level
    raise ConfigError(
        f'invalid think "{text}" in --think: not true, false or a level',
        hint=f"use --think, --think=false or --think={'|'.join(LEVELS)}",
    )
