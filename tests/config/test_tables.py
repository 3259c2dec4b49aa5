"""Tables by name in the config file: what is read, and what is refused, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllama import config
from vllama.base.errors import ConfigError
from vllama.base.toml_lines import find_line
from vllama.config.report import file_schema, report_settings
from vllama.models.settings import MODEL_FIELDS, UPSTREAM_FIELDS, ModelSettings

HOME = {"HOME": "/nowhere"}


def load(tmp_path: Path, text: str, **environ: str) -> config.Config:
    file = tmp_path / "c.toml"
    file.write_text(text)
    return config.load({}, {**HOME, **environ}, file, serves=True)


@pytest.mark.parametrize("field", MODEL_FIELDS, ids=lambda field: field.key)
def test_every_example_of_a_models_field_is_accepted(tmp_path, field) -> None:
    settings = load(tmp_path, f'[models."a:b"]\n{field.key} = {field.example}\n')
    ((name, model),) = settings.models
    assert name == "a:b" and list(model.given) == [field.field]


@pytest.mark.parametrize("field", UPSTREAM_FIELDS, ids=lambda field: field.key)
def test_every_example_of_an_upstreams_field_is_accepted(tmp_path, field) -> None:
    (tmp_path / "key").write_text("sk-1")
    url = "" if field.key == "url" else 'url = "http://h"\n'
    example = f'"{tmp_path}/key"' if field.key == "key_file" else field.example
    text = f"[upstreams.a]\n{url}{field.key} = {example}\n"
    (one,) = load(tmp_path, text, OPENAI_API_KEY="sk-2").upstreams
    assert one.name == "a" and one.url


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("[models.a]\ncontext_lenght = 3\n", r"models\.a\.context_lenght .*line 2", "context_len"),
        ("[models.a]\nctx = 3\n", r"models\.a\.ctx .*line 2: no such", "did you mean context_len"),
        ("[models.a]\nnum_ctx = 3\n", r"models\.a\.num_ctx ", "did you mean context_length"),
        ("ctx = 3\n", r'"ctx" in .*line 1: not a', "did you mean context_length"),
        ('[model."x"]\nctx = 3\n', "cannot use model ", 'did you mean [models."NAME"]?'),
        ('[upstream.x]\nurl = "http://h"\n', '"upstream" in .*line 1', "did you mean upstreams"),
        ('\n[models.a]\n# x\nnum_parallel = "x"', r"a\.num_parallel .*line 4: not a whole", "4"),
        ("[models.a]\ndefaults = {temprature = 1}", "line 2: 'temprature' is not", "use the form"),
        ("[models.a]\nforce = {top_k = true}", 'line 2: option "top_k" must be', "use the form"),
        ("[models.a]\nkeep_alive = []", "line 2: a list is not allowed", "30m"),
        ("[models.a]\ngpus = [0, 0]", "line 2: a GPU is listed twice", "use the form"),
        ("[models.a]\ngpus = []", "line 2: no GPU is specified", "use the form"),
        ("[models.a]\nfallback = ['http://h']", "line 2: 'http://h' has no model", "use the form"),
        ('[models."a:*"]\naliases = ["b"]', "line 2: a pattern matches several", "one model"),
        ("[models.a]\naliases=['x']\n[models.b]\naliases=['X']", "line 4: 'X' is already", ""),
        ("[models.a]\naliases=['x']\n[models.b]\naliases=['x:latest']", "already an alias", ""),
        ("[models.a]\naliases=['b']\n[models.b]\npin=true", "line 2: 'b' has its own", "rename"),
        ("[models.a]\naliases=['hf.co/o/m']\n[models.'o/m']\npin=true", "its own table", "rename"),
        ("[models.'o/m']\nfallback=['hf.co/O/M:latest']", "is the model itself", "remove it"),
        ("[models.a]\nfallback=['A:latest']", "line 2: 'A:latest' is the model itself", "remove"),
        ("[models.a]\naliases=['b']\nfallback=['b']", "line 3: 'b' is the model itself", "remove"),
        ('[upstreams.x]\nurl = "http://h"\nkey_file="/none"', "upstream x: .* \"/none\"", ""),
        ("models = 3", "line 1: not tables", "keep_alive"),
        ("[models]\na = 3", r"models\.a from .*line 2: not a table", "keep_alive"),
        ("[upstreams.x]\nweight = 2", "line 1: it has no url", "add: url"),
        ('[upstreams.x]\nurl = "ftp://h"', "line 2: not an address", "use the form"),
        ('[upstreams.x]\nurl = "http://h"\nkey="a"\nkey_env="b"', "line 4: it has two keys", "key"),
        ('[upstreams."a b"]\nurl = "http://h"', "line 1: not a name", "letters"),
        ('[upstreams.x]\nurl = "http://h"\nkey_env="NONE"', "the variable NONE is not set", ""),
        ("max_queue = 1\nmax_que = 2", "line 2: not a setting", "max_queue"),
        ("\nmax_queue = 'x'", "line 2: not a whole number", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_line(tmp_path, text, words, hint) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        load(tmp_path, text)
    assert hint in (error.value.hint or "")


def test_only_a_server_needs_the_keys_of_its_upstreams(tmp_path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[upstreams.gpu]\nurl = "http://h"\nkey_env = "NONE"\n')
    settings = config.load({}, HOME, file)
    assert settings.notes == ("no key for the upstream gpu: the variable NONE is not set",)
    assert [(each.name, each.key) for each in settings.upstreams] == [("gpu", None)]


def test_examples_of_the_schema_have_the_type_of_their_setting() -> None:
    found = file_schema()["properties"]
    examples = {key: each["examples"][0] for key, each in found.items() if key != "models"}
    assert {examples["port"], examples["context_length"]} == {11434, 8192}
    assert examples["watch"] is True and examples["keep_alive"] == "5m"


def test_old_names_of_fields_are_taken_with_a_notice(tmp_path) -> None:
    text = """\
