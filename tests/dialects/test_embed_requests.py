"""Requests for vectors: `/api/embed` and the older `/api/embeddings`."""

from contextlib import nullcontext

import pytest

from vllama.base.errors import BadRequest
from vllama.dialects.ollama.embeddings import EmbedRequest, read_embed, read_legacy_embed
from vllama.dialects.ollama.request_types import EmbedBody, LegacyEmbedBody, Options


@pytest.mark.parametrize(
    ("given_", "inputs"),
    [(None, ()), ("", ()), ("a", ("a",)), ([], ()), (["a", ""], ("a", "")), ([""], ("",))],
)
def test_inputs(given_: object, inputs: tuple[str, ...]) -> None:
    request = read_embed(EmbedBody(model="m", input=given_, dimensions=4, truncate=False))
    assert request == EmbedRequest(model="m", inputs=inputs, dimensions=4, truncate=False)


@pytest.mark.parametrize("given_", [1, {"a": 1}, [1], ["a", None], True])
def test_wrong_input(given_: object) -> None:
    with pytest.raises(BadRequest, match=r"^invalid input type$"):
        read_embed(EmbedBody(model="m", input=given_))


def test_dimensions_below_zero_are_all() -> None:
    assert read_embed(EmbedBody(model="m", dimensions=-1)).dimensions == 0


def test_the_older_route() -> None:
    assert read_legacy_embed(LegacyEmbedBody(model="m", prompt="p")) == EmbedRequest(
        model="m", inputs=("p",), truncate=False, legacy=True
    )
    assert read_legacy_embed(LegacyEmbedBody(model="m")).inputs == ()


def test_langchain_sends_options_that_are_null() -> None:
    options = Options(num_ctx=None, mirostat=None, temperature=None)
    assert read_embed(EmbedBody(model="m", input=["a"], options=options)).options == options


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"truncate": True, "options": {"num_ctx": 0}}, True),
        ({"options": {"num_ctx": 0}}, False),
        ({"truncate": False, "options": {"num_ctx": 0}}, False),
        ({"truncate": True, "options": {"num_ctx": 1}}, False),
        ({"truncate": True}, False),
    ],
)
def test_an_input_cannot_be_cut_to_nothing(fields: dict[str, object], refused: bool) -> None:
    body = EmbedBody(model="m", input="a", **fields)
    with pytest.raises(BadRequest, match="after truncation") if refused else nullcontext():
        read_embed(body)
