"""OpenAI's and Anthropic's routes with the real engine."""

import anthropic
import openai
import pytest

from tests.e2e.conftest import COUNTS, MODEL
from tests.e2e.counting import WILD

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

QUESTION = "Why is the sky blue? Answer in one sentence."


@pytest.fixture
def client(real):
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_a_completion_is_the_answer_of_a_chat(client):
    asked = {"model": COUNTS, "max_tokens": 4}
    chat = client.chat.completions.create(**asked, messages=[{"role": "user", "content": QUESTION}])
    text = client.completions.create(**asked, prompt=QUESTION)
    assert text.choices[0].text == chat.choices[0].message.content == " one two three four"
    for name in ("prompt_tokens", "completion_tokens"):  # what was cached is another matter
        assert getattr(text.usage, name) == getattr(chat.usage, name)
    parts = list(client.completions.create(**asked, prompt=QUESTION, stream=True))
    assert "".join(part.choices[0].text for part in parts) == text.choices[0].text
    raw = client.completions.create(**asked, prompt="one two", extra_body={"raw": True})
    assert raw.choices[0].text == " three four five six"
    assert raw.usage.prompt_tokens < text.usage.prompt_tokens


def test_choices_differ_and_can_be_had_again(client):
    asked = {"model": COUNTS, "prompt": "Tell me a story.", "n": 2, "max_tokens": 12, "seed": 5,
             "extra_body": {"temperature": WILD, "top_k": 0}}  # fmt: skip
    one, two = (client.completions.create(**asked) for _ in range(2))
    texts = [choice.text for choice in one.choices]
    assert texts == [choice.text for choice in two.choices] and texts[0] != texts[1]
    assert one.usage.completion_tokens == 24


def test_logprobs_of_a_completion(client):
    reply = client.completions.create(
        model=COUNTS, prompt="Hi", max_tokens=5, logprobs=2, echo=True
    )
    (choice,) = reply.choices
    logprobs = choice.logprobs
    assert "Hi" + "".join(logprobs.tokens) == choice.text and len(logprobs.tokens) == 5
    assert all(value <= 0 for value in logprobs.token_logprobs)
    assert [len(top) for top in logprobs.top_logprobs] == [2] * 5
    assert logprobs.text_offset[0] == 2


def _count_input(usage):
    return usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_the_stop_sequence_is_named(real):
    asked = {"model": COUNTS, "max_tokens": 10,
             "messages": [{"role": "user", "content": QUESTION}]}  # fmt: skip
    with anthropic.Anthropic(base_url=real.url, api_key="any", max_retries=0) as client:
        free = client.messages.create(**asked)
        met = client.messages.create(**asked, stop_sequences=["zzz", "five"])
        assert (met.stop_reason, met.stop_sequence) == ("stop_sequence", "five")
        assert met.content[0].text == " one two three four "
        # the engine may have made all of it by the time the stop is seen
        assert 5 <= met.usage.output_tokens <= free.usage.output_tokens == 10
        assert _count_input(met.usage) == _count_input(free.usage)
        again = client.messages.create(**asked)  # the engine was freed by the cut
        assert again.content[0].text == free.content[0].text


def test_vectors_of_tokens(real, client):
    _, tokens = real.post("/api/tokenize", {"model": MODEL, "text": "the cat sat"})
    by_text, by_tokens = (
        client.embeddings.create(model=MODEL, input=given).data[0].embedding
        for given in ("the cat sat", tokens["tokens"])
    )
    assert sum(a * b for a, b in zip(by_text, by_tokens, strict=True)) > 0.99


def test_the_responses_stream_takes_a_cut_answer(client):
    asked = {"model": COUNTS, "input": QUESTION, "max_output_tokens": 8}
    with client.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed" and final.usage.output_tokens == 8
    assert final.incomplete_details.reason == "max_output_tokens"
