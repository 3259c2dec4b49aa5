# ruff: noqa: E501 (tables)
"""The sampling that a model's own files name: where it is read, and what holds over it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chat.test_engine_request import VLLM
from tests.facts import bundle
from tests.models.test_info import CONFIG, head, safetensors
from vllama.chat.engine.request import make_chat_call
from vllama.chat.prepare import prepare_chat
from vllama.chat.request import ChatRequest, Message
from vllama.dialects.openai.read import NEUTRAL
from vllama.models.headers.info import combine_headers
from vllama.models.headers.safetensors import read_folder
from vllama.models.lookup import Entry
from vllama.models.modelfile import format_modelfile
from vllama.models.types import Format, ModelInfo
from vllama.routes.prompts.prepare import check_request

OWN = {"temperature": 0.6, "top_k": 20}
READING = replace(VLLM, reads_sampling=True)


@pytest.mark.parametrize(
    ("text", "sampling"),
    [
        (
            '{"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "do_sample": true,'
            ' "repetition_penalty": 1.05, "max_new_tokens": 9, "eos_token_id": [1, 2]}',
            {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repeat_penalty": 1.05},
        ),
        ('{"temperature": null, "top_p": "1", "top_k": true, "min_p": NaN}', {}),
        ("{}", {}), ("[]", {}), ("{", {}), (None, {}),
    ],
)  # fmt: skip
def test_a_folder(tmp_path: Path, text: str | None, sampling: dict[str, float]) -> None:
    folder = safetensors(tmp_path / "m", CONFIG, model={"a": ("F32", [1], 4)})
    if text is not None:
        (folder / "generation_config.json").write_text(text)
    assert read_folder(folder).sampling == sampling


def test_a_header() -> None:
    meta = {"temp": 0.6000000238418579, "top_k": 20, "penalty_last_n": 32, "mirostat": 1}
    info = combine_headers([head({f"general.sampling.{key}": x for key, x in meta.items()})])
    assert info.sampling == {"temperature": 0.6, "top_k": 20, "repeat_last_n": 32}
    assert combine_headers([head({})]).sampling == {}


def test_they_are_shown_as_lines_of_the_model_under_those_of_its_modelfile() -> None:
    own = bundle(parameters={"top_k": 5})
    lines = format_modelfile(own, ModelInfo(architecture="a", sampling=OWN)).splitlines()
    shown = [line for line in lines if line.startswith("PARAMETER")]
    assert shown == ["PARAMETER temperature 0.6", "PARAMETER top_k 5"]


FOLDER, FILE = Format.SAFETENSORS, Format.GGUF
MODELFILE = {"top_k": 5}


@pytest.mark.parametrize(
    ("format", "sampling", "modelfile", "given", "values", "left"),
    [
        # nobody names one: an engine that reads the model's files takes all of it from there
        (FOLDER, OWN, {}, {}, {"temperature": 0.6, "top_k": 20, "top_p": 1.0}, "temperature top_k top_p"),
        (FOLDER, OWN, {}, {"assumed": NEUTRAL}, {"temperature": 0.6, "top_p": 1.0}, "temperature top_p"),
        # each layer holds over the one below, for its own parameters
        (FOLDER, OWN, MODELFILE, {"assumed": NEUTRAL}, {"temperature": 0.6, "top_k": 5}, "temperature"),
        (FOLDER, OWN, MODELFILE, {"options": {"top_k": 7}}, {"top_k": 7}, "temperature"),
        (FOLDER, OWN, {}, {"options": {"top_k": None}}, {"top_k": 20}, "top_k"),
        (FOLDER, OWN, {}, {"parameters": {"temperature": 0.0}}, {"temperature": 0.0}, "top_k"),
        # a model that names none is asked as Ollama asks it
        (FOLDER, {}, {}, {}, {"temperature": 0.8, "top_k": 40, "top_p": 0.9}, ""),
        (FOLDER, {}, {}, {"assumed": NEUTRAL}, {"temperature": 1.0, "top_k": 40}, ""),
        # and so are the parameters that a header does not name
        (FILE, OWN, {}, {}, {"temperature": 0.6, "top_k": 20, "top_p": 0.9}, "temperature top_k"),
        (FILE, OWN, {}, {"assumed": NEUTRAL}, {"temperature": 0.6, "top_p": 1.0}, "temperature"),
        (FILE, {}, {"temperature": 0.1}, {"assumed": NEUTRAL}, {"temperature": 1.0}, ""),
    ],
)  # fmt: skip
def test_what_holds(
    format: Format, sampling: Any, modelfile: Any, given: Any, values: Any, left: str
) -> None:
    info = ModelInfo(architecture="a", sampling=sampling)
    entry = Entry(bundle(format=format, parameters=modelfile), lambda: info)
    asked = ChatRequest(model="m", messages=(Message(role="user", content="x"),), **given)
    checked = check_request(entry, asked, "chat")
    body = send(checked.asked, checked.sampling, VLLM)
    assert {name: body[name] for name in values} == values
    silent = body.keys() - send(checked.asked, checked.sampling, READING).keys()
    assert silent >= set(left.split())
    assert not silent & (modelfile.keys() | given.get("parameters", {}).keys() - set(left.split()))


def send(asked: ChatRequest, sampling: Any, traits: Any) -> Any:
    chat = prepare_chat(asked, traits, None)
    return json.loads(make_chat_call(chat, sampling, traits).encode())
