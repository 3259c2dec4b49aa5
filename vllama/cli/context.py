"""Context of commands: the settings, a client of the server, and this machine's hardware."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from vllama import config
from vllama.base.errors import BadRequest, VllamaError
from vllama.cli.output import say_aside, show_warning
from vllama.config import Config
from vllama.config.address import is_loopback, reachable_host

if TYPE_CHECKING:
    from vllama.base.servers import RunningServer
    from vllama.cli.client import Client
    from vllama.models.convert.tools import Quantizer
    from vllama.models.library import Library

ASK_LIMIT_S = 5.0
"""A server that takes longer to allow a change is stuck."""


def load_settings(given: Mapping[str, Any] | None = None) -> Config:
    """Read the settings from flags, variables and file; show warnings about them."""
    settings = config.load(given or {}, config.environ())
    for note in settings.notes:
        show_warning(note)
    return settings


def connect(settings: Config | None = None) -> Client:
    """Return a client of the server that the settings name."""
    from vllama.cli.client import Client  # commands about files need none

    settings = settings or load_settings()
    return Client(settings.url, key=settings.key_to_send)


def local_library(settings: Config) -> Library:
    """Open the models on this disk; note it if the server is on another machine."""
    if not is_loopback(reachable_host(settings.host)):
        say_aside(f"these are this machine's models, not those of {settings.url}")
    config.prepare_environment()
    from vllama.models.library import open_library

    return open_library(config.models_settings(settings))


@contextmanager
def change_models(settings: Config) -> Iterator[list[str]]:
    """Guard a command that changes models on this disk; yield a list for the names of removed ones.

    A running server of the data folder has to allow it; in the end all look at their models again.
    Raises BadRequest if every server that responds refuses.
    """
    from vllama.base.servers import CHANGES, find_servers

    def post(server: RunningServer, body: Mapping[str, object]) -> None:
        from vllama.cli.client import Client  # needed only if a server runs

        url, key, file = server.url, server.secret, server.certificate
        with Client(url, key=key, limit_s=ASK_LIMIT_S, certificate=file) as client:
            client.post(CHANGES, body)

    running: list[RunningServer] = []
    refusals, removed = list[BadRequest](), list[str]()
    for server in find_servers(settings.data_dir):
        try:
            post(server, {})
        except BadRequest as error:
            refusals.append(error)
        except (VllamaError, OSError):
            say_aside(f"the server at {server.url} does not respond: continuing without it")
            continue
        running.append(server)
    if refusals and len(refusals) == len(running):
        raise refusals[0]
    try:
        yield removed
    finally:
        for server in running:
            with suppress(VllamaError, OSError):  # it notices by itself, within a second
                post(server, {"removed": removed})


def local_quantizer(settings: Config) -> Quantizer:
    """Return the quantizer of this machine. Raises EngineMissing."""
    from vllama.engines.llamacpp.quantizer import find_quantizer
    from vllama.server.preflight import gather_facts

    return find_quantizer(gather_facts(settings).found, config.environ())
