"""A model's metadata before its files are fetched: equal to what the files themselves say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hub import Fault, StandInHub
from tests.models.test_info import CONFIG
from tests.tiny import make_weights, write_tiny_gguf
from vllama.base.errors import AuthRequired, BadModelFile, Offline, SourceError
from vllama.models.headers.gguf.parser import LongArray
from vllama.models.headers.info import combine_headers, read_header
from vllama.models.headers.safetensors import read_folder
from vllama.models.resolve.remote_header import STEP, read_remote_info
from vllama.models.settings import ModelsSettings
from vllama.models.sources.hf import HuggingFace
from vllama.models.types import Format, ModelInfo


def remote(
    hub: StandInHub, settings: ModelsSettings, files: dict[str, bytes | Path], format: Format
) -> ModelInfo:
    hub.add_repo("o/r", files)
    source = HuggingFace(settings)
    repository = source.resolve("o/r")
    variant = next(v for v in repository.variants if v.format is format)
    return read_remote_info(source, repository, variant, settings)


def comparable(info: ModelInfo) -> ModelInfo:
    """Leave out where long arrays lie: they cannot be loaded from afar."""
    meta = {k: v for k, v in info.metadata.items() if not isinstance(v, LongArray)}
    return replace(info, metadata=meta)


def test_gguf_is_read_as_far_as_its_header(
    hub: StandInHub, settings: ModelsSettings, tmp_path: Path
) -> None:
    path = write_tiny_gguf(tmp_path / "m-F16.gguf", n_embd=512, n_ff=2048, n_layer=4)
    size = path.stat().st_size
    assert size > 8 * STEP
    info = remote(hub, settings, {"m-F16.gguf": path}, Format.GGUF)
    assert comparable(info) == comparable(combine_headers([read_header(path)]))
    # one step, not the file
    assert hub.sent("cdn") == STEP
    assert [e.status for e in hub.requests("cdn", "GET")] == [206]


def test_a_long_header_takes_several_steps(
    hub: StandInHub, settings: ModelsSettings, tmp_path: Path
) -> None:
    path = write_tiny_gguf(
        tmp_path / "m-F16.gguf",
        extra=lambda writer: writer.add_string("general.description", "x" * (5 * STEP // 2)),
        n_embd=512,
        n_ff=2048,
    )
    info = remote(hub, settings, {"m-F16.gguf": path}, Format.GGUF)
    assert comparable(info) == comparable(combine_headers([read_header(path)]))
    assert STEP < hub.sent("cdn") <= 3 * STEP < path.stat().st_size


def test_a_server_without_ranges(hub: StandInHub, settings: ModelsSettings, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m-F16.gguf")
    hub.fault = lambda method, path, headers, server: Fault(ignore_range=server == "cdn")
    info = remote(hub, settings, {"m-F16.gguf": path}, Format.GGUF)
    assert info.parameter_count == 119_488


def test_shards_and_a_projector(hub: StandInHub, settings: ModelsSettings, tmp_path: Path) -> None:
    parts = [write_tiny_gguf(tmp_path / f"{n}.gguf", seed=n) for n in range(2)]
    eyes = write_tiny_gguf(
        tmp_path / "eyes.gguf", extra=lambda w: w.add_bool("clip.has_vision_encoder", True)
    )
    files: dict[str, bytes | Path] = {
        "m-Q8_0-00001-of-00002.gguf": parts[0],
        "m-Q8_0-00002-of-00002.gguf": parts[1],
        "mmproj-F16.gguf": eyes,
    }
    info = remote(hub, settings, files, Format.GGUF)
    assert info.parameter_count == 2 * 119_488  # and not the projector's
    assert "vision" in info.capabilities


def test_safetensors(hub: StandInHub, settings: ModelsSettings, tmp_path: Path) -> None:
    shards = [f"model-{n:05d}-of-00002.safetensors" for n in (1, 2)]
    index = {"weight_map": {"a": shards[0], "b": shards[1]}}
    files: dict[str, bytes | Path] = {
        "config.json": json.dumps(CONFIG).encode(),
        "tokenizer_config.json": b'{"chat_template": "{{ tools }}", "eos_token": "</s>"}',
        "tokenizer.json": b"t" * 3 * STEP,
        "model.safetensors.index.json": json.dumps(index).encode(),
        shards[0]: make_weights(1024, 1024),
        shards[1]: make_weights(2048, 1024),
    }
    for name, content in files.items():
        assert isinstance(content, bytes)
        (tmp_path / name).write_bytes(content)
    info = remote(hub, settings, files, Format.SAFETENSORS)
    assert info == read_folder(tmp_path)
    assert (info.parameter_count, info.weights_bytes) == (3 * STEP, 6 * STEP)
    assert hub.sent("cdn") == 2 * STEP  # of 6, and nothing of the tokenizer
    assert not hub.requests("hub", "GET", "tokenizer.json")


def test_mistrals_own_format(hub: StandInHub, settings: ModelsSettings, tmp_path: Path) -> None:
    params = {"dim": 64, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "max_seq_len": 4096}
    files: dict[str, bytes | Path] = {
        "params.json": json.dumps(params).encode(),
        "tekken.json": b"t" * 3 * STEP,
        "consolidated.safetensors": make_weights(1024, 1024),
    }
    for name, content in files.items():
        assert isinstance(content, bytes)
        (tmp_path / name).write_bytes(content)
    info = remote(hub, settings, files, Format.SAFETENSORS)
    assert info == read_folder(tmp_path)
    assert info.mistral_weights and info.mistral_tokenizer
    assert hub.sent("cdn") == STEP  # of 2, and nothing of the tokenizer


def test_damaged_files_are_named_by_their_path(hub: StandInHub, settings: ModelsSettings) -> None:
    for files, format, says in [
        ({"m-Q4_0.gguf": b"no such thing"}, Format.GGUF, "'m-Q4_0.gguf': it is not a GGUF"),
        (
            {"config.json": b"{}", "model.safetensors": b"\xff" * 64},
            Format.SAFETENSORS,
            "'model.safetensors': it is not a safetensors file",
        ),
    ]:
        with pytest.raises(BadModelFile) as caught:
            remote(hub, settings, files, format)  # type: ignore[arg-type]
        assert says in caught.value.message


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(status=503), SourceError),
        (Fault(status=403), SourceError),
        (Fault(cut_after=10), Offline),
        (Fault(reset_after=10), Offline),
    ],
)
def test_faults(
    hub: StandInHub, settings: ModelsSettings, tiny: Path, fault: Fault, kind: type[Exception]
) -> None:
    hub.fault = lambda method, path, headers, server: fault if server == "cdn" else None
    with pytest.raises(kind, match=r"cannot read 'm\.gguf'"):
        remote(hub, settings, {"m.gguf": tiny}, Format.GGUF)


def test_gated(hub: StandInHub, with_settings: Callable[..., ModelsSettings], tiny: Path) -> None:
    hub.add_repo("o/g", {"m.gguf": tiny}, gated="auto")
    source = HuggingFace(with_settings())
    repository = source.resolve("o/g")
    with pytest.raises(AuthRequired):
        read_remote_info(source, repository, repository.variants[0], with_settings())
