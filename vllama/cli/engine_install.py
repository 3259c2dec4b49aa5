"""Install an engine with a person watching: what it takes, the question, the progress."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.base import audit
from vllama.base.errors import EngineMissing, EnvironmentFailed, VllamaError
from vllama.base.units import format_bytes_decimal
from vllama.cli.output import can_ask, confirm, say_aside, show_warning
from vllama.cli.progress import open_display, show_installer
from vllama.models.types import PullEvent

if TYPE_CHECKING:
    from vllama.config import Config
    from vllama.engines.base import Installation
    from vllama.engines.install import Offer


def describe_offer(offer: Offer, others: Sequence[Offer] = ()) -> list[str]:
    """Announce a download, its size (`measure_offer`), and what follows if it fails.

    The first of the `others` follows without another question, unless it is compiled.
    """
    from vllama.machine.environments.layout import list_requirements

    wheels, size = offer.wheels, format_bytes_decimal
    home = next(path for path in (offer.folder, *offer.folder.parents) if path.exists())
    free = size(shutil.disk_usage(home).free)
    names = list_requirements(offer.steps)
    first, *rest = sorted(names, key=lambda name: not name.startswith(wheels.package))
    more = f" and {len(rest)} more" if rest else ""
    about = "" if offer.measured else "about "
    rows = [
        ("download", f"{about}{size(wheels.download_bytes)}"),
        ("disk", f"about {size(wheels.disk_bytes)} in {offer.folder} ({free} free)"),
        ("why", offer.reason),
        ("note", wheels.note),
        ("instead", offer.instead),
        ("faster", offer.faster),
    ]
    for each in others[:1]:
        if not each.wheels.compiled:
            download = f"about {size(each.wheels.download_bytes)}, if this fails"
            rows.append(("fallback", f"{list_requirements(each.steps)[0]}, {download}"))
    lines = [f"  {name:<8}  {text}" for name, text in rows if text]
    return [f"{offer.engine.title}: {first}{more}", *lines]


def measure_shown(offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers with the sizes of the index in use, and show that it is asked."""
    from vllama.engines.install import measure_offer

    with open_display() as display:
        display(PullEvent(status="querying the package index for sizes"))
        return [measure_offer(each) for each in offers]


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

    environments = make_search_paths(settings).environments
    if not (yes or can_ask()) or environments is None:
        return False
    offers = find_offers(error.engines, environments)
    if not offers:
        return False
    show_warning(error.message)
    (best,) = measure_shown(offers[:1])
    others = [each for each in offers[1:] if each.engine is best.engine]
    for line in describe_offer(best, others):
        say_aside(line)
    if not (yes or confirm("Install it now (other engines: vllama engines)?")):
        return False
    done = install_first([best, *others], yes=yes)
    audit.record(settings.data_dir, "engines install", f"{best.engine.name} {done.version}")
    return True


def install_first(offers: Sequence[Offer], *, yes: bool) -> Installation:
    """Install an engine in the first of these ways that works, and return it.

    A release may be out of reach, and a compiler may lack a library. What takes minutes to compile
    is asked for again, unless `yes`. Raises VllamaError if the last way fails, too.
    """
    from vllama.machine.environments.layout import list_requirements

    for each, following in pairwise(offers):
        try:
            return install_with_progress(each)
        except EnvironmentFailed as error:
            what, wheels = list_requirements(following.steps)[0], following.wheels
            if wheels.compiled and not (yes or each.wheels.compiled):
                show_warning(error.message)
                if not (can_ask() and confirm(f"Build {what} from source ({wheels.note})?")):
                    raise
                continue
            how = "building" if wheels.compiled else "installing"
            show_warning(f"{error.message}; {how} {what} instead")
    return install_with_progress(offers[-1])


def read_releases_url() -> str | None:
    """Return the mirror of llama.cpp's releases that the user has named."""
    from vllama.config import environ
    from vllama.config.load import RELEASES_URL

    return environ().get(RELEASES_URL) or None


def find_offers(names: Sequence[str], environments: Path) -> list[Offer]:
    """Return the installable ones of some engines, in their order."""
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
