"""`vllama requests`: the requests that a server has captured, and one of them in full.

Captures are named by file, or by id from the folder of this machine; for `vllama replay` as well.
"""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from vllama.base.errors import ConfigError, NotFound
from vllama.base.units import format_ago, parse_rfc3339
from vllama.cli.context import load_settings
from vllama.cli.options import AsJson, argument, option
from vllama.cli.output import console, is_terminal, say, show_json, show_table
from vllama.config import Config

if TYPE_CHECKING:
    from vllama.observe.captures.format import Capture, Summary

EXAMPLES = """\
\b
Examples:
  vllama serve --capture 100         capture the last 100 requests
  vllama requests                    list captures, newest last
  vllama requests 1a20602c680-4      show one: messages, response, times
  vllama requests 1a20602c680-4 --curl
  vllama requests ./bug.json --raw   the response as the client received it

Captures are files (docs/reference/captures.md); no running server is needed. 'vllama ps
--requests' lists the running requests.
"""

COLUMNS = (
    "ID", "TIME", "CLIENT", "KEY", "ROUTE", "MODEL", "STATUS", "TOKENS", "SECONDS", "FIRST TOKEN",
)  # fmt: skip
OPTIONAL_COLUMNS = ("KEY", "CLIENT", "FIRST TOKEN", "ROUTE", "TOKENS")
KEY = '"authorization: Bearer $OLLAMA_API_KEY"'
LISTED = 50
Folder: TypeAlias = Annotated[
    Path | None, option("--dir DIR", "Folder of the captures. [from the settings]")
]


def complete_capture(start: str) -> list[str]:
    """Return the ids of captures that begin with what is typed."""
    from vllama.observe.captures.folder import list_summaries

    folder = load_settings().capture_dir
    return [one.id for one in list_summaries(folder) if one.id.startswith(start)]


def requests(
    name: Annotated[
        str | None, argument("ID|FILE", "Capture to show. [list them]", complete_capture)
    ] = None,
    folder: Folder = None,
    last: Annotated[int, option("-n --last N", "Number of captures to list.", min=1)] = LISTED,
    as_json: AsJson = False,
    as_curl: Annotated[
        bool, option("--curl", "Print a curl command that resends the request.")
    ] = False,
    raw: Annotated[bool, option("--raw", "Print the response as the client received it.")] = False,
) -> None:
    """List the captured requests, or show one."""
    settings = load_settings()
    if name is None:
        if as_curl or raw:
            raise ConfigError(
                "cannot print a request: no ID specified", hint="list the IDs: vllama requests"
            )
        show_list(settings, folder or settings.capture_dir, last, as_json=as_json)
        return
    capture = find(name, folder, settings)
    if as_json:
        from vllama.observe.captures.format import encode_capture

        say(encode_capture(capture).decode().rstrip("\n"))
    elif as_curl:
        show_curl(capture, settings)
    elif raw:
        sys.stdout.buffer.write(capture.answer.content)
        sys.stdout.buffer.flush()
    else:
        show_readable(capture)


def find(name: str, folder: Path | None, settings: Config) -> Capture:
    """Return the capture of a file, or of an id in a folder. Raises VllamaError."""
    from vllama.observe.captures.folder import find_capture, open_capture

    path = Path(name)
    if path.suffix == ".json" or path.is_file():
        return open_capture(path)
    where = folder or settings.capture_dir
    found = find_capture(where, name)
    if found is None:
        raise NotFound(
            f"capture '{name}' not found in '{where}'", hint="list the captures: vllama requests"
        )
    return found


def show_list(settings: Config, folder: Any, last: int, *, as_json: bool) -> None:
    """Print the newest captures, the newest last."""
    import msgspec

    from vllama.lab.capture_view import escape_controls
    from vllama.observe.captures.folder import list_summaries

    found = list(list_summaries(folder, last))[::-1]
    if as_json:
        show_json({"folder": str(folder), "captures": msgspec.to_builtins(found)})
        return
    rows = [[escape_controls(cell) for cell in list_cells(one)] for one in found]
    empty = f"No captures in '{folder}'. To capture requests: vllama serve --capture 100"
    show_table(COLUMNS, rows, optional=OPTIONAL_COLUMNS, empty=empty)


def list_cells(one: Summary) -> tuple[str, ...]:
    """Return the cells of one capture."""
    from vllama.lab.capture_view import NOTHING, describe_end

    tokens = one.tokens
    return (
        one.id,
        format_ago(max(0.0, time.time() - parse_rfc3339(one.received_at))),
        one.client or NOTHING,
        one.key or NOTHING,
        one.request.path,
        one.request.model or NOTHING,
        describe_end(one),
        f"{tokens.prompt}+{tokens.generated}" if tokens else NOTHING,
        f"{one.times.total_s:.2f}",
        NOTHING if one.times.first_token_s is None else f"{one.times.first_token_s:.2f}",
    )


def show_curl(capture: Capture, settings: Config) -> None:
    """Print the command that asks the running server again; a key is left to the user."""
    from vllama.lab.replays import check_whole

    check_whole(capture)
    body = capture.request.body
    if body.encoding != "utf-8":
        raise ConfigError(
            "cannot print a curl command: the body is not text",
            hint=f"send it with: vllama replay {capture.id}",
        )
    words = ["curl", "--no-buffer", "--request", capture.request.method]
    for name in ("content-type", "accept", "anthropic-version", "anthropic-beta"):
        if value := capture.request.headers.get(name):
            words += ["--header", f"{name}: {value}"]
    words += ["--data-raw", body.data, settings.url + capture.request.path]
    key = f" --header {KEY}" if settings.key_to_send else ""
    say(f"{shlex.join(words)}{key}")


def show_readable(capture: Capture) -> None:
    """Print a request and its response, for people."""
    from vllama.lab.capture_view import escape_controls, list_answers, list_facts, list_questions

    for label, text in list_facts(capture):
        say(f"{label:<12}{escape_controls(text)}")
    for title, text in (*list_questions(capture), *list_answers(capture)):
        say()
        show_title(title)
        say(escape_controls(text.rstrip("\n")))


def show_title(title: str) -> None:
    """Print the title of a part, bold on a terminal."""
    if is_terminal(sys.stdout):
        console().print(f"{title}:", style="bold")
    else:
        say(f"{title}:")
