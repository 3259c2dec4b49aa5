"""What holds for all tests: none is about how long something takes, all are the same each time."""

from __future__ import annotations

import gc
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.front import official_clients as official_clients
from tests.front import server as server

SHARED = {"server", "official_clients"}

_SLOW = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.slow\b", re.MULTILINE)

# `make test` takes few examples among the fast tests and the full number after them; for a search
# of hours: pytest -m hypothesis --hypothesis-profile=search
settings.register_profile(
    "full",
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("few", settings.get_profile("full"), max_examples=20)
settings.register_profile(
    "search", settings.get_profile("full"), derandomize=False, max_examples=3000
)


def pytest_configure(config: pytest.Config) -> None:
    """Take the profile of the suite that is run; an option names another."""
    settings.load_profile("few" if _fast(config) else "full")
    # what a shell without job control starts in its background is deaf to Ctrl-C, children too
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave modules unread of which the fast suite takes nothing: their clients import for long."""
    if _fast(config) and collection_path.suffix == ".py":
        return bool(_SLOW.search(collection_path.read_text())) or None
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from what stays to the end: it took a third of the collection."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the modules that share what takes long first: one worker takes them, and makes it once.

    That is a server, or the import of an official client.
    """
    shared = {item.path for item in items if SHARED & {*item.fixturenames}}
    items.sort(key=lambda item: item.path not in shared)


def _fast(config: pytest.Config) -> bool:
    return config.option.markexpr == "not slow"
