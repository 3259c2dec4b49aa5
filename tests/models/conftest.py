from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hub import StandInHub
from tests.tiny import write_tiny_gguf
from vllama.models.library import Library, open_library
from vllama.models.settings import ModelsSettings
from vllama.models.types import PullEvent


def open_offline(home: Path, **settings: object) -> Library:
    """Return a library below `home` that asks no hub and looks at no packages."""
    folders = {"hf_cache_dir": home / "hub", "data_dir": home / "data"}
    return open_library(
        ModelsSettings(**folders, package_dirs=(), hf_offline=True, **settings)  # type: ignore[arg-type]
    )


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GGUF, to be read only."""
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def hub_library() -> Iterator[None]:
    """Closes what huggingface_hub's own client holds open, at the end (a new one is slow)."""
    import huggingface_hub

    yield
    huggingface_hub.close_session()


@pytest.fixture
def hub(hub_library: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    from huggingface_hub import constants

    # the developer's own login is not to be sent here
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with StandInHub() as hub:
        yield hub


@pytest.fixture
def settings(tmp_path: Path, hub: StandInHub) -> ModelsSettings:
    """Settings for the stand-in hub with small parts and short waits."""
    return ModelsSettings(
        hf_cache_dir=tmp_path / "cache",
        data_dir=tmp_path / "data",
        hf_endpoint=hub.url,
        package_dirs=(),
        part_bytes=64 * 1024,
        stall_timeout_s=10.0,
        request_timeout_s=5.0,
        attempts=3,
        backoff_s=0.01,
    )


@pytest.fixture
def library(settings: ModelsSettings) -> Library:
    return open_library(settings)


class Events:
    """Collects progress; `cancel_at` bytes sets the cancel event."""

    def __init__(self) -> None:
        self.all: list[PullEvent] = []
        self.cancel = threading.Event()
        self.cancel_at: int | None = None

    def __call__(self, event: PullEvent) -> None:
        self.all.append(event)
        done = event.completed_bytes or 0
        if self.cancel_at is not None and done >= self.cancel_at:
            self.cancel.set()

    @property
    def statuses(self) -> list[str]:
        """Statuses without repetitions."""
        return list(dict.fromkeys(event.status for event in self.all))


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def with_settings(settings: ModelsSettings) -> Callable[..., ModelsSettings]:
    return lambda **changes: replace(settings, **changes)
