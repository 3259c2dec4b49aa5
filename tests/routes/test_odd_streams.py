"""Odd streams of servers elsewhere: every dialect, streamed and whole, makes the same of them."""

import json
import threading

import openai
import pytest

from tests.scripted import Scripted, list_models
from tests.server_process import Server

pytestmark = pytest.mark.slow  # a server as a process of its own

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
NAMES = ("f", "g", "get", "get_weather")
CHAT_TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES
]
OSLO, ROME = '{"city":"Oslo"}', '{"city":"Rome"}'
HI = [{"role": "user", "content": "hi"}]
USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
EVENTS = {"Content-Type": "text/event-stream"}
PATH = "/v1/chat/completions"


def chunk(delta, reason=None, **choice):
    said = {"index": 0, "delta": delta, "finish_reason": reason, **choice}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "choices": [said]}


def call(index=None, id=None, name=None, args=None):
    function = {"name": name, "arguments": args}
    piece = {
        "index": index,
        "id": id,
        "function": {k: x for k, x in function.items() if x is not None},
    }
    return {name: value for name, value in piece.items() if value is not None}


def calls(*pieces, reason=None):
    return chunk({"tool_calls": list(pieces)}, reason)


def frame(*events):
    return [e if isinstance(e, bytes) else b"data: %b\n\n" % json.dumps(e).encode() for e in events]


END, DONE = chunk({}, "stop"), b"data: [DONE]\n\n"
TAIL = (END, {"choices": [], "usage": USAGE}, DONE)
BOTH = [("f", {"city": "Oslo"}), ("f", {"city": "Rome"})]
FG = [("f", {"city": "Oslo"}), ("g", {"city": "Rome"})]
ONE = [("f", {"city": "Oslo"})]

CALLS = {
    "names first": ([calls(call(0, "a", "f", "")), calls(call(1, "b", "f", "")),
                     calls(call(0, args=OSLO)), calls(call(1, args=ROME))], BOTH),
    "names first, one chunk": ([calls(call(0, "a", "f", ""), call(1, "b", "f", "")),
                                calls(call(0, args=OSLO), call(1, args=ROME))], BOTH),
    "three names, no arguments yet": (
        [calls(call(n, str(n), "f")) for n in range(3)]
        + [calls(call(n, args=part)) for part in ('{"city":', '"x"}') for n in (2, 0, 1)],
        [("f", {"city": "x"})] * 3,
    ),
    "by id": ([calls(call(None, "a", "f", "")), calls(call(None, "b", "f", "")),
               calls(call(None, "b", None, ROME)), calls(call(None, "a", None, OSLO))], BOTH),
    "by id, one index": ([calls(call(0, "a", "f", "")), calls(call(0, "b", "f", "")),
                          calls(call(0, "a", None, OSLO)), calls(call(0, "b", None, ROME))], BOTH),
    "whole, one index": ([calls(call(0, "a", "f", OSLO)), calls(call(0, "b", "f", ROME))], BOTH),
    "whole, nothing to tell": ([calls(call(None, None, "f", OSLO)),
                                calls(call(None, None, "f", ROME))], BOTH),
    "whole, one index, no id": ([calls(call(0, None, "f", OSLO)),
                                 calls(call(0, None, "f", ROME))], BOTH),
    "by name": ([calls(call(None, None, "f", ""), call(None, None, "g", "")),
                 calls(call(None, None, "g", ROME)), calls(call(None, None, "f", OSLO))], FG),
    "by order": ([calls(call(None, None, "f", ""), call(None, None, "f", "")),
                  calls(call(args='{"city":'), call(args='{"city":')),
                  calls(call(args='"Oslo"}'), call(args='"Rome"}'))], BOTH),
    "one after the other": ([calls(call(None, "a", "f", "")), calls(call(args='{"city":')),
                             calls(call(args='"Oslo"}')), calls(call(None, "b", "f", "")),
                             calls(call(args=ROME))], BOTH),
    "objects": ([calls(call(0, "a", "f", {"city": "Oslo"}), call(1, "b", "g", {"city": "Rome"}))],
                FG),
    "objects again and again": ([calls(call(0, "a", "f", {"city": "Oslo"}))] * 3, ONE),
    "index as text, from 1": ([calls(call("1", 7, "f", "")), calls(call("1", None, None, OSLO))],
                              ONE),
    "name and id in every piece": ([calls(call(0, "a", "f", '{"city"')),
                                    calls(call(0, "a", "f", ':"Oslo"}'))], ONE),
    "a new id in every piece": ([calls(call(0, "a", "f", '{"city"')),
                                 calls(call(0, "b", "f", ':"Oslo"}'))], ONE),
    "no arguments at all": ([calls(call(0, "a", "f", ""), call(1, "b", "g", ROME))],
                            [("f", {}), ("g", {"city": "Rome"})]),
    "messages": ([chunk(None, message={"tool_calls": [call(0, "a", "f", OSLO)]})], ONE),
    "the older form": ([chunk({"function_call": {"name": "f", "arguments": '{"city":'}}),
                        chunk({"function_call": {"arguments": '"Oslo"}'}}, "function_call")], ONE),
    "both forms": ([chunk({"tool_calls": [call(0, "a", "f", OSLO)],
                           "function_call": {"name": "f", "arguments": OSLO}})], ONE),
    "the older form, whole": ([chunk(None, message={"function_call": {"name": "f",
                                                                      "arguments": OSLO}})], ONE),
    "the only one as an object": ([chunk({"tool_calls": call(0, "a", "f", OSLO)})], ONE),
    "an empty object first": ([calls(call(0, "a", "f", "{}")), calls(call(0, args=OSLO))], ONE),
    "flat": ([chunk({"tool_calls": [{"index": 0, "id": "a", "name": "f", "arguments": OSLO}]})],
             ONE),
    "encoded twice": ([calls(call(0, "a", "f", json.dumps(OSLO)))], ONE),
    "encoded twice, in pieces": ([calls(call(0, "a", "f", "")),
                                  calls(call(0, args=json.dumps(OSLO)[:9])),
                                  calls(call(0, args=json.dumps(OSLO)[9:]))], ONE),
    "a name in pieces": ([calls(call(0, "a", "get_", "")), calls(call(0, None, "wea")),
                          calls(call(0, None, "ther", "")), calls(call(0, args=OSLO))],
                         [("get_weather", {"city": "Oslo"})]),
    "a name in pieces, no arguments": ([calls(call(0, "a", "get_"), call(0, None, "weather"))],
                                       [("get_weather", {})]),
    "a name that begins another": ([calls(call(0, "a", "get", "")), calls(call(0, args=OSLO)),
                                    calls(call(1, "b", "get")),
                                    calls(call(2, "c", "get_weather", ROME))],
                                   [("get", {"city": "Oslo"}), ("get", {}),
                                    ("get_weather", {"city": "Rome"})]),
    "all arguments so far in every piece": (
        [calls(call(0, "a", "f", "")), *(calls(call(0, "a", "f", OSLO[:n])) for n in (4, 11, 15)),
         calls(call(0, args=OSLO))], ONE),
    "all so far, which are brackets": (
        [calls(call(0, "a", "f", part)) for part in ('{"city":', '{"city":["}', '{"city":["}"]}')],
        [("f", {"city": ["}"]})]),
    "pieces alike that are none": (
        [calls(call(0, "a", "f", part)) for part in ('{"city":', '{"city":', '"}{"}}')],
        [("f", {"city": {"city": "}{"}})]),
    "blanks within": ([calls(call(0, "a", "f", part))
                       for part in ('{"city":', "{}", ',"x":', "null", "}")],
                      [("f", {"city": {}, "x": None})]),
    "text after the object": (
        [calls(call(0, "a", "f", "")), calls(call(0, args='{"city":"O')),
         calls(call(0, args='slo"}\n</tool_call>')), calls(call(0, args="</tool_call>"))], ONE),
    "an empty object before it": ([calls(call(0, "a", "f", "{}" + OSLO))], ONE),
    "a call that says nothing": ([chunk({"tool_calls": [{}, None]}), calls(call(0, "a", "f", OSLO)),
                                  chunk({"tool_calls": [{}]})], ONE),
    "null first": ([calls(call(0, "a", "f", "null")), calls(call(0, args=OSLO))], ONE),
}  # fmt: skip


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    with Scripted({"/v1/models": list_models("m")}) as there:
        folder = tmp_path_factory.mktemp("odd")
        with Server(folder, "--upstream", f"{there.url}/v1", fake=False) as server:
            yield there, server


