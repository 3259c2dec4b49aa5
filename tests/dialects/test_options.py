from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.base.errors import BadRequest
from vllama.chat.request import LoadOptions, Sampling
from vllama.dialects.ollama.options import resolve_options


def test_defaults_are_ollamas() -> None:
    sampling, load = resolve_options({}, {})
    assert sampling == Sampling()
    assert load == LoadOptions()
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.8, 40, 0.9)
    assert (sampling.min_p, sampling.repeat_penalty, sampling.seed) == (0.0, 1.0, -1)
    assert sampling.max_tokens is None and sampling.stop == ()


def test_layers() -> None:
    model = {"temperature": 0.5, "stop": ["a", "b"], "num_ctx": 8192, "top_k": 7}
    request = {"temperature": 0.1, "num_ctx": None, "top_k": None, "stop": ["c"]}
    sampling, load = resolve_options(model, request)
    assert sampling == Sampling(temperature=0.1, top_k=7, stop=("c",))
    assert load == LoadOptions(num_ctx=8192)


@pytest.mark.parametrize(
    ("options", "sampling"),
    [
        ({"top_k": 3.9}, Sampling(top_k=3)),
        ({"seed": 2**62 + 1}, Sampling(seed=2**62 + 1)),
        ({"temperature": 0}, Sampling(temperature=0.0)),
        ({"num_predict": 5}, Sampling(max_tokens=5)),
        ({"num_predict": 0}, Sampling(max_tokens=0)),
        ({"num_predict": -1}, Sampling(max_tokens=None)),
        ({"num_predict": -2}, Sampling(max_tokens=None)),
        ({"stop": "x"}, Sampling(stop=("x",))),
        ({"stop": []}, Sampling()),
        ({"mirostat": 1, "tfs_z": "x", "unknown": object()}, Sampling()),
        ({"Temperature": 3}, Sampling()),
    ],
)
def test_sampling(options: dict[str, object], sampling: Sampling) -> None:
    assert resolve_options({}, options)[0] == sampling


def test_load() -> None:
    options = {"num_ctx": 4096.0, "num_batch": 1, "num_gpu": -1, "main_gpu": 0, "num_thread": 2}
    assert resolve_options({}, options | {"use_mmap": False})[1] == LoadOptions(
        num_ctx=4096, num_batch=1, num_gpu=-1, main_gpu=0, num_thread=2, use_mmap=False
    )


def test_options_that_ollama_does_not_have_are_the_requests_only() -> None:
    options = {"engine": "e", "kv_cache_type": "q8_0", "num_parallel": 0, "draft_num_predict": 0}
    load = LoadOptions(engine="e", kv_cache_type="q8_0", num_parallel=1, draft_num_predict=0)
    assert resolve_options({}, options)[1] == load
    assert resolve_options(options, {})[1] == LoadOptions(draft_num_predict=0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_ctx": "4096"}, 'option "num_ctx" must be of type integer'),
        ({"num_keep": "4"}, 'option "num_keep" must be of type integer'),
        ({"draft_num_predict": []}, 'option "draft_num_predict" must be of type integer'),
        ({"num_ctx": True}, 'option "num_ctx" must be of type integer'),
        ({"num_predict": []}, 'option "num_predict" must be of type integer'),
        ({"top_k": float("inf")}, 'option "top_k" must be of type integer'),
        ({"temperature": "hot"}, 'option "temperature" must be of type float32'),
        ({"temperature": False}, 'option "temperature" must be of type float32'),
        ({"temperature": 10**400}, 'option "temperature" must be of type float32'),
        ({"engine": 7}, 'option "engine" must be of type string'),
        ({"num_parallel": "4"}, 'option "num_parallel" must be of type integer'),
        ({"use_mmap": 1}, 'option "use_mmap" must be of type boolean'),
        ({"stop": 1}, 'option "stop" must be of type array'),
        ({"stop": ["a", 1]}, 'option "stop" must be of an array of strings'),
    ],
)
def test_errors(options: dict[str, object], text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        resolve_options({}, options)
    assert caught.value.message == text


@given(
    st.dictionaries(
        st.sampled_from(["top_k", "stop", "temperature", "use_mmap"]), st.from_type(object)
    )
)
def test_only_bad_request(options: dict[str, object]) -> None:
    try:
        resolve_options({}, options)
    except BadRequest:
        pass
