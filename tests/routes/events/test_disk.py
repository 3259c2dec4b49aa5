"""The look at the disk: what counts as a change, whoever has made it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.manual_clock import ManualClock
from tests.tiny import write_tiny_gguf
from vllama.config import Config
from vllama.models.library import Library, open_library
from vllama.models.settings import ModelsSettings
from vllama.routes.catalog import Catalog
from vllama.routes.in_use import InUse, Setup


def test_models_that_come_change_and_go_are_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    library: Library = open_library(
        ModelsSettings(folders=(folder,), hf_cache_dir=tmp_path / "hf", data_dir=tmp_path / "data")
    )
    catalog = Catalog(InUse(Setup(config=Config(), library=library)), ManualClock())

    async def look_again() -> tuple[int, int]:
        await catalog.look()
        return catalog.lists, len(catalog.listed)

    async def run() -> None:
        await catalog.look()
        before, others, file = catalog.lists, len(catalog.listed), folder / "one.gguf"
        write_tiny_gguf(file, n_ctx=2048)
        assert await look_again() == (before + 1, others + 1)
        assert await look_again() == (before + 1, others + 1)
        write_tiny_gguf(file, n_ctx=4096)
        file.rename(folder / "other.gguf")
        assert await look_again() == (before + 2, others + 1)
        (folder / "other.gguf").unlink()
        assert await look_again() == (before + 3, others)
        write_tiny_gguf(file, n_ctx=2048)
        assert len(await catalog.all()) == others + 1  # a client has seen it
        file.unlink()
        assert await look_again() == (before + 5, others)
        assert not catalog.is_outdated
        catalog.forget()
        assert catalog.is_outdated
        await catalog.look()
        assert not catalog.is_outdated

    asyncio.run(run())