def data_of(text):
    lines = (line.removeprefix("data:") for line in text.split("\n") if line.startswith("data:"))
    return [json.loads(line) for line in lines if "[DONE]" not in line]


def ask(server, dialect, stream, tools=True, **more):
    """Return (status, text, thinking, calls, reason, usage, the answer's text) as a client does."""
    asked = {"model": "m", "messages": HI, "stream": stream, **more}
    path = {"chat": PATH, "ollama": "/api/chat"}.get(dialect, f"/v1/{dialect}")
    if dialect == "messages":
        asked["max_tokens"] = 99
        tooled = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
    elif dialect == "responses":
        asked["input"] = asked.pop("messages")
        tooled = [{"type": "function", "name": name, "parameters": SCHEMA} for name in NAMES]
    else:
        tooled = CHAT_TOOLS
    if dialect == "chat" and stream:
        asked["stream_options"] = {"include_usage": True}
    if tools:
        asked["tools"] = tooled
    status, _, raw = server.request("POST", path, asked)
    body = raw.decode()
    if status != 200:
        return {"status": status, "body": body}
    found = {"status": status, "body": body, **READERS[dialect](body, stream)}
    found["calls"] = [(name, json.loads(arguments)) for name, arguments in found["calls"]]
    return found


def read_chat(body, stream):
    if not stream:
        answer = json.loads(body)
        choice = answer["choices"][0]
        message = choice["message"]
        functions = [one["function"] for one in message.get("tool_calls") or []]
        return {
            "text": message["content"] or message.get("refusal"),
            "thinking": message.get("reasoning", ""),
            "calls": [(one["name"], one["arguments"]) for one in functions],
            "reason": choice["finish_reason"], "prompt": answer["usage"]["prompt_tokens"],
        }  # fmt: skip
    text, thinking, by, reasons, prompt = "", "", {}, [], None
    assert body.endswith("data: [DONE]\n\n")
    for event in data_of(body):
        assert isinstance(event.get("id", ""), str)
        if event.get("usage"):
            prompt = event["usage"]["prompt_tokens"]
        for choice in event["choices"]:
            delta = choice["delta"]
            assert isinstance(delta, dict) and choice["index"] == 0 and not reasons
            text += delta.get("content") or delta.get("refusal") or ""
            thinking += delta.get("reasoning") or ""
            for piece in delta.get("tool_calls") or []:
                slot = by.setdefault(piece["index"], ["", ""])
                slot[0] += piece["function"].get("name") or ""
                slot[1] += piece["function"].get("arguments") or ""
                assert slot[0] and ("name" in piece["function"]) == ("id" in piece)
            if choice["finish_reason"] is not None:
                reasons.append(choice["finish_reason"])
    return {"text": text, "thinking": thinking, "calls": list(by.values()), "prompt": prompt,
            "reason": reasons[0]}  # fmt: skip


