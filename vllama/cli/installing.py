"""Install an engine with a person watching: what it takes, the question, the progress."""

from __future__ import annotations

import asyncio
import shutil
import sys
from typing import TYPE_CHECKING

import click

from vllama.cli.output import is_terminal, say_aside, show_warning
from vllama.errors import ConfigError, EngineMissing, VllamaError

if TYPE_CHECKING:
    from vllama.config import Config
    from vllama.engines.base import Installation
    from vllama.engines.install import Offer


def told(offer: Offer) -> list[str]:
    """Say what will be fetched and how large it is, before it is."""
    from vllama.environments.place import requirements
    from vllama.units import format_bytes_decimal

    wheels, size = offer.wheels, format_bytes_decimal
    home = next(path for path in (offer.folder, *offer.folder.parents) if path.exists())
    free = size(shutil.disk_usage(home).free)
    first, *rest = requirements(offer.steps)
    more = f" and {len(rest)} more" if rest else ""
    lines = [
        f"{offer.engine.title}: {first}{more}",
        f"  to download  about {size(wheels.download_bytes)}, with {offer.installer}",
        f"  on the disk  about {size(wheels.disk_bytes)}, of {free} free",
        f"  where        {offer.folder}",
    ]
    return [*lines, *([f"  note         {wheels.note}"] if wheels.note else [])]


def agreed(question: str, *, yes: bool) -> bool:
    """Ask, unless it is settled. Raises ConfigError where nobody can be asked."""
    if yes:
        return True
    if not (sys.stdin.isatty() and is_terminal(sys.stderr)):
        raise ConfigError(
            "cannot ask whether to install: this is no terminal", hint="run it again with --yes"
        )
    return click.confirm(question, default=True, err=True)


def carry_out(offer: Offer) -> Installation:
    """Install with bars or lines on stderr. Raises VllamaError; Ctrl-C ends it in order."""
    from vllama.cli.progress import PullDisplay
    from vllama.engines.install import install
    from vllama.environments.lines import Reader
    from vllama.models.types import PullEvent

    reader, fancy = Reader(), is_terminal(sys.stderr)
    with PullDisplay() as display:

        def on_line(line: str) -> None:
            news = reader.read(line)
            if news is None or (news.minor and not fancy):
                return
            total, done = (None, None) if news.minor else (news.total_bytes, news.done_bytes)
            display(PullEvent(status=news.text, total_bytes=total, completed_bytes=done))

        return asyncio.run(install(offer, on_line=on_line))


def offer_missing(loaded: Config, error: EngineMissing, *, yes: bool) -> bool:
    """Offer to install an engine that `serve` lacks; return whether it is there now.

    False too where nobody can be asked or there is nothing to install: then `error` stands.
    """
    from vllama import config
    from vllama.engines.install import offer
    from vllama.engines.registry import engine_named, load_engines
    from vllama.hardware.detect import detect

    asks = sys.stdin.isatty() and is_terminal(sys.stderr)
    environments = config.places(loaded).environments
    if not error.engine or not (yes or asks) or environments is None:
        return False
    try:
        engine = engine_named(load_engines().values(), error.engine)
        chosen = offer(engine, detect(), environments)
    except VllamaError:
        return False
    if chosen.done:  # it is installed, and missing all the same: installing it again will not help
        return False
    show_warning(error.message)
    for line in told(chosen):
        say_aside(line)
    if not agreed("Install it now?", yes=yes):
        return False
    carry_out(chosen)
    return True
