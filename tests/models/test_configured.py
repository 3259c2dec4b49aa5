"""What the tables of the config file make of the library: names, links, draft models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import bundle
from tests.tiny import write_tiny_gguf
from vllama.base.errors import BadRequest, ModelNotFound
from vllama.models.create import NewModel, copy, create
from vllama.models.library import Library, open_library
from vllama.models.settings import ModelSettings, ModelsSettings, ModelTables, UpstreamSettings


def make_library(tmp_path: Path, *tables: tuple[str, ModelSettings]) -> Library:
    models = tmp_path / "models"
    models.mkdir(exist_ok=True)
    for name, n_ctx in (("big", 4096), ("small", 2048)):
        write_tiny_gguf(models / f"{name}.gguf", n_ctx=n_ctx)
    return open_library(
        ModelsSettings(
            hf_cache_dir=tmp_path / "hf",
            data_dir=tmp_path / "data",
            folders=(models,),
            package_dirs=(),
            tables=ModelTables(tables),
            # nobody listens there: links are found all the same
            upstreams=(
                UpstreamSettings(
                    url="http://127.0.0.1:9/v1",
                    name="far",
                    models={"x:1": "y"},
                    linked=frozenset({"qwen3:8b"}),
                ),
                UpstreamSettings(url="http://127.0.0.1:9", is_listed=False),
            ),
        )
    )


def test_settings_are_on_the_model_by_any_of_its_names(tmp_path) -> None:
    table = ModelSettings(
        aliases=("gpt",), system="Be brief.", defaults={"temperature": 0.5}, context_length=64
    )
    library = make_library(tmp_path, ("big", table))
    for name in ("big", "BIG:latest", "gpt", "GPT:latest"):
        found = library.find(name).bundle
        assert found.name == "big:latest" and found.settings.context_length == 64
        assert found.system == "Be brief." and found.parameters["temperature"] == 0.5
    assert library.find("small").bundle.settings.context_length is None
    names = {each.name for each in library.list()}
    assert {"big:latest", "small:latest", "gpt:latest", "x:1"} <= names


def test_what_is_made_of_a_model_has_none_of_the_users_settings(tmp_path) -> None:
    table = ModelSettings(
        aliases=("gpt",), system="Be brief.", defaults={"top_k": 5, "seed": 1}, draft="small"
    )
    library = make_library(tmp_path, ("big", table))
    for name in ("big", "gpt"):
        found = library.find(name).bundle
        assert found.parameters and found.system and found.draft
        made = create(library, NewModel(name="made", base=found, parameters={"temperature": 0.3}))
        copied = copy(library, found, "copied:latest")
        for one, parameters in ((made, {"temperature": 0.3}), (copied, {})):
            assert (one.parameters, one.system, one.draft) == (parameters, None, None)
            assert len(one.files) == 1


def test_an_alias_is_not_removed(tmp_path) -> None:
    library = make_library(tmp_path, ("big", ModelSettings(aliases=("gpt",))))
    with pytest.raises(BadRequest, match="it is an alias of 'big' in the config file"):
        library.remove("gpt")


@pytest.mark.parametrize(
    ("link", "hub_id", "servers"),
    [
        ("far:x:1", "y", ("far",)),
        ("far:qwen3:8b", "qwen3:8b", ("far",)),
        ("http://127.0.0.1:9#qwen3:8b", "qwen3:8b", ("far",)),
    ],
)
def test_a_link_is_found_though_its_server_is_down(tmp_path, link, hub_id, servers) -> None:
    found = make_library(tmp_path).find(link).bundle
    assert (found.name, found.hub_id) == (link, hub_id)
    assert found.upstream is not None and found.upstream.servers == servers


def test_only_servers_and_models_that_the_user_named_are_linked_to(tmp_path) -> None:
    library = make_library(tmp_path)
    others = ("far:gpt-expensive", "http://127.0.0.1:9#gpt-expensive")
    for name in ("http://127.0.0.1:10#m", "near:m", "http://127.0.0.1:9", "far:", *others):
        assert not library.find_link(name)


def test_a_model_that_is_only_in_a_chain(tmp_path) -> None:
    chain = ModelSettings(fallback=("no such:link:at all", "missing", "small"))
    library = make_library(
        tmp_path, ("virtual", chain), ("hopeless", ModelSettings(fallback=("z",)))
    )
    found = library.find("virtual").bundle
    assert found.name == "virtual:latest" and found.path.name == "small.gguf"
    assert found.settings.fallback == chain.fallback
    names = {each.name for each in library.list()}
    assert "virtual:latest" in names and "hopeless:latest" not in names
    with pytest.raises(ModelNotFound, match="hopeless"):
        library.find("hopeless")


def test_a_draft_model_is_taken_by_name_or_left_out_and_told(tmp_path, caplog) -> None:
    library = make_library(tmp_path, ("big", ModelSettings(draft="small")))
    found = library.find("big").bundle
    assert found.draft is not None and found.draft.name == "small.gguf"
    assert found.draft in found.files and found.key != replace(found, draft=None).key
    missing = make_library(tmp_path, ("big", ModelSettings(draft="nowhere")))
    assert [missing.find("big").bundle.draft, missing.find("big").bundle.draft] == [None, None]
    assert caplog.text.count("ignoring its draft model: model 'nowhere' not found") == 1


def test_nothing_is_changed_without_tables(tmp_path) -> None:
    library = make_library(tmp_path)
    assert library.find("big").bundle.settings == bundle().settings