def read_ollama(body, stream):
    lines = [json.loads(line) for line in body.splitlines()]
    said = [line["message"] for line in lines]
    called = [one["function"] for message in said for one in message.get("tool_calls") or []]
    return {
        "text": "".join(message["content"] for message in said),
        "thinking": "".join(message.get("thinking", "") for message in said),
        "calls": [(one["name"], json.dumps(one["arguments"])) for one in called],
        "reason": lines[-1]["done_reason"], "prompt": lines[-1]["prompt_eval_count"],
    }  # fmt: skip


def read_messages(body, stream):
    if not stream:
        answer = json.loads(body)
        blocks = [(b["type"], b.get("name"), b.get("text") or b.get("thinking")
                   or json.dumps(b.get("input"))) for b in answer["content"]]  # fmt: skip
        reason, usage = answer["stop_reason"], answer["usage"]
    else:
        opened = {}
        for event in data_of(body):
            if event["type"] == "content_block_start":
                begun = event["content_block"]
                opened[event["index"]] = [begun["type"], begun.get("name"), ""]
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                opened[event["index"]][2] += (
                    delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
                )
            elif event["type"] == "message_delta":
                reason, usage = event["delta"]["stop_reason"], event["usage"]
        blocks = list(opened.values())
    return {
        "text": "".join(text for kind, _, text in blocks if kind == "text"),
        "thinking": "".join(text for kind, _, text in blocks if kind == "thinking"),
        "calls": [(name, text) for kind, name, text in blocks if kind == "tool_use"],
        "reason": reason, "prompt": usage["input_tokens"],
    }  # fmt: skip


def read_responses(body, stream):
    answer = data_of(body)[-1]["response"] if stream else json.loads(body)
    out = answer["output"] or []
    details = answer["incomplete_details"] or {}
    return {
        "text": "".join(p.get("text") or p["refusal"] for o in out for p in o.get("content") or []),
        "thinking": "".join(p["text"] for o in out for p in o.get("summary") or []),
        "calls": [(o["name"], o["arguments"]) for o in out
                  if o["type"] == "function_call" and o["status"] == "completed"],
        "reason": details.get("reason"), "prompt": answer["usage"]["input_tokens"],
    }  # fmt: skip


READERS = {
    "chat": read_chat, "ollama": read_ollama, "messages": read_messages,
    "responses": read_responses,
}  # fmt: skip
WAYS = [(dialect, stream) for dialect in READERS for stream in (True, False)]


def ask_all(both, answer, **more):
    there, server = both
    there.routes[PATH] = answer
    return {way: ask(server, *way, **more) for way in WAYS}


@pytest.mark.parametrize("name", CALLS)
def test_calls(both, name):
    events, wanted = CALLS[name]
    for way, got in ask_all(both, (200, EVENTS, frame(*events, *TAIL))).items():
        assert got["calls"] == wanted, (way, got)
        assert not got["text"], (way, got)
        reasons = {"chat": "tool_calls", "messages": "tool_use", "ollama": "stop"}
        assert got["reason"] == reasons.get(way[0]), way


