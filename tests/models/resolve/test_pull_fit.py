"""A pull that chooses by memory, against the stand-in hub: what moves and what is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import CPU, GIB, facts, with_reserve
from tests.hub import Fault, StandInHub
from tests.models.conftest import Events
from tests.tiny import write_tiny_gguf
from vllama.base.errors import NotEnoughMemory, Offline
from vllama.models.headers.gguf.header import read_header
from vllama.models.headers.info import combine_headers
from vllama.models.library import Library, open_library
from vllama.models.settings import ModelsSettings
from vllama.models.types import Format
from vllama.plan.form_choice import FitsHere

BASE = "meta-llama/Llama-3.2-3B-Instruct"
FORM = "bartowski/Llama-3.2-3B-Instruct-GGUF"
GGUF = (Format.GGUF,)
WIDTHS = {"Q8_0": 512, "Q4_K_M": 256, "Q3_K_M": 128}  # of the inner layers: so they differ in size


@pytest.fixture
def files(hub: StandInHub, tmp_path: Path) -> dict[str, Path]:
    folder = tmp_path / "repo"
    folder.mkdir()
    made = {
        quant: write_tiny_gguf(folder / f"Llama-3.2-3B-Instruct-{quant}.gguf", n_ff=width)
        for quant, width in WIDTHS.items()
    }
    hub.add_repo(BASE, {"config.json": b"{}", "model.safetensors": b"w"}, gated="manual")
    hub.add_repo(FORM, folder, tags=("gguf", f"base_model:quantized:{BASE}"))
    return made


@pytest.fixture
def library(files: dict[str, Path], settings: ModelsSettings) -> Library:
    return open_library(settings)


def with_memory(total_bytes: int) -> FitsHere:
    return FitsHere(facts(replace(CPU, ram_total_bytes=with_reserve(total_bytes))))


def needed(path: Path) -> int:
    info = combine_headers([read_header(path)])
    fit = with_memory(GIB).judge(info, Format.GGUF)
    assert fit is not None
    return fit.needed_bytes


def test_the_largest_that_fits_is_fetched_and_found_again(
    library: Library, files: dict[str, Path], hub: StandInHub, events: Events
) -> None:
    fits = with_memory(needed(files["Q4_K_M"]) - 1)
    bundle = library.remote.pull("llama3.2", formats=GGUF, progress=events, fits=fits)
    assert (bundle.name, bundle.quant, bundle.hub_id) == ("llama3.2:latest", "Q3_K_M", FORM)
    assert any(status.startswith("chose Q3_K_M: Q4_K_M needs ") for status in events.statuses)
    assert events.statuses[-1] == "success"
    # the usual one's header was read, here all of it; its rest would not have moved
    sizes = {quant: path.stat().st_size for quant, path in files.items()}
    hub.settle()
    assert hub.sent("cdn") == sizes["Q4_K_M"] + sizes["Q3_K_M"]
    assert library.find("llama3.2").bundle.path == bundle.path
    assert library.remote.pull("llama3.2", formats=GGUF, fits=fits) == bundle


def test_with_enough_memory_nothing_is_read_before_the_download(
    library: Library, files: dict[str, Path], hub: StandInHub
) -> None:
    bundle = library.remote.pull("llama3.2", formats=GGUF, fits=with_memory(16 * GIB))
    hub.settle()
    assert (bundle.quant, hub.sent("cdn")) == ("Q4_K_M", files["Q4_K_M"].stat().st_size)


def test_what_does_not_fit_is_refused_before_the_download(
    library: Library, files: dict[str, Path], hub: StandInHub, tmp_path: Path
) -> None:
    fits = with_memory(needed(files["Q3_K_M"]) - 1)
    with pytest.raises(NotEnoughMemory) as caught:
        library.remote.pull("llama3.2", formats=GGUF, fits=fits)
    assert caught.value.message.startswith("cannot pull 'llama3.2:latest': model requires more")
    assert "Q3_K_M, the smallest available" in caught.value.message
    assert f"vllama pull hf.co/{FORM}:Q4_K_M" in str(caught.value.hint)
    assert not list((tmp_path / "cache").glob("models--bartowski*/snapshots/*/*"))


@pytest.mark.parametrize("to_load", [False, True])
def test_a_named_one_is_fetched_to_keep_and_refused_to_load(
    library: Library, files: dict[str, Path], events: Events, to_load: bool
) -> None:
    fits, name = with_memory(needed(files["Q8_0"]) - 1), f"hf.co/{FORM}:Q8_0"

    def pull() -> str | None:
        return library.remote.pull(
            name, formats=GGUF, progress=events, fits=fits, to_load=to_load
        ).quant

    if not to_load:
        assert pull() == "Q8_0"
        (warning,) = [text for text in events.statuses if text.startswith("warning: ")]
        assert "Q8_0 needs" in warning and "use Q4_K_M, which fits" in warning
        return
    with pytest.raises(NotEnoughMemory, match="cannot load") as caught:
        pull()
    assert caught.value.hint == "use Q4_K_M, which fits"


def test_looking_up_tells_the_same_choice(library: Library, files: dict[str, Path]) -> None:
    found = library.remote.look_up(
        "llama3.2", formats=GGUF, fits=with_memory(needed(files["Q4_K_M"]) - 1)
    )
    assert [c.quant for c in found.candidates if c.taken] == ["Q3_K_M"]
    assert {c.quant for c in found.candidates if c.variant and not c.taken} == {"Q4_K_M", "Q8_0"}
    short = library.remote.look_up("llama3.2", formats=GGUF, fits=with_memory(1000))
    assert short.shortage is not None and short.variant.quant == "Q4_K_M"


def test_a_header_that_is_cut_off_names_what_is_here(library: Library, hub: StandInHub) -> None:
    library.remote.pull(f"hf.co/{FORM}:Q8_0", formats=GGUF)
    hub.fault = lambda method, path, headers, server: (
        Fault(cut_after=0) if server == "cdn" else None
    )
    with pytest.raises(Offline) as caught:
        library.remote.look_up(f"hf.co/{FORM}", formats=GGUF, fits=with_memory(GIB))
    assert caught.value.hint == f"use an installed model: hf.co/{FORM}:Q8_0"
