"""What clients read of an answer, and streams that fail, for the tests of several dialects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx

from tests.chat import transcripts as streams
from vllama.base.errors import EngineCrashed, UpstreamError

if TYPE_CHECKING:
    from openai import OpenAI

FAILURES: list[tuple[bytes, type[Exception]]] = [
    (streams.VLLM_ABORT, EngineCrashed),
    (streams.VLLM_ERROR, UpstreamError),
    (streams.CUT, EngineCrashed),
    (b"", EngineCrashed),
    (b"data: {\n\n", UpstreamError),
]


def read_events(data: bytes) -> list[Any]:
    """Return the events of a stream that ends with `[DONE]`."""
    *frames, end = data.decode().split("\n\n")
    assert end == ""
    payloads = [frame.removeprefix("data: ") for frame in frames]
    assert payloads[-1] == "[DONE]" and payloads.count("[DONE]") == 1
    return [json.loads(payload) for payload in payloads[:-1]]


def read_named_events(data: bytes) -> list[Any]:
    """Return the events of a stream, each of which has its type as its name."""
    out = []
    for frame in data.decode().split("\n\n")[:-1]:
        name, payload = frame.split("\n")
        value = json.loads(payload.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        out.append(value)
    return out


def make_openai_client(data: bytes, kind: str) -> OpenAI:
    """Return the official client, behind which `data` is all that a server says."""
    from openai import OpenAI  # a second of reading: only where these tests are run

    headers = {"content-type": kind}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, content=data))
    return OpenAI(api_key="x", base_url="http://t", http_client=httpx.Client(transport=transport))