PARTS = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]
TEXTS = {
    "parts": [chunk({"content": PARTS}), chunk({"content": [{"type": "text", "text": "Hello"}]})],
    "parts together": [chunk({"content": [*PARTS, {"type": "text", "text": "Hello"}]})],
    "thinking as an object": [chunk({"reasoning": {"text": "hm"}}), chunk({"content": "Hello"})],
    "a null index": [chunk({"reasoning_content": "hm"}), chunk({"content": "Hello"}, index=None)],
    "an index as text": [chunk({"reasoning": "hm", "content": "Hello"}, index="0")],
    "an empty list of logprobs": [chunk({"reasoning": "hm", "content": "Hello"}, logprobs=[])],
    "a numeric id": [chunk({"reasoning": "hm", "content": "Hello"}) | {"id": 5}],
    "odd fields": [chunk({"reasoning": "hm", "content": "Hello", "tool_calls": "no"})
                   | {"created": "now", "timings": [], "system_fingerprint": 7, "usage": []}],
    "messages": [chunk(None, message={"reasoning": "hm", "content": "Hel"}),
                 chunk({}, message={"content": "lo"})],
    "a message that repeats it": [chunk({"reasoning": "hm", "content": "Hello"}),
                                  chunk({}, message={"reasoning": "hm", "content": "Hello"})],
    "empty reasons": [chunk({"reasoning": "hm"}, ""), chunk({"content": "Hello"}, "")],
    "early reasons": [chunk({"reasoning": "hm"}, "stop"), chunk({"content": "Hel"}, "length"),
                      chunk({"content": "lo"}, "stop")],
    "no choices": [{"choices": None}, chunk({"reasoning": "hm", "content": "Hello"}), {}],
    "no object": [b"data: null\n\n", b"data: []\n\n", b"data: \n\n",
                  chunk({"reasoning": "hm", "content": "Hello"})],
    "thinking in details": [
        chunk({"content": "", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}),
        chunk({"content": "Hello", "reasoning_details": []}),
    ],
    "thinking by that name": [chunk({"content": "", "thinking": "h"}),
                              chunk({"thinking": "m", "content": "Hello"})],
    "a byte order mark": [b"\xef\xbb\xbf" + frame(chunk({"reasoning": "hm"}))[0],
                          chunk({"content": "Hello"})],
    "no deltas": [chunk(None), chunk({"reasoning": "hm", "content": "Hello"}), chunk(None, "stop"),
                  {"choices": [], "usage": USAGE},
                  b"data:  [done] \n\n", chunk({"content": "!"})],
    "a delta that is text": [chunk({"reasoning": "hm"}), chunk("Hello")],
    "an empty error": [chunk({"reasoning": "hm", "content": "Hello"}) | {"error": {}}],
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_texts(both, name):
    for way, got in ask_all(both, (200, EVENTS, frame(*TEXTS[name], *TAIL))).items():
        assert (got["status"], got.get("text"), got.get("thinking")) == (200, "Hello", "hm"), (
            way,
            got,
        )
        assert got["prompt"] == 5, way
        assert got["reason"] in ("stop", "end_turn", None), way


def test_usage_in_groqs_place(both):
    events = frame(chunk({"content": "Hello"}), END | {"x_groq": {"usage": USAGE}}, DONE)
    for way, got in ask_all(both, (200, EVENTS, events)).items():
        assert (got["text"], got["prompt"]) == ("Hello", 5), way


@pytest.mark.parametrize("is_list", [False, True])
def test_lines_or_a_list_in_place_of_events(both, is_list):
    events = [chunk({"content": "Hel"}), chunk({"content": "lo"}), *TAIL[:2]]
    body = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    body = json.dumps(events, indent=1).encode() if is_list else body
    answer = (200, {"Content-Type": "application/x-ndjson"}, [body[:50], body[50:]])
    for way, got in ask_all(both, answer).items():
        assert (got["status"], got.get("text"), got.get("prompt")) == (200, "Hello", 5), (way, got)


@pytest.mark.parametrize(
    "answer",
    [
        (200, {}, {"success": False, "errors": [{"code": 5, "message": "it is overloaded"}]}),
        (500, {}, {"errors": [{"message": "it is overloaded"}]}),
        (500, {}, {"code": 5, "msg": "it is overloaded"}),
        (500, {}, {"error": {"code": "x", "innererror": {"message": "it is overloaded"}}}),
        (200, EVENTS, [b"data: it is overloaded\n\n"]),
    ],
)
def test_words_of_errors(both, answer):
    for way, got in ask_all(both, answer).items():
        assert got["status"] == 502 and "it is overloaded" in got["body"], (way, got)


@pytest.mark.parametrize("data", [b"it is overloaded", b'{"message": "it is overloaded"}'])
def test_an_event_that_is_called_error(both, data):
    for way, got in ask_all(both, (200, EVENTS, [b"event: error\ndata: %b\n\n" % data])).items():
        assert got["status"] == 502 and "it is overloaded" in got["body"], (way, got)


@pytest.mark.parametrize(
    ("reason", "wanted"),
    [
        ("eos", ("stop", "stop", "end_turn", None)),
        ("max_tokens", ("length", "length", "max_tokens", "max_output_tokens")),
        ("content_filter", ("content_filter", "content_filter", "refusal", "content_filter")),
        ("tool_calls", ("stop", "stop", "end_turn", None)),
        (None, ("stop", "stop", "end_turn", None)),
    ],
)
def test_reasons(both, reason, wanted):
    events = frame(chunk({"content": "Hello"}), chunk({}, reason), DONE)
    for way, got in ask_all(both, (200, EVENTS, events)).items():
        assert got["text"] == "Hello"
        assert got["reason"] == wanted[list(READERS).index(way[0])], way


@pytest.mark.parametrize("reason", ["length", "stop", "tool_calls"])
@pytest.mark.parametrize("args", ['{"city":"Os', None])
def test_a_call_that_is_cut_is_not_reported_whole(both, reason, args):
    if args is None and reason != "length":
        return  # a call without arguments
    events = frame(calls(call(0, "a", "f", args)), chunk({}, reason), *TAIL[1:])
    there, server = both
    there.routes[PATH] = (200, EVENTS, events)
    for dialect in ("chat", "messages"):
        for stream in (True, False):
            try:
                got = ask(server, dialect, stream)
                assert not got["calls"], (dialect, stream, got)
            except ValueError:  # its arguments are cut, as the client can see
                _, _, raw = server.request(
                    "POST",
                    PATH,
                    {"model": "m", "messages": HI, "tools": CHAT_TOOLS, "stream": stream},
                )
                assert b'"length"' in raw
    for dialect in ("ollama", "responses"):
        for stream in (True, False):
            assert not ask(server, dialect, stream)["calls"]


def test_a_refusal_arrives(both):
    events = frame(chunk({"refusal": "I can"}), chunk({"refusal": "not"}), *TAIL)
    for way, got in ask_all(both, (200, EVENTS, events)).items():
        assert got["text"] == "I cannot", way
        assert way[0] != "messages" or got["reason"] == "refusal"
        assert way[0] not in ("chat", "responses") or '"refusal":' in got["body"]
    said = {"role": "assistant", "content": "Well.", "refusal": "I cannot"}
    whole = {**WHOLE, "choices": [{"index": 0, "message": said, "finish_reason": "stop"}]}
    for way, got in ask_all(both, (200, {}, whole)).items():
        assert got["text"] in ("Well.I cannot", "Well."), way
        assert '"I cannot"' in got["body"] or way[0] == "ollama", (way, got["body"])
    there, server = both
    there.routes[PATH] = (200, EVENTS, events)
    for stream in (True, False):
        body = {"model": "m", "prompt": "x", "stream": stream}
        assert b"I can" in server.request("POST", "/v1/completions", body)[2]


def test_a_refusal_in_events_of_its_own(both):
    there, server = both
    there.routes[PATH] = (200, EVENTS, frame(chunk({"refusal": "I can"}), chunk({"refusal": "not"}),
                                             *TAIL))  # fmt: skip
    _, _, data = server.request(
        "POST", "/v1/responses", {"model": "m", "input": "x", "stream": True}
    )
    events = data_of(data.decode())
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added", "refusal.delta",
        "refusal.delta", "refusal.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in events] == [*range(10)]
    part = {"type": "refusal", "refusal": "I cannot"}
    assert events[3]["part"] == {"type": "refusal", "refusal": ""} and events[7]["part"] == part
    assert events[6]["refusal"] == "I cannot" and events[6]["content_index"] == 0
    assert events[-1]["response"]["output"][0]["content"] == [part]
    assert openai.types.responses.ResponseOutputRefusal.model_validate(part)


def test_what_gemini_wants_back_arrives_and_comes_back(both):
    there, server = both
    signed = {"google": {"thought_signature": "EjQK"}}
    called = {"id": "a", "function": {"name": "f", "arguments": OSLO}, "extra_content": signed}
    there.routes[PATH] = (200, EVENTS, frame(calls(called), *TAIL))
    for stream in (True, False):
        got = ask(server, "chat", stream)
        assert got["calls"] == ONE and '"thought_signature":"EjQK"' in got["body"], stream
    turn = {"role": "assistant", "tool_calls": [called]}
    result = {"role": "tool", "tool_call_id": "a", "content": "4"}
    ask(server, "chat", stream=False, messages=[*HI, turn, result])
    assert there.sent[-1]["messages"][1]["tool_calls"][0]["extra_content"] == signed


PATCH, POEM = '{"input":"*** Begin\\n+a"}', {"name": "f", "arguments": OSLO}
CUSTOM = {"type": "custom", "custom": {"name": "patch", "description": "Applies a patch."}}
CUSTOM_CALLS = {
    "in pieces": [calls(call(0, "a", "patch", "")), *(calls(call(0, args=x)) for x in PATCH)],
    "in one": [calls(call(0, "a", "patch", PATCH))],
    "with the end": [calls(call(0, "a", "patch", PATCH), reason="tool_calls")],
    "an object": [calls(call(0, "a", "patch", json.loads(PATCH)))],
    "after text": [chunk({"content": "Now:"}), calls(call(0, "a", "patch", PATCH))],
    "beside a function": [calls(call(0, "b", "f", OSLO)), calls(call(1, "a", "patch", PATCH))],
    "before a function": [calls(call(0, "a", "patch", PATCH)), calls(call(1, "b", "f", OSLO))],
    "plain": [calls(call(0, "a", "patch", "*** Begin\n+a"))],
    "plain, in pieces": [
        calls(call(0, "a", "patch", "")),
        *(calls(call(0, args=x)) for x in ("*** Be", "gin\n", "+a")),
    ],
    "plain, with the end": [calls(call(0, "a", "patch", "*** Begin\n+a"), reason="stop")],
    "plain, beside a function": [
        calls(call(0, "b", "f", OSLO)),
        calls(call(1, "a", "patch", "*** Begin\n+a")),
    ],
    "plain, before a function": [
        calls(call(0, "a", "patch", "*** Begin\n+a")),
        calls(call(1, "b", "f", OSLO)),
    ],
}
MARKS = [
    '"quoted" and more',
    "{ print $1 }",
    "{",
    '{"a": 1}',
    "if (a[0] > 1) {",
    "}",
    "5",
    "",
    'x = "',
    "null",
]


@pytest.mark.parametrize("name", CUSTOM_CALLS)
def test_custom_tools_of_chat_completions(both, name):
    there, server = both
    there.routes[PATH] = (200, EVENTS, frame(*CUSTOM_CALLS[name], *TAIL))
    wanted = {"type": "custom", "custom": {"name": "patch", "input": "*** Begin\n+a"}, "id": "a"}
    body = {"model": "m", "messages": HI, "tools": [CHAT_TOOLS[0], CUSTOM],
            "tool_choice": {"type": "custom", "custom": {"name": "patch"}}}  # fmt: skip
    _, _, data = server.request("POST", PATH, body)
    sent = there.sent[-1]
    assert sent["tools"][1]["function"]["parameters"]["required"] == ["input"]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "patch"}}
    whole = {one["index"]: one for one in json.loads(data)["choices"][0]["message"]["tool_calls"]}
    _, _, data = server.request("POST", PATH, body | {"stream": True})
    streamed, reason = {}, None
    for event in data_of(data.decode()):
        for choice in event["choices"]:
            reason = choice["finish_reason"] or reason
            for piece in choice["delta"].get("tool_calls") or []:
                if "custom" in piece or piece["index"] not in streamed:
                    assert piece["index"] not in streamed
                    streamed[piece["index"]] = piece
    assert reason == "tool_calls"
    for found in (whole, streamed):
        (index,) = [number for number, one in found.items() if "custom" in one]
        assert found[index] == wanted | {"index": index}
        others = [one["function"] for number, one in found.items() if number != index]
        assert others == [POEM] * ("function" in name)


