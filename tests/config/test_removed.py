"""Old settings in a file and in variables: each is named, with its line and what to do instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllama import config
from vllama.base.errors import ConfigError
from vllama.config import removed
from vllama.config.edit import save_text, set_values

HOME = {"HOME": "/nowhere"}
FIELDS = {"models.big.draft": ("auto", removed.DRAFT_AUTO)} | {
    f"models.big.{key}": (["http://10.0.0.6:11434"], advice)
    for key, advice in removed.MODEL_FIELDS.items()
}


def load(tmp_path: Path, text: str, **environ: str) -> config.Config:
    file = tmp_path / "c.toml"
    file.write_text(text)
    return config.load({}, {**HOME, **environ}, file)


def check(key: str, where: str, advice: str, tmp_path: Path, text: str, **environ: str) -> None:
    """Check that an old setting is named: by a warning, or an error where it is refused."""
    if key.rpartition(".")[2] in removed.REFUSED:
        with pytest.raises(ConfigError) as caught:
            load(tmp_path, text, **environ)
        assert caught.value.message == f"cannot use {key} from {where}: it was removed"
        assert caught.value.hint == advice
    else:
        settings = load(tmp_path, text, **environ)
        (note,) = settings.notes
        assert note.startswith(f"{key} from {where} has no effect: ") and note.endswith(advice)
        assert settings.max_queue == 3  # the rest holds


@pytest.mark.parametrize("key", removed.SETTINGS)
@pytest.mark.parametrize("value", ['"x"', "0", "false", '{ "http://h" = "x" }'])
def test_a_removed_setting_in_the_file(tmp_path, key, value) -> None:
    text = f"max_queue = 3\n\n{key} = {value}\n"
    check(key, f"{tmp_path}/c.toml, line 3", removed.SETTINGS[key], tmp_path, text)


@pytest.mark.parametrize("key", [key for key in removed.SETTINGS if key != "releases_url"])
def test_a_removed_setting_in_a_variable(tmp_path, key) -> None:
    name = f"VLLAMA_{key.upper()}"
    check(key, name, removed.SETTINGS[key], tmp_path, "max_queue = 3", **{name: "x"})
    assert load(tmp_path, "", **{name: ""}).notes == ()


def test_the_variable_of_the_mirror_stays(tmp_path) -> None:
    assert load(tmp_path, "", VLLAMA_RELEASES_URL="https://mirror.example").notes == ()


@pytest.mark.parametrize(("name", "advice"), removed.VARIABLES.items())
def test_a_removed_variable_of_ollama(tmp_path, name, advice) -> None:
    assert load(tmp_path, "", **{name: "1"}).notes == (
        f"{name} has no effect: it was removed; {advice}",
    )


@pytest.mark.parametrize(("key", "given"), FIELDS.items())
def test_a_removed_field_of_a_model(tmp_path, key, given) -> None:
    value, advice = given
    field = key.rpartition(".")[2]
    text = f'max_queue = 3\n[models.big]\npin = true\n{field} = "auto"\n'
    check(key, f"{tmp_path}/c.toml, line 4", advice, tmp_path, text.replace('"auto"', repr(value)))
    inline = f"{{ big = {{ pin = true, {field} = {value!r} }} }}"
    check(key, "VLLAMA_MODELS", advice, tmp_path, "max_queue = 3", VLLAMA_MODELS=inline)


def test_auto_counts_as_no_draft_model(tmp_path) -> None:
    settings = load(tmp_path, '[models.big]\ndraft = "Auto"\npin = true\n')
    ((_, model),) = settings.models
    assert model.given == {"pin": True}


def test_an_old_file_can_be_changed(tmp_path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(before := '[upstream_traits."http://h"]\ncontext = 1\n')
    save_text(file, before, set_values(before, {"max_queue": 9}), HOME)
    assert config.load({}, HOME, file).max_queue == 9


def test_names_that_are_gone_are_not_suggested(tmp_path) -> None:
    (note,) = load(tmp_path, "", VLLAMA_UPSTREAM_TRAIT="x").notes
    assert "TRAITS" not in note
