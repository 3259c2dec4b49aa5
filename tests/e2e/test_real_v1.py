"""OpenAI's and Anthropic's routes with the real engine."""

import anthropic
import openai
import pytest

from tests.e2e.conftest import MODEL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

QUESTION = "Why is the sky blue? Answer in one sentence."


@pytest.fixture
def client(real):
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_a_completion_is_the_answer_of_a_chat(client):
    greedy = {"model": MODEL, "temperature": 0, "max_tokens": 16}
    chat = client.chat.completions.create(
        **greedy, messages=[{"role": "user", "content": QUESTION}]
    )
    text = client.completions.create(**greedy, prompt=QUESTION)
    assert text.choices[0].text == chat.choices[0].message.content
    assert text.usage == chat.usage
    parts = list(client.completions.create(**greedy, prompt=QUESTION, stream=True))
    assert "".join(part.choices[0].text for part in parts) == text.choices[0].text
    raw = client.completions.create(
        **greedy | {"max_tokens": 6}, prompt="1, 2, 3, 4, 5,", extra_body={"raw": True}
    )
    assert raw.choices[0].text.strip().startswith("6")


def test_choices_differ_and_can_be_had_again(client):
    asked = {"model": MODEL, "prompt": "Tell me a story.", "n": 2, "max_tokens": 12, "seed": 5,
             "temperature": 1.5}  # fmt: skip
    one, two = (client.completions.create(**asked) for _ in range(2))
    texts = [choice.text for choice in one.choices]
    assert texts == [choice.text for choice in two.choices] and texts[0] != texts[1]
    assert one.usage.completion_tokens == 24


def test_logprobs_of_a_completion(client):
    reply = client.completions.create(
        model=MODEL, prompt="Hi", max_tokens=5, temperature=0, logprobs=2, echo=True
    )
    (choice,) = reply.choices
    logprobs = choice.logprobs
    assert "Hi" + "".join(logprobs.tokens) == choice.text and len(logprobs.tokens) == 5
    assert all(value <= 0 for value in logprobs.token_logprobs)
    assert [len(top) for top in logprobs.top_logprobs] == [2] * 5
    assert logprobs.text_offset[0] == 2


def test_the_stop_sequence_is_named(real):
    greedy = {"model": MODEL, "max_tokens": 40,
              "messages": [{"role": "user", "content": QUESTION}],
              "extra_body": {"temperature": 0}}  # fmt: skip
    with anthropic.Anthropic(base_url=real.url, api_key="any", max_retries=0) as client:
        free = client.messages.create(**greedy)
        word = free.content[0].text.split()[4]
        before = free.content[0].text.split(word)[0]
        met = client.messages.create(**greedy, stop_sequences=["zzz", word])
        assert (met.stop_reason, met.stop_sequence) == ("stop_sequence", word)
        assert met.content[0].text == before
        assert met.usage.output_tokens < free.usage.output_tokens
        again = client.messages.create(**greedy)  # the engine was freed by the cut
        assert again.content[0].text == free.content[0].text


def test_vectors_of_tokens(real, client):
    _, tokens = real.post("/api/tokenize", {"model": MODEL, "text": "the cat sat"})
    by_text, by_tokens = (
        client.embeddings.create(model=MODEL, input=given).data[0].embedding
        for given in ("the cat sat", tokens["tokens"])
    )
    assert by_tokens == pytest.approx(by_text, abs=1e-4)


def test_the_responses_stream_takes_a_cut_answer(client):
    asked = {"model": MODEL, "input": QUESTION, "max_output_tokens": 8}
    with client.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed" and final.usage.output_tokens == 8
    assert final.incomplete_details.reason == "max_output_tokens"