@pytest.mark.parametrize("text", MARKS)
def test_any_text_is_a_whole_custom_call(both, text):
    there, server = both
    pieces = [calls(call(0, "a", "patch", "")), *(calls(call(0, args=one)) for one in text)]
    there.routes[PATH] = (200, EVENTS, frame(*pieces, chunk({}, "stop"), *TAIL[1:]))
    for stream in (True, False):
        body = {"model": "m", "messages": HI, "tools": [CUSTOM], "stream": stream}
        _, _, data = server.request("POST", PATH, body)
        answers = data_of(data.decode()) if stream else [json.loads(data)]
        choices = [one for answer in answers for one in answer["choices"]]
        messages = [one.get("message") or one["delta"] for one in choices]
        (found,) = [x["custom"] for m in messages for x in m.get("tool_calls") or ()]
        assert (found["input"], choices[-1]["finish_reason"]) == (text, "tool_calls"), stream
        body = {"model": "m", "input": "x", "tools": [{"type": "custom", "name": "patch"}]}
        _, _, data = server.request("POST", "/v1/responses", body | {"stream": stream})
        answer = data_of(data.decode())[-1]["response"] if stream else json.loads(data)
        (item,) = answer["output"]
        assert answer["status"] == item["status"] == "completed"
        assert (item["type"], item["input"]) == ("custom_tool_call", text)


