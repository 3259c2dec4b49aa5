"""What commands work with: the settings, a client of the server, and what this machine has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllama import config
from vllama.cli.output import say_aside, show_warning
from vllama.config import Config
from vllama.config.address import is_loopback

if TYPE_CHECKING:
    from vllama.cli.client import Client
    from vllama.models.convert.tools import Quantiser
    from vllama.models.library import Library


def load_settings() -> Config:
    """Read the settings from variables and file; show warnings about them."""
    settings = config.load({}, config.environ())
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
    if not is_loopback(settings.host) and settings.host not in ("0.0.0.0", "::"):
        say_aside(f"these are the models of this machine, not of {settings.url}")
    config.prepare_environment()
    from vllama.models.library import open_library

    return open_library(config.models_settings(settings))


def local_quantiser(settings: Config) -> Quantiser:
    """Return the quantiser of this machine. Raises EngineMissing."""
    from vllama.engines.llamacpp.quantiser import find_quantiser
    from vllama.server.preflight import gather_facts

    return find_quantiser(gather_facts(settings).found, config.environ())
