"""Settings of models: which tables hold for a model, and what they make of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from vllama.chat.request import ChatRequest, Message
from vllama.models.lookup import Entry
from vllama.models.settings import ModelSettings, ModelTables
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.routes.prompts.prepare import check_request

TABLES = ModelTables(
    (
        (
            "*",
            ModelSettings(
                context_length=1, num_parallel=1, engine="x", defaults={"top_k": 1, "seed": 1}
            ),
        ),
        ("Qwen3:*", ModelSettings(context_length=2, num_parallel=2, defaults={"top_k": 2})),
        ("qwen3:8b", ModelSettings(context_length=3, aliases=("gpt", "gpt:mini"))),
        ("qwen*:8b", ModelSettings(context_length=4, keep_alive_s=math.inf)),
        ("smollm", ModelSettings(context_length=5)),
        ("hf.co/org/Repo", ModelSettings(context_length=6)),
    )
)


@pytest.mark.parametrize(
    ("names", "context", "parallel"),
    [
        (["qwen3:8b"], 3, 2),
        (["QWEN3:8B"], 3, 2),
        (["qwen3:4b"], 2, 2),
        (["qwen2:8b"], 4, 1),
        (["other"], 1, 1),
        (["smollm:latest"], 5, 1),
        (["org/repo:latest"], 6, 1),
        (["hf.co/org/x:Q4", "qwen3:8b"], 3, 2),
    ],
)
def test_the_most_specific_table_wins(names, context, parallel) -> None:
    found = TABLES.find(names)
    assert (found.context_length, found.num_parallel, found.engine) == (context, parallel, "x")


def test_fields_are_merged_and_know_their_table() -> None:
    found = TABLES.find(["qwen3:8b"])
    assert found.defaults == {"top_k": 2, "seed": 1}
    assert found.origins["defaults"] == 'models."*", models."Qwen3:*"'
    assert found.origins["context_length"] == 'models."qwen3:8b"'
    assert found.origins["num_parallel"] == 'models."Qwen3:*"'
    assert found.origins["engine"] == 'models."*"'


def test_aliases_are_found_in_any_case_and_with_their_tag() -> None:
    names = ("GPT", "gpt:latest", "gpt:mini", "gpt:maxi", "qwen3:8b")
    assert [TABLES.find_alias(name) for name in names] == ["qwen3:8b"] * 3 + [None] * 2


def make_entry(settings: ModelSettings) -> Entry:
    info = ModelInfo(architecture="x")
    bundle = Bundle(
        name="m:latest", store="s", format=Format.GGUF, path=Path("/m"), files=(), size_bytes=1,
        digest="0", modified_s=0.0, parameters=dict(settings.defaults or {}), info=info,
        settings=settings,
    )  # fmt: skip
    return Entry(bundle, lambda: info)


OLLAMA = {"options": {"temperature": 1.5, "num_predict": 7, "seed": 3}}
OPENAI = {
    "parameters": {"temperature": 1.5, "max_tokens": 7, "seed": 3},
    "assumed": {"top_p": 1.0},
    "extra": {"logit_bias": {}},
}


@pytest.mark.parametrize("given", [OLLAMA, OPENAI], ids=["ollama", "openai"])
@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (ModelSettings(), {"temperature": 1.5, "max_tokens": 7, "seed": 3}),
        (ModelSettings(defaults={"temperature": 0.1, "top_p": 0.3}),
         {"temperature": 1.5, "top_p": 0.3}),
        (ModelSettings(force={"temperature": 0.1, "num_predict": 9}),
         {"temperature": 0.1, "max_tokens": 9, "seed": 3}),
        (ModelSettings(strip=("num_predict", "seed", "logit_bias")),
         {"temperature": 1.5, "max_tokens": None, "seed": -1}),
    ],
)  # fmt: skip
def test_parameters_of_requests(given, settings, wanted) -> None:
    asked = ChatRequest(model="m", messages=(Message(role="user", content="x"),), **given)
    checked = check_request(make_entry(settings), asked, "chat")
    assert {name: getattr(checked.sampling, name) for name in wanted} == wanted
    assert not ("logit_bias" in checked.asked.extra and settings.strip)