@pytest.mark.parametrize("text", ["*** Begin", '{"input":"*** Be'])
def test_a_custom_call_that_is_cut(both, text):
    there, server = both
    pieces = frame(calls(call(0, "a", "patch", text)), chunk({}, "length"), *TAIL[1:])
    there.routes[PATH] = (200, EVENTS, pieces)
    body = {"model": "m", "input": "x", "tools": [{"type": "custom", "name": "patch"}]}
    for stream in (True, False):
        _, _, data = server.request("POST", "/v1/responses", body | {"stream": stream})
        answer = data_of(data.decode())[-1]["response"] if stream else json.loads(data)
        assert answer["status"] == answer["output"][0]["status"] == "incomplete"
        body_ = {"model": "m", "messages": HI, "tools": [CUSTOM], "stream": stream}
        assert b'"finish_reason":"length"' in server.request("POST", PATH, body_)[2]


CHOICE_ERRORS = [
    ({"code": 429, "message": "it is overloaded", "metadata": {}}, 429),
    ({"code": "rate_limit_exceeded", "message": "it is overloaded"}, 429),
    ({"type": "overloaded_error", "message": "it is overloaded"}, 503),
    ({"code": "400", "message": "it is overloaded"}, 400),
    ({"code": 502, "message": "it is overloaded"}, 502),
    ({"message": "it is overloaded"}, 502),
    ("it is overloaded", 502),
]


@pytest.mark.parametrize(("error", "status"), CHOICE_ERRORS)
def test_an_error_in_a_choice(both, error, status):
    failed = chunk({"content": ""}, "error", error=error)
    message = {"message": {"role": "assistant", "content": "Hel"}, "finish_reason": "error"}
    whole = {**WHOLE, "choices": [{"index": 0, **message, "error": error}]}
    for answer in ((200, EVENTS, frame(failed, DONE)), (200, {}, whole)):
        for way, got in ask_all(both, answer).items():
            assert got["status"] == status, (way, got)
            assert "it is overloaded" in got["body"], way
    there, server = both
    there.routes[PATH] = (200, EVENTS, frame(chunk({"content": "Hel"}), failed, DONE))
    for dialect, stream in WAYS:
        path = {"chat": PATH, "ollama": "/api/chat"}.get(dialect, f"/v1/{dialect}")
        body = {"model": "m", "messages": HI, "input": HI, "max_tokens": 9, "stream": stream}
        got, _, data = server.request("POST", path, body)
        assert got == (200 if stream else status) and b"it is overloaded" in data, dialect
        assert (b"Hel" in data) == stream and b'"stop"' not in data, dialect


