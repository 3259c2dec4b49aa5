"""What the shortcut gives is what decoding gives, for any stream in any cut."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.chat.replies import streamed
from tests.dialects.test_ollama_write import chat
from tests.dialects.test_openai_write import ALIAS, PLAIN, VLLM
from vllama.chat.event_template import EventTemplate

NOW_NS = 1_795_264_126_000_000_000


def event(text: str, *, id_: str = "c-1", gap: str = "", **more: object) -> bytes:
    """Write one event as engines do; `gap` is the white space of their encoder."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, **more}
    value = {"id": id_, "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    separators = ("," + gap, ":" + gap)
    return b"data: %b\n\n" % json.dumps(value, ensure_ascii=False, separators=separators).encode()


END = event("", finish_reason="stop").replace(b'"delta":{"content":""}', b'"delta":{}')

TEXTS = st.one_of(
    st.text(),
    st.sampled_from(['"', "\\", "\n", '"content":"', 'x"}', " word", "é", "🎉", '","content":"']),
)
EVENTS = st.builds(
    event, TEXTS, id_=st.sampled_from(["c-1", "c-2"]), gap=st.sampled_from(["", " "])
)


class Never(EventTemplate):
    """Learns nothing, so that all takes the long way."""

    __slots__ = ()

    def learn(self, read: bytes, text: str, written: bytes = b"") -> bool:
        """Learn nothing."""
        return False


def answers(reply, reads: list[bytes]) -> list[object]:
    """Feed a reply and return what it said, decoded, without times."""
    out = b"".join(reply.feed(read, NOW_NS) for read in [*reads, END]) + reply.finish(NOW_NS)
    found = []
    for line in out.splitlines():
        line = line.removeprefix(b"data: ")
        if line and line != b"[DONE]":
            value = json.loads(line)
            value.pop("created_at", None)
            found.append(value)
    return found


def told(answer: list[object]) -> str:
    """Join the text of the lines of `/api/chat`."""
    return "".join(line["message"]["content"] for line in answer)  # type: ignore[index]


@given(st.lists(EVENTS, max_size=12))
def test_chat_says_what_the_engine_said(events: list[bytes]) -> None:
    one_by_one = answers(chat(traits=VLLM), events)
    slow = chat(traits=VLLM)
    slow.template.__class__ = Never
    assert one_by_one == answers(slow, events)
    given_texts = [json.loads(e[6:])["choices"][0]["delta"]["content"] for e in events]
    assert told(one_by_one) == "".join(given_texts)
    assert told(answers(chat(traits=VLLM), [b"".join(events)])) == "".join(given_texts)


@given(st.lists(EVENTS, max_size=12), st.sampled_from([PLAIN, ALIAS]))
def test_pass_through_says_what_the_engine_said(events: list[bytes], passage) -> None:
    slow = streamed(passage, VLLM)
    slow.template.__class__ = Never
    assert answers(streamed(passage, VLLM), events) == answers(slow, events)


def test_the_usual_read_is_matched() -> None:
    template = EventTemplate()
    assert template.match(event("a")) is None
    assert template.learn(event("a"), "a", event("a"))
    assert template.match(event(" word")) == [b" word"]
    assert template.match(event("é🎉")) == ["é🎉".encode()]
    assert template.match(event("a") + event("b") + event("c")) == [b"a", b"b", b"c"]


def test_others_are_not_matched() -> None:
    template = EventTemplate()
    template.learn(event("a"), "a", event("a"))
    for other in (
        event(""),
        event('say "x"'),
        event("line\n"),
        event("a", id_="c-2"),
        event("a", gap=" "),
        event("a", finish_reason="stop"),
        event("a") + event("b", id_="c-2") + event("c"),
        event("a") + event('"') + event("c"),
        event("a") + event("") + event("c"),
        event("a")[:-1],
        b"data: [DONE]\n\n",
        b"",
    ):
        assert template.match(other) is None


def test_gives_up_on_events_that_always_differ() -> None:
    template = EventTemplate()
    learned = [
        template.learn(event("a", id_=str(number)), "a", event("a", id_=str(number)))
        for number in range(6)
    ]
    assert learned == [True, True, True, False, False, False]


def test_a_match_renews_the_tries() -> None:
    template = EventTemplate()
    for number in range(9):
        assert template.learn(event("a", id_=str(number)), "a", event("a", id_=str(number)))
        assert template.match(event("b", id_=str(number)))


def test_events_that_need_no_change_pass_as_they_are() -> None:
    # those of an Ollama, or of another vllama
    events = [
        b'data: {"id":"x","model":"%b","system_fingerprint":"fp_ollama","choices":[{"index":0,'
        b'"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % (PLAIN.model.encode(), text)
        for text in (b"a", b"b", b"cd", b"e")
    ]
    reply = streamed(PLAIN, VLLM)
    assert [reply.feed(event, 1) for event in events] == events
