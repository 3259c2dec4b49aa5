"""Draft models among safetensors: which are taken, what is kept of them, what is counted."""

import json
from dataclasses import replace

import pytest

from tests.tiny import make_weights
from vllama.base.errors import BadRequest
from vllama.models.create import NewModel, create
from vllama.models.modelfile import format_modelfile

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
    "vocab_size": 3,
}
VOCAB = {"a": 0, "b": 1, "c": 2}


def make(folder, *, parameters=1000, vocab=VOCAB, tokenizer="tokenizer.json", **changes):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    if tokenizer:
        (folder / tokenizer).write_text(json.dumps({"model": {"vocab": vocab}}))
    (folder / "model.safetensors").write_bytes(make_weights(parameters))
    return folder


@pytest.fixture
def large(library, tmp_path):
    return library.find(str(make(tmp_path / "large"))).bundle


def test_a_folder_is_kept_as_draft_model(library, large, tmp_path):
    small = make(tmp_path / "small", parameters=10)
    made = create(library, NewModel(name="drafting", base=large, draft=small))
    assert library.find("drafting").bundle == made
    assert made.draft == small
    assert set(made.files) == {*large.path.iterdir(), *small.iterdir()}
    assert made.size_bytes == sum(file.stat().st_size for file in made.files)
    assert made.key != large.key
    info = library.info(made)
    assert (info.weights_bytes, info.draft_kind) == (2020, "simple")
    assert f"DRAFT {small}" in format_modelfile(made, info)
    # a model made of it has the draft model once, or another one in its place
    again = create(library, NewModel(name="again", base=made))
    assert sorted(again.files) == sorted(made.files)
    other = make(tmp_path / "other", parameters=20)
    third = create(library, NewModel(name="third", base=made, draft=other))
    assert set(third.files) == {*large.path.iterdir(), *other.iterdir()}


def test_a_folder_without_a_tokenizer_is_a_head(library, large, tmp_path):
    head = make(tmp_path / "head", tokenizer=None, vocab_size=2, architectures=["EagleLlama"])
    made = create(library, NewModel(name="drafting", base=large, draft=head))
    assert library.info(made).draft_kind == "head"


def test_a_draft_model_that_is_gone_is_missed(library, large, tmp_path):
    small = make(tmp_path / "small")
    create(library, NewModel(name="drafting", base=large, draft=small))
    small.rename(tmp_path / "elsewhere")
    made = library.find("drafting").bundle
    assert not all(file.exists() for file in made.files)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": 4}, "its tokens differ from those of"),
        ({"vocab": {"a": 0, "c": 1, "b": 2}}, "its tokens differ from those of"),
        ({"architectures": ["BertModel"]}, "not a text generation model"),
        ({"hidden_size": 10**12}, "cannot use the model"),
    ],
)
def test_a_folder_that_cannot_guess_is_refused(library, large, tmp_path, changes, words):
    small = make(tmp_path / "small", **changes)
    with pytest.raises(BadRequest, match=words):
        create(library, NewModel(name="drafting", base=large, draft=small))


def test_both_have_to_be_of_one_format(library, large, tmp_path):
    file = make(tmp_path / "small") / "model.safetensors"
    with pytest.raises(BadRequest, match="must be a folder of safetensors"):
        create(library, NewModel(name="drafting", base=large, draft=file))
    with pytest.raises(BadRequest, match="it is the same model"):
        create(library, NewModel(name="drafting", base=large, draft=large.path))


@pytest.mark.parametrize("key", ["num_nextn_predict_layers", "mtp_num_hidden_layers"])
def test_layers_for_later_tokens_are_known(library, tmp_path, key):
    found = library.find(str(make(tmp_path / "m", **{key: 1}))).bundle
    assert library.info(found).metadata["llama.nextn_predict_layers"] == 1
    inner = make(tmp_path / "n", text_config={**CONFIG, key: 2})
    info = library.info(library.find(str(inner)).bundle)
    assert info.metadata["llama.nextn_predict_layers"] == 2
    assert replace(info, metadata={}).draft_kind is None