WHOLE = {
    "id": "w", "object": "chat.completion", "created": 1, "usage": USAGE,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello",
                 "tool_calls": [call(None, "a", "f", {"city": "Oslo"})]}, "finish_reason": "stop"}],
}  # fmt: skip


@pytest.mark.parametrize("indent", [None, 2])
def test_json_in_the_place_of_events(both, indent):
    body = json.dumps(WHOLE, indent=indent).replace("\n", "\n\n").encode()
    for kind in ("application/json", "text/event-stream"):
        for way, got in ask_all(both, (200, {"Content-Type": kind}, body)).items():
            assert (got["text"], got["calls"], got["prompt"]) == ("Hello", ONE, 5), (way, got)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"error": {"message": "it is overloaded", "code": 503}}, 503),
        ({"error": {"message": "it is overloaded", "code": "400"}}, 400),
        ({"error": "it is overloaded", "code": 400}, 400),
        ({"error": "it is overloaded"}, 502),
        ({"message": "it is overloaded", "code": 413}, 413),
        ({"detail": "it is overloaded"}, 502),
    ],
)
def test_errors_in_a_good_answer(both, error, status):
    for answer in ((200, {}, error), (200, EVENTS, frame(error, DONE))):
        for way, got in ask_all(both, answer).items():
            assert got["status"] == status, (way, got)
            assert "it is overloaded" in got["body"], way


def test_errors_as_they_are(both):
    for way, got in ask_all(both, (400, {}, b'[{"error": {"message": "no signature"}}]')).items():
        assert got["status"] == 400 and "no signature" in got["body"], way
    for way, got in ask_all(both, (413, {}, {"error": {"message": "too large"}})).items():
        assert got["status"] == 413 and "too large" in got["body"], way
    there = "https://elsewhere.example/v2/chat"
    for way, got in ask_all(both, (307, {"Location": there}, b"")).items():
        assert got["status"] == 502 and there in got["body"], (way, got)


@pytest.mark.parametrize("lost", [True, False])
def test_done_is_the_end_whatever_the_connection_does(both, lost):
    there, server = both
    for way in WAYS:
        over = threading.Event()

        def send(over=over):
            yield from frame(chunk({"content": "Hello"}), END, DONE, chunk({"content": " no"}))
            if lost:
                raise ConnectionError
            over.wait(60)

        there.routes[PATH] = lambda _body, send=send: (200, EVENTS, send())
        assert ask(server, *way)["text"] == "Hello", way
        over.set()


def test_text_held_back_for_a_stop_sequence_is_given_at_the_end(both):
    events = frame(chunk({"content": "Hello ##"}), DONE)
    for dialect, field in (("chat", "stop"), ("messages", "stop_sequences")):
        for stream in (True, False):
            both[0].routes[PATH] = (200, EVENTS, events)
            assert ask(both[1], dialect, stream, **{field: ["###"]})["text"] == "Hello ##"


def test_nor_is_it_lost_with_the_connection(both):
    there, server = both

    def send():
        yield from frame(chunk({"content": "Hello ##"}))
        raise ConnectionError

    there.routes[PATH] = lambda _body: (200, EVENTS, send())
    body = {"model": "m", "messages": HI, "stop": ["###"], "stream": True}
    _, _, raw = server.request("POST", PATH, body)
    *said, error = data_of(raw.decode())
    assert "".join(one["choices"][0]["delta"]["content"] for one in said) == "Hello ##"
    assert all(one["choices"][0]["finish_reason"] is None for one in said) and error["error"]


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": None}, {"prompt_tokens": 5.0}, 7])
def test_tokens_are_counted_whatever_the_usage(both, usage):
    events = frame(chunk({"content": "Hello"}), END, {"choices": [], "usage": usage}, DONE)
    for way, got in ask_all(both, (200, EVENTS, events)).items():
        assert got["prompt"] > 0, (way, got)


def test_that_a_tool_failed_is_told(both):
    there, server = both
    there.routes[PATH] = (200, EVENTS, frame(chunk({"content": "ok"}), *TAIL))
    for content, wanted in (("no such file", "Error:\nno such file"), ("Error: no", "Error: no")):
        result = {"type": "tool_result", "tool_use_id": "a", "content": content, "is_error": True}
        called = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
        turns = [
            *HI,
            {"role": "assistant", "content": [called]},
            {"role": "user", "content": [result]},
        ]
        ask(server, "messages", False, messages=turns)
        assert there.sent[-1]["messages"][-1]["content"] == wanted


@pytest.mark.parametrize(("text", "broken"), [('{"a": 1}', None), ("not JSON", "schema")])
@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_servers_response_is_checked_against_its_schema(both, text, broken, stream):
    """Nobody knows whether it holds schemas at all."""
    there, server = both
    there.routes[PATH] = (200, EVENTS, frame(chunk({"content": text}), *TAIL))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for path, format_ in (("/api/chat", {"format": schema}), (PATH, {"response_format": named})):
        body = {"model": "m", "messages": HI, "stream": stream, **format_}
        status, headers, data = server.request("POST", path, body)
        assert status == 200
        if stream:
            assert (b'"violates":["schema"]' in data) == (broken is not None), (path, data)
        else:
            assert headers.get("x-vllama-violates") == broken, path


