"""A server of a command's own, for one engine and model; its start is shown while it lasts."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllama import config
from vllama.base.errors import ServeFailed, VerifyFailed, VllamaError
from vllama.config.parse import whole_path

if TYPE_CHECKING:
    from vllama.cli.client import Client


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A running server: its client, and functions that show what it is at, and what it did."""

    client: Client
    show: Callable[[str], None]
    note: Callable[[str], None]


@contextmanager
def fail_as_undecided() -> Iterator[None]:
    """Raise VerifyFailed for an error without an exit code of its own: 1 would mean "different"."""
    try:
        yield
    except VllamaError as error:
        if error.exit_code != VllamaError.exit_code:
            raise
        raise VerifyFailed(error.message, hint=error.hint) from error


@contextmanager
def open_own_server(
    model: str, *, purpose: str, label: str, engine: str | None = None, **settings: object
) -> Iterator[OwnServer]:
    """Start a server that has loaded `model`, and end it when the context is left.

    Raises VerifyFailed ("cannot PURPOSE: …"), also for what fails while it is used. `label` begins
    the lines about its start. `settings` are those of `vllama serve` by name.
    """
    from vllama.api import Server
    from vllama.cli.client import Client
    from vllama.cli.reporter import TerminalReporter

    reporter = TerminalReporter()

    def show(line: str) -> None:
        reporter.loading(f"{label}: {line}")

    known: dict[str, Any] = {
        # what was named, or nothing: another quantization would answer another question
        "strict": True,
        # one request after another, by one process, that stays until the last
        "num_parallel": 1,
        "replicas": 1,
        "keep_alive": math.inf,
        "capture": 0,
    }
    try:
        show("starting")
        configured = config.load({}, config.environ())
        key = configured.key_to_send
        if key is None and configured.wants_keys:
            # the server would want a named key, also from this command
            key = known["api_key"] = secrets.token_urlsafe(8)
        server = Server(whole_path(model), engine=engine, on_line=show, **(known | settings))
        with server, Client(server.url, key=key) as client:
            yield OwnServer(client, show, lambda text: reporter.note(f"{label}: {text}"))
    except ServeFailed as error:
        cause = error.message.partition(": ")[2]
        raise VerifyFailed(f"cannot {purpose}: {cause}", hint=error.hint) from error
    except VerifyFailed:
        raise
    except VllamaError as error:
        raise VerifyFailed(f"cannot {purpose}: {error.message}", hint=error.hint) from error
    finally:
        reporter.close()
