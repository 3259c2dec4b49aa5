"""A chat that was sent as a completion: its client sees a chat."""

import msgspec
import pytest

from tests.chat.replies import collected, streamed
from vllama.chat.engine.traits import Traits
from vllama.chat.writer import ReplyOptions

TRAITS = Traits(context_length=4096)


def options(*, stream):
    return ReplyOptions(kind="chat", stream=stream, include_usage=False, model="m")


def event(text, reason=None):
    choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": reason}
    body = {
        "choices": [choice],
        "created": 1,
        "model": "m",
        "object": "text_completion",
        "id": "cmpl-7",
    }
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


STREAM = (event("One"), event(" two"), event("", "stop"), b"data: [DONE]\n\n")


def chunks(written):
    return [msgspec.json.decode(line[6:]) for line in written.split(b"\n\n") if b"{" in line]


@pytest.mark.parametrize("together", [False, True])
def test_only_the_first_delta_names_the_role(together):
    reply = streamed(options(stream=True), TRAITS, from_completion=True)
    reads = [b"".join(STREAM)] if together else STREAM
    told = chunks(b"".join([*(reply.feed(read, 1) for read in reads), reply.finish(2)]))
    assert [one["choices"][0]["delta"] for one in told] == [
        {"role": "assistant", "content": "One"},
        {"content": " two"},
        {},
    ]
    assert {one["object"] for one in told} == {"chat.completion.chunk"}
    assert {one["id"] for one in told} == {"chatcmpl-7"}


def test_whole():
    reply = collected(options(stream=False), TRAITS, from_completion=True)
    assert not b"".join(reply.feed(read, 1) for read in STREAM)
    told = msgspec.json.decode(reply.finish(2))
    assert told["choices"][0]["message"] == {"role": "assistant", "content": "One two"}
    assert told["object"] == "chat.completion"
