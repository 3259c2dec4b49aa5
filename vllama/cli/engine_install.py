"""Install an engine with a person watching: what it takes, the question, the progress."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.base.errors import EngineMissing, EnvironmentFailed, VllamaError
from vllama.base.units import format_bytes_decimal
from vllama.cli.output import ask, can_ask, confirm, say_aside, show_warning
from vllama.cli.progress import open_display, show_installer
from vllama.models.types import PullEvent

if TYPE_CHECKING:
    from vllama.config import Config
    from vllama.engines.base import Installation
    from vllama.engines.install import Offer


def describe_offer(offer: Offer) -> list[str]:
    """Say what will be fetched and how large it is, before it is."""
    from vllama.machine.environments.layout import list_requirements

    wheels, size = offer.wheels, format_bytes_decimal
    home = next(path for path in (offer.folder, *offer.folder.parents) if path.exists())
    free = size(shutil.disk_usage(home).free)
    first, *rest = list_requirements(offer.steps)
    more = f" and {len(rest)} more" if rest else ""
    lines = [
        f"{offer.engine.title}: {first}{more}",
        f"  to download  about {size(wheels.download_bytes)}",
        f"  on the disk  about {size(wheels.disk_bytes)}, of {free} free",
        f"  where        {offer.folder}",
    ]
    notes = [
        ("why", offer.reason),
        ("note", wheels.note),
        ("instead", offer.instead),
        ("faster", offer.faster),
    ]
    return [*lines, *(f"  {name:<11}  {text}" for name, text in notes if text)]


def install_with_progress(offer: Offer) -> Installation:
    """Install with bars or lines on stderr. Raises VllamaError; Ctrl-C ends it in order."""
    from vllama.engines.install import install

    with open_display() as display:

        def tell(text: str, done_bytes: int | None, total_bytes: int | None) -> None:
            display(PullEvent(status=text, total_bytes=total_bytes, completed_bytes=done_bytes))

        return asyncio.run(install(offer, on_line=show_installer(display), tell=tell))


def offer_missing(settings: Config, error: EngineMissing, *, yes: bool) -> bool:
    """Offer to install an engine that `serve` lacks; return whether one is there now.

    With `yes` the best is installed. False where nobody can be asked, where there is nothing to
    install, or where the user wants none: then `error` stands.
    """
    from vllama.engines.registry import make_search_paths

    asks = can_ask()
    environments = make_search_paths(settings).environments
    if not (yes or asks) or environments is None:
        return False
    offers = find_offers(error.engines, environments)
    if not offers:
        return False
    show_warning(error.message)
    shown = offers[:1] if yes else offers
    for number, each in enumerate(shown, 1):
        first, *rest = describe_offer(each)
        say_aside(f"{number}. {first}" if len(shown) > 1 else first)
        for line in rest:
            say_aside(line)
    chosen = offers[0] if yes else pick_offer(offers)
    if chosen is None:
        return False
    later = offers[offers.index(chosen) :]
    install_first([each for each in later if each.engine is chosen.engine])
    return True


def install_first(offers: Sequence[Offer]) -> Installation:
    """Install an engine in the first of these ways that works, and return it.

    A release may be out of reach, and a compiler may lack a library. Raises VllamaError if the last
    way fails, too.
    """
    from vllama.machine.environments.layout import list_requirements

    for each, following in pairwise(offers):
        try:
            return install_with_progress(each)
        except EnvironmentFailed as error:
            what = list_requirements(following.steps)[0]
            how = "built from source" if following.wheels.compiled else "installed"
            show_warning(f"{error.message}; {what} is {how} instead")
    return install_with_progress(offers[-1])


def read_releases_url() -> str | None:
    """Return the mirror of llama.cpp's releases that the user has named."""
    from vllama.config import environ
    from vllama.config.load import RELEASES_URL

    return environ().get(RELEASES_URL) or None


def find_offers(names: Sequence[str], environments: Path) -> list[Offer]:
    """Return what can be installed here of some engines, in their order."""
    from vllama.engines.install import make_offers
    from vllama.engines.registry import find_engine, load_engines
    from vllama.machine.detect import detect

    engines, platform = load_engines().values(), detect()
    offers: list[Offer] = []
    for name in names:
        try:
            engine = find_engine(engines, name)
            found = make_offers(engine, platform, environments, releases_url=read_releases_url())
        except VllamaError:
            continue
        # what is done is missing all the same, and installing it again will not help
        offers += [offer for offer in found if not offer.done]
    return offers


def pick_offer(offers: Sequence[Offer]) -> Offer | None:
    """Let the user choose one by its number, the first by yes, or none."""
    if len(offers) == 1:
        return offers[0] if confirm("Install it now?") else None
    numbers = {str(number): each for number, each in enumerate(offers, 1)}
    words = {"y": offers[0], "yes": offers[0], "n": None, "no": None}
    while True:
        question = f"Install which one now ({', '.join(numbers)}, or n for none)?"
        answer = ask(question, default="1").lower()
        if answer in numbers or answer in words:
            return (numbers | words)[answer]
        say_aside(f"type a number from 1 to {len(offers)}, or n for none")