CALLED = {"index": 0, "id": "c1", "type": "function"}


@pytest.mark.parametrize(
    ("delta", "reason", "broken"),
    [
        ({"tool_calls": [CALLED | {"function": {"name": "f", "arguments": '{"a": 1}'}}]},
         "tool_calls", None),
        ({"tool_calls": [CALLED | {"function": {"name": "f", "arguments": '{"a": "x"}'}}]},
         "tool_calls", "tools[0].parameters.properties.a.type"),
        ({"content": "no"}, "stop", "tool_choice"),
    ],
)  # fmt: skip
def test_a_forced_call_of_an_unknown_server_is_checked(both, delta, reason, broken):
    there, server = both
    there.routes[PATH] = (200, EVENTS, frame(chunk(delta), chunk({}, reason), *TAIL[1:]))
    function = {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}
    body = {"model": "m", "messages": HI, "tool_choice": "required",
            "tools": [{"type": "function", "function": function}]}  # fmt: skip
    status, headers, _ = server.request("POST", PATH, body)
    assert (status, headers.get("x-vllama-violates")) == (200, broken)


def torn(*events):
    """Return events whose half surrogates are escapes, as JavaScript and Python write them."""
    return (200, EVENTS, frame(*events, *TAIL))


TORN = {  # what a text and a thinking of two events become
    "joined": (("a\ud83d", "\ude00b"), "a\U0001f600b"),
    "beside another": (("\ud83d\ude00\ud83d", "\ude01"), "\U0001f600\U0001f601"),
    "three events": (("a", "\ud83d", "\ude00", "b"), "a\U0001f600b"),
    "an empty event between": (("\ud83d", "", "\ude00"), "\U0001f600"),
    "the first alone": (("a\ud83d", "b"), "a\ufffdb"),
    "the second alone": (("a", "\ude00b"), "a\ufffdb"),
    "the first twice": (("\ud83d", "\ud83d\ude00"), "\ufffd\U0001f600"),
    "at the end": (("a", "\ud83d"), "a\ufffd"),
}


@pytest.mark.parametrize("name", TORN)
def test_halves_of_a_surrogate_pair_join(both, name):
    halves, wanted = TORN[name]
    texts = [
        *(chunk({"reasoning_content": x}) for x in halves),
        *(chunk({"content": x}) for x in halves),
    ]
    for way, got in ask_all(both, torn(*texts)).items():
        assert (got["text"], got["thinking"]) == (wanted, wanted), (way, got)
    arguments = ['{"city":"', *halves, '"}']
    pieces = [calls(call(0, "a", "f", "")), *(calls(call(0, args=x)) for x in arguments)]
    for way, got in ask_all(both, torn(*pieces)).items():
        assert got["calls"] == [("f", {"city": wanted})], (way, got)


def test_halves_join_in_completions_and_become_no_text_in_requests(both):
    there, server = both
    there.routes[PATH] = torn(chunk({"content": "\ud83d"}), chunk({"content": "\ude00"}))
    turn = [{"role": "user", "content": "\ud83d"}]
    assert ask(server, "chat", stream=True, messages=turn)["text"] == "\U0001f600"
    assert there.sent[-1]["messages"][0]["content"] == "\ufffd"
    there.routes[PATH] = torn(chunk({"content": "a\ud83d"}), DONE)
    assert ask(server, "chat", stream=True)["text"] == "a\ufffd"


THOUGHT = [
    *(chunk({"reasoning_content": x}) for x in "abc"),
    *(chunk({"content": x}) for x in "de"),
]
THOUGHTS = {  # what comes, the engine's usage, and the tokens of the thinking
    "one token an event": (THOUGHT, {"prompt_tokens": 5, "completion_tokens": 5}, 3),
    "and one that ends it": (THOUGHT, {"prompt_tokens": 5, "completion_tokens": 6}, 3),
    "two tokens an event": (THOUGHT, {"prompt_tokens": 5, "completion_tokens": 10}, 6),
    "no usage": (THOUGHT, None, 3),
    "both in one event": ([chunk({"reasoning": "abcdef", "content": "gh"})],
                          {"prompt_tokens": 5, "completion_tokens": 4}, 3),
    "the upstream says": (THOUGHT, {"prompt_tokens": 5, "completion_tokens": 5,
                          "completion_tokens_details": {"reasoning_tokens": 4}}, 4),
    "no thinking": ([chunk({"content": "de"})], {"prompt_tokens": 5, "completion_tokens": 5}, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", THOUGHTS)
def test_tokens_of_the_thinking(both, name):
    events, usage, wanted = THOUGHTS[name]
    last = {"choices": [], "usage": usage}
    answers = ask_all(both, (200, EVENTS, frame(*events, END, last, DONE)), tools=False)
    for (dialect, stream), got in answers.items():
        if dialect not in ("chat", "responses"):
            continue
        told = data_of(got["body"])[-1] if stream else json.loads(got["body"])
        counts = told.get("response", told)["usage"]
        details = counts.get("completion_tokens_details") or counts.get("output_tokens_details")
        assert (details or {}).get("reasoning_tokens", 0) == wanted, (dialect, stream, counts)
