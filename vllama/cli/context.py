"""Where the commands get their settings and the models on this disk from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllama import config
from vllama.cli.output import say_aside, show_warning
from vllama.config import Config
from vllama.config.address import is_loopback

if TYPE_CHECKING:
    from vllama.cli.client import Client
    from vllama.models.library import Library


def load_settings() -> Config:
    """Read the settings of a command without flags of its own; warn of what is wrong in them."""
    loaded = config.load({}, config.environ())
    for note in loaded.notes:
        show_warning(note)
    return loaded


def connect(loaded: Config | None = None) -> Client:
    """Return a client of the server that the settings name."""
    from vllama.cli.client import Client  # the commands about files need none

    loaded = loaded or load_settings()
    return Client(loaded.url, key=loaded.key_to_send)


def local_library(loaded: Config) -> Library:
    """Open the models on this disk; say so if the server is meant to be elsewhere."""
    if not is_loopback(loaded.host) and loaded.host not in ("0.0.0.0", "::"):
        say_aside(f"these are the models of this machine, not of {loaded.url}")
    config.prepare_environment()
    from vllama.models.library import open_library

    return open_library(config.models_settings(loaded))
