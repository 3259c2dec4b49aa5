"""`vllama batch`: run the requests of a file while nobody else asks their model."""

from __future__ import annotations

import codecs
import json
import os
import re
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllama.base.errors import ConfigError, ServerUnreachable, VllamaError
from vllama.base.owner import read_named
from vllama.base.units import format_ago
from vllama.cli.context import connect
from vllama.cli.options import AsJson, argument, complete_model, option
from vllama.cli.output import console, is_terminal, say, say_aside, show_json, show_table

if TYPE_CHECKING:
    from vllama.cli.client import Client, Reply

EXAMPLES = """\
\b
Examples:
  vllama batch rows.jsonl
  vllama batch rows.jsonl -o answers.jsonl --model smollm2:135m
  vllama batch                                             list all batches
  vllama batch batch_1a2b -o answers.jsonl                 wait for it, save its responses
  vllama batch batch_1a2b --cancel

Each line is a request in the format of OpenAI's Batch API. Ctrl-C exits; the server continues
the batch. The exit code is 0 if every request has a response, otherwise 1; see
docs/guide/batches.md.
"""
FORM = 'each line is {"custom_id": …, "method": "POST", "url": …, "body": {…}}'
FILE = "/v1/files/{}/content"
LOOK_S = 0.5
ABSENT_S = 60.0
"""How long the server may be away, for a restart."""
COLUMNS = ("ID", "STATUS", "RESPONSES", "ERRORS", "REQUESTS", "CREATED")


