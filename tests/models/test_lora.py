"""LoRA folders of safetensors: read, kept as they are, counted beside others of their base."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.facts import bundle
from tests.models.convert.conftest import data as data
from tests.models.convert.conftest import library as library
from tests.models.convert.conftest import local
from tests.models.convert.test_adapter import PEFT, write
from vllama.base.errors import BadModelFile, BadRequest, ModelNotFound
from vllama.models.convert.adapter import bring_adapters
from vllama.models.create import NewModel, create
from vllama.models.headers.lora import CONFIG, WEIGHTS, read_rank
from vllama.models.names.ref import ModelRef
from vllama.models.types import Format

LORA, OTHER = Path("/lora"), Path("/other")


@pytest.mark.parametrize(
    ("config", "rank"),
    [
        (PEFT, 2),
        (PEFT | {"rank_pattern": {"q_proj": 16}}, 16),
        (PEFT | {"peft_type": "LOHA"}, "not a PEFT LoRA adapter"),
        (PEFT | {"r": 0}, "not a PEFT LoRA adapter"),
        (PEFT | {"r": 1024}, "rank 1024 exceeds 512"),
        ({"peft_type": "LORA"}, "cannot read"),
        ([], "cannot read"),
    ],
)
def test_ranks(tmp_path, config, rank):
    write(tmp_path, config=config)
    if isinstance(rank, int):
        assert read_rank(tmp_path) == rank
    else:
        with pytest.raises(BadModelFile, match=rank):
            read_rank(tmp_path)


@pytest.mark.parametrize(("form", "shared"), [(Format.SAFETENSORS, True), (Format.GGUF, False)])
def test_adapters_of_safetensors_share_the_engine_of_their_base(form, shared):
    base = bundle(format=form)
    one, two = bundle(format=form, adapters=(LORA,)), bundle(format=form, adapters=(OTHER,))
    assert (len({base.key, one.key, two.key}) == 1) is shared
    assert (base.lora, one.lora) == (None, LORA if shared else None)


def test_folders_stay_as_they_are_and_are_counted(library, tmp_path):
    (tmp_path / "base").mkdir()
    base = library.find(str(local(tmp_path / "base", hidden_size=64))).bundle
    for name, rank in (("one", 8), ("two", 24), ("broken", 8)):
        files = write(tmp_path / name, config=PEFT | {"r": rank})
        adapters = bring_adapters(library, base, name, files)
        assert adapters == (tmp_path / name,)
        made = create(library, NewModel(name=name, base=base, adapters=adapters))
        assert made.key == base.key and set(files.values()) <= set(made.files)
    (tmp_path / "broken" / WEIGHTS).unlink()
    read_rank.cache_clear()
    for name in (str(base.path), "one"):
        info = library.plan_info(library.find(name).bundle)
        assert (info.lora_count, info.lora_rank) == (2, 24)
    library.remove("two")
    assert library.plan_info(base).lora_rank == 8 and (tmp_path / "two" / WEIGHTS).exists()


def test_an_adapter_of_the_hub(library, hub, tmp_path):
    files = write(tmp_path / "lora")
    hub.add_repo("me/lora", {name: path.read_bytes() for name, path in files.items()})
    hub.add_repo("me/text", {"README.md": b"#"})
    folder = library.remote.pull_adapter(ModelRef.parse("me/lora"), lambda event: None)
    assert read_rank(folder) == 2
    with pytest.raises(ModelNotFound, match="not a LoRA adapter"):
        library.remote.pull_adapter(ModelRef.parse("hf.co/me/text"), lambda event: None)


def test_what_is_no_folder_of_an_adapter(library, tmp_path):
    (tmp_path / "base").mkdir()
    base = library.find(str(local(tmp_path / "base", hidden_size=64))).bundle
    files = write(tmp_path / "lora")
    renamed = {name: files[name].rename(tmp_path / f"blob-{name}") for name in files}
    for given in (renamed, {CONFIG: tmp_path / CONFIG}):
        with pytest.raises(BadRequest, match="cannot convert the adapter"):
            bring_adapters(library, base, "lora", given)
    (tmp_path / "lora" / CONFIG).write_text(json.dumps({}))
    with pytest.raises(BadRequest, match="cannot use the adapter"):
        create(library, NewModel(name="x", base=base, adapters=(tmp_path / "lora",)))