[models.a]
context = "8k"
parallel = 2
traits = { context = 1 }
[models.b]
context = 1
context_length = 2
[upstreams.u]
url = "http://h"
traits = { context = 3 }
"""
    settings = load(tmp_path, text)
    a, b = (each for _, each in settings.models)
    assert (a.context_length, a.num_parallel, b.context_length) == (8192, 2, 2)
    assert a.traits and a.traits.context_length == 1
    assert settings.upstreams[0].traits.context_length == 3
    file = settings.config_file
    notices = [
        (f"models.a.context from {file}, line 2", "context_length"),
        (f"models.a.parallel from {file}, line 3", "num_parallel"),
        (f"models.a.traits.context from {file}, line 4", "context_length"),
        (f"models.b.context from {file}, line 6", "context_length"),
        (f"upstreams.u.traits.context from {file}, line 10", "context_length"),
    ]
    assert set(settings.notes) == {f"{old} is now called {new}" for old, new in notices}
    assert list(load(tmp_path, "[models.a]\ncontext_length = 1\n").notes) == []


def test_named_upstreams_stand_beside_urls(tmp_path) -> None:
    text = '[upstreams.one]\nurl = "https://one/v1"\nkey = "sk-1"\nmodels = ["a"]\n'
    text += '[models.m]\nfallback = ["http://two:1/v1#x", "http://three#y", "one:a"]\n'
    settings = load(tmp_path, text, VLLAMA_UPSTREAMS="http://three", VLLAMA_UPSTREAM_KEY="sk-3")
    found = {each.id: each for each in config.list_upstreams(settings)}
    assert {name: one.key for name, one in found.items()} == {
        "http://three": "sk-3", "one": "sk-1", "http://two:1": None,
    }  # fmt: skip
    assert [one.id for one in found.values() if not one.is_listed] == ["http://two:1"]
    told = repr(report_settings(settings)) + repr(settings)
    assert "sk-1" not in told and "sk-3" not in told
    rows = {row.key: row.text for row in report_settings(settings).settings}
    assert rows["upstreams"] == "http://three" and rows["upstreams.one.url"] == "https://one/v1"
    assert rows["upstreams.one.models"] == '{ a = "a" }'


def test_a_variable_holds_tables_as_the_file_does(tmp_path) -> None:
    settings = load(tmp_path, "", VLLAMA_MODELS='{ "q:*" = { context_length = 8192 } }')
    assert settings.models == (("q:*", ModelSettings(context_length=8192)),)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("a",), 1),
        (("t", "x.y", "k"), 4),
        (("t", "x.y", "missing"), 3),
        (("t", "z", "deep", "er"), 6),
        (("nothing",), None),
    ],
)
def test_lines_of_values(path, line) -> None:
    text = 'a = 1\n\n[t."x.y"] # k = 2\n  k = 2\n[t.z]\ndeep.er = 3\n'
    assert find_line(text, path) == line
