"""Changes of captured requests, and what they leave to chance."""

import json

import msgspec
import pytest

from tests.observe.captures.samples import make_capture
from vllama.base.errors import ConfigError
from vllama.lab import replays as request
from vllama.observe.captures.format import Body, Engine


def make(path="/api/chat", sampling=None, **body):
    capture = make_capture(path=path, body=json.dumps({"model": "m", **body}).encode())
    if sampling is None:
        return capture
    engine = Engine(
        name="e", version="1", context_length=1, parallel=None, threads=None, gpu_layers=None,
        kv_cache_type=None, flash_attention=None, sampling=sampling,
    )  # fmt: skip
    return msgspec.structs.replace(capture, engine=engine)


@pytest.mark.parametrize(
    ("capture", "same_engine", "reason"),
    [
        (make(sampling={"temperature": 0}), False, ""),
        (make(sampling={"temperature": 0.0}, options={"temperature": 1}), False, ""),
        (make(sampling={"temperature": 1, "top_k": 1}), False, ""),
        (make(sampling={"temperature": 0.8, "seed": 1}), True, ""),
        (make(sampling={"temperature": 0.8, "seed": 1}), False, "another engine"),
        (make(sampling={"temperature": 0.8}), True, "at temperature 0.8, without a seed"),
        (make(options={"temperature": 0}), False, ""),
        (make(temperature=0), True, "at its default temperature"),
        (make("/v1/chat/completions", temperature=0), False, ""),
        (make("/v1/messages"), True, "without a seed"),
        (make("/api/embed"), False, ""),
    ],
)
def test_chance(capture, same_engine, reason):
    found = request.describe_chance(capture, same_engine=same_engine)
    assert (reason in found) if reason else found == ""


def test_another_model():
    capture = make_capture(headers={"content-encoding": "zstd", "accept": "a"})
    asked = request.with_model(capture, "other")
    assert json.loads(asked.request.body.content) == {"model": "other", "prompt": "hi"}
    assert asked.request.model == "other" and asked.request.headers == {"accept": "a"}


@pytest.mark.parametrize(
    ("path", "body", "wanted"),
    [
        ("/api/chat", {}, {"logprobs": True, "top_logprobs": 10}),
        ("/v1/chat/completions", {"logprobs": True}, {"logprobs": True, "top_logprobs": 10}),
        ("/v1/completions", {}, {"logprobs": 10}),
        ("/api/generate", {"logprobs": True, "top_logprobs": 3}, None),
        ("/v1/messages", {}, None),
        ("/v1/embeddings", {}, None),
    ],
)
def test_log_probabilities(path, body, wanted):
    asked = request.with_logprobs(make(path, **body))
    found = json.loads(asked.request.body.content) if asked else None
    assert found == (None if wanted is None else {"model": "m", **wanted})


def test_a_body_that_cannot_be_changed_or_sent():
    with pytest.raises(ConfigError, match="not a JSON object"):
        request.with_model(make_capture(body=b"\xff"), "m")
    cut = msgspec.structs.replace(make_capture().request, body=Body.of(b"{}", 4))
    with pytest.raises(ConfigError, match="only 2 of its 4 bytes were saved"):
        request.check_whole(msgspec.structs.replace(make_capture(), request=cut))