def batch(
    what: Annotated[
        str | None,
        argument("FILE", "JSONL file with one request per line (- for stdin), or a batch ID."),
    ] = None,
    output: Annotated[
        Path | None, option("--output FILE -o", "File for the responses. [stdout]")
    ] = None,
    model: Annotated[
        str | None, option("--model NAME", "Model for all requests.", complete_model)
    ] = None,
    cancel: Annotated[
        bool, option("--cancel", "Cancel a batch; finished responses are saved.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Run a batch file when the server is idle, or list batches."""
    if what is None:
        named = {"--cancel": cancel, "--output": output, "--model": model}
        for flag in (each for each, value in named.items() if value):
            hint = "specify it; vllama batch lists the IDs"
            raise ConfigError(f"cannot use {flag}: it requires a file or a batch ID", hint=hint)
        with connect() as client:
            show_batches(client, as_json=as_json)
        return 0
    if as_json:
        raise ConfigError("cannot print JSON: --json only applies to the list of batches")
    file = Path(what)
    is_id = re.fullmatch(r"batch_\w+", what) is not None and not file.exists()
    if cancel and not is_id:
        raise ConfigError(f"cannot cancel '{what}': it is not a batch", hint="see: vllama batch")
    errors = output.with_suffix(f".errors{output.suffix}") if output else None
    if output and errors:
        check_writable(output, errors, file)
    rows, endpoint = (b"", "") if is_id else read_rows(file, model)
    with connect() as client:
        if is_id:
            address = f"/v1/batches/{what}"
            begun = client.post(f"{address}/cancel", {}) if cancel else client.get(address)
        else:
            uploaded = upload(client, rows, file.name)
            asked = {"input_file_id": uploaded["id"], "endpoint": endpoint}
            begun = client.post("/v1/batches", asked | {"completion_window": "24h"})
        try:
            ended = follow(client, begun)
        except (KeyboardInterrupt, ServerUnreachable) as error:
            again = f"to wait for it: vllama batch {begun['id']}{f' -o {output}' if output else ''}"
            if isinstance(error, ServerUnreachable):
                say_aside(f"the batch continues when the server runs again; {again}")
                raise
            say_aside(f"the server continues the batch; {again}")
            raise typer.Abort from None
        return take_answers(client, ended, output, errors)


def take_answers(client: Client, ended: Reply, output: Path | None, errors: Path | None) -> int:
    """Write the answers of a batch, and what went wrong; return the exit code."""
    for wrong in (ended["errors"] or {"data": ()})["data"]:
        say_aside(f"line {wrong['line'] or '-'}: {wrong['message']}")
    if ended["output_file_id"]:
        write(exchange(client, "GET", FILE.format(ended["output_file_id"])), output)
    elif output is not None and output.is_file() and ended["status"] == "completed":
        output.unlink()  # those of an earlier run
    if ended["error_file_id"]:
        write(exchange(client, "GET", FILE.format(ended["error_file_id"])), errors, to_stderr=True)
    elif errors is not None:
        errors.unlink(missing_ok=True)  # those of an earlier run
    counts = ended["request_counts"]
    if ended["errors"]:
        say_aside("the file was rejected, and no request was run")
    else:
        say_aside(f"{ended['status']}: responses {counts['completed']}, errors {counts['failed']}")
    return 0 if ended["status"] == "completed" and not counts["failed"] else 1


def show_batches(client: Client, *, as_json: bool) -> None:
    """List the batches of the server, newest first."""
    found: list[Reply] = []
    while True:
        after = f"&after={found[-1]['id']}" if found else ""
        page = client.get(f"/v1/batches?limit=100{after}")
        found += page["data"]
        if not page["has_more"]:
            break
    if as_json:
        show_json(found)
        return
    now_s = time.time()
    rows = []
    for each in found:
        counts = each["request_counts"]
        numbers = (str(counts[name]) for name in ("completed", "failed", "total"))
        age = format_ago(max(0.0, now_s - each["created_at"]))
        rows.append((each["id"], each["status"], *numbers, age))
    show_table(COLUMNS, rows)


def check_writable(path: Path, errors: Path, requests: Path) -> None:
    """Raise ConfigError where no answers can be written: a batch may take a day before they are."""
    reason = ""
    if requests.exists() and any(x.exists() and x.samefile(requests) for x in (path, errors)):
        reason = "the responses would overwrite the requests"
    elif path.is_dir():
        reason = "it is a folder"
    elif not path.parent.is_dir():
        reason = f"folder '{path.parent}' does not exist"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = "permission denied"
    if reason:
        raise ConfigError(f"cannot write '{path}': {reason}")


def read_rows(file: Path, model: str | None) -> tuple[bytes, str]:
    """Return the rows, with `model` in all of them if it is given, and their route."""
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else read_named(file)
    except OSError as error:
        raise ConfigError(f"cannot read '{file}': {error.strerror or error}") from None
    name = "standard input" if str(file) == "-" else f"'{file}'"
    rows: list[dict[str, Any]] = []
    data, endpoint = data.removeprefix(codecs.BOM_UTF8), ""
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            endpoint = endpoint or str(row["url"])
            if model is not None:
                row["body"]["model"] = model
        except (ValueError, KeyError, TypeError):
            reason = f"line {number} is not a batch request"
            raise ConfigError(f"cannot read {name}: {reason}", hint=FORM) from None
        rows.append(row)
    if not rows:
        raise ConfigError(f"cannot read {name}: it has no requests", hint=FORM)
    if model is not None:
        data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    return data, endpoint


def upload(client: Client, rows: bytes, name: str) -> Reply:
    """Send a file; return what the server says of it."""
    from vllama.dialects.openai.multipart import FormPart, build_form

    file = FormPart(name="file", data=rows, filename=name)
    form, kind = build_form((FormPart(name="purpose", data=b"batch"), file), secrets.token_hex(16))
    uploaded: Reply = json.loads(exchange(client, "POST", "/v1/files", form, kind))
    return uploaded


def exchange(
    client: Client, method: str, path: str, body: bytes = b"", content_type: str = ""
) -> bytes:
    """Return the content of an answer. Raises VllamaError if it is a refusal."""
    headers = {"content-type": content_type} if content_type else {}
    status, _, parts = client.exchange(method, path, headers, body)
    content = b"".join(part for _, part in parts)
    if status != 200:
        raise VllamaError(json.loads(content)["error"]["message"])
    return content


def follow(client: Client, begun: Reply) -> Reply:
    """Return a batch when it has ended; show how far it is until then."""
    from rich.progress import Progress

    shown = console(stderr=True)
    with Progress(console=shown, transient=True, disable=not is_terminal(sys.stderr)) as progress:
        task = progress.add_task("waiting", total=None)
        seen_s = time.monotonic()
        while True:
            try:
                now = client.get(f"/v1/batches/{begun['id']}")
            except ServerUnreachable:
                if time.monotonic() - seen_s > ABSENT_S:
                    raise
                progress.update(task, description="the server is not reachable")
                time.sleep(LOOK_S)
                continue
            seen_s = time.monotonic()
            counts = now["request_counts"]
            done = counts["completed"] + counts["failed"]
            text = f"{now['status']} {done}/{counts['total']}"
            progress.update(task, description=text, total=counts["total"] or None, completed=done)
            if now["status"] in ("completed", "failed", "cancelled", "expired"):
                return now
            time.sleep(LOOK_S)


def write(data: bytes, path: Path | None, *, to_stderr: bool = False) -> None:
    """Write answers to a file, or print them. Raises ConfigError; the server keeps them."""
    if path is None:
        stream = sys.stderr if to_stderr else sys.stdout
        stream.write(data.decode(errors="replace"))
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"cannot write '{path}': {error.strerror or error}") from None
    say(str(path))
