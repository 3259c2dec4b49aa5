# SPDX-License-Identifier: MIT
"""The bytes of the synthetic engine's answers, in the framing of vLLM's server. Pure functions.

Every token is the text `` ~`` + the monotonic clock in microseconds (13 digits) + `UTF8` where the
prompt asks for it. An event is built once per answer; `engine.py` writes the stamp into it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

DIRECTIVE = re.compile(
    rb"@(tokens|rate|ttft|status|abort|stall|think|tool|utf8|burst)\b(?:=(\d+))?"
)
UTF8 = 'é\n"€😀'  # sent in a stream as raw bytes and as both kinds of JSON escape
UTF8_JSON = 'é\\n\\"\\u20ac😀'
STAMP_DIGITS = 13
TOOL_CALL = {
    "id": "chatcmpl-tool-0123456789abcdef",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Paris", "unit": "c"}'},
}
HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\nserver: synthetic\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def directives(text: bytes) -> dict[str, int]:
    """Return the directives in a prompt: `@rate=50 @utf8` → `{"rate": 50, "utf8": 1}`."""
    return {k.decode(): int(v) if v else 1 for k, v in DIRECTIVE.findall(text)}


def frame(body: bytes) -> bytes:
    """Return one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def error(message: str, kind: str, code: int) -> dict:
    """Return the body of a refusal."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


@dataclass(frozen=True, kw_only=True)
class Ask:
    """The parts of a completion request on which the answer depends."""

    chat: bool
    rid: str
    model: str
    created: int
    tokens: int
    prompt_tokens: int
    utf8: bool
    tool: bool
    finish: str
    usage: bool
    reasoning_field: str

    @property
    def counts(self) -> dict:
        """The usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.tokens,
            "completion_tokens": self.tokens,
            "prompt_tokens_details": None,
        }


def whole(ask: Ask, stamp: int, think: int) -> dict:
    """Return the document of a whole answer; its first `think` tokens are reasoning."""
    token = f" ~{stamp:0{STAMP_DIGITS}d}{UTF8 if ask.utf8 else ''}"
    think = min(think, ask.tokens)
    choice: dict = {"index": 0, "logprobs": None, "finish_reason": ask.finish, "stop_reason": None}
    if ask.chat:
        choice["message"] = {
            "role": "assistant",
            "content": token * (ask.tokens - think),
            "refusal": None,
            "tool_calls": [TOOL_CALL] if ask.tool else [],
            ask.reasoning_field: token * think or None,
        }
    else:
        choice["text"] = token * ask.tokens
    return {
        "id": ask.rid,
        "object": "chat.completion" if ask.chat else "text_completion",
        "created": ask.created,
        "model": ask.model,
        "choices": [choice],
        "usage": ask.counts,
        "prompt_logprobs": None,
    }


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A streamed answer, split at the stamps: head, `pre` + stamp + `suf` for each token, tail."""

    head: bytes
    pre: bytes
    pre_think: bytes
    suf: bytes
    tail: bytes


def stream(ask: Ask) -> Parts:
    """Return the parts of a streamed answer."""
    kind = "chat.completion.chunk" if ask.chat else "text_completion"
    common = (
        f'{{"id":"{ask.rid}","object":"{kind}","created":{ask.created},'
        f'"model":{json.dumps(ask.model)},'
    )

    def event(rest: str) -> bytes:
        return frame(f"data: {common}{rest}\n\n".encode())

    def delta(value: str, finish: str = "null", more: str = "") -> bytes:
        return event(
            f'"choices":[{{"index":0,"delta":{{{value}}},"logprobs":null,'
            f'"finish_reason":{finish}{more}}}]}}'
        )

    def text(value: str, finish: str = "null") -> bytes:
        return event(
            f'"choices":[{{"index":0,"text":"{value}","logprobs":null,"finish_reason":{finish},'
            '"stop_reason":null}],"usage":null}'
        )

    token = " ~" + "0" * STAMP_DIGITS + (UTF8_JSON if ask.utf8 else "")
    head, tail = HEAD, b""
    if ask.chat:
        head += event(
            '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
            '"finish_reason":null}],"prompt_token_ids":null}'
        )
        ids = ',"token_ids":null'
        plain = delta(f'"content":"{token}"', more=ids)
        think = delta(f'"{ask.reasoning_field}":"{token}"', more=ids)
        if ask.tool:
            tail += b"".join(delta(f'"tool_calls":[{call}]') for call in tool_deltas())
        tail += delta('"content":""', f'"{ask.finish}"', ',"stop_reason":null' + ids)
    else:
        plain = think = text(token)
        tail += text("", f'"{ask.finish}"')
    if ask.usage:
        tail += event(f'"choices":[],"usage":{json.dumps(ask.counts, separators=(",", ":"))}}}')
    cut, cut_think = plain.index(b"~") + 1, think.index(b"~") + 1
    return Parts(
        head=head,
        pre=plain[:cut],
        pre_think=think[:cut_think],
        suf=plain[cut + STAMP_DIGITS :],
        tail=tail + frame(b"data: [DONE]\n\n") + b"0\r\n\r\n",
    )


def tool_deltas() -> list[str]:
    """Return the tool call in three deltas: its name, then the arguments in two parts."""
    function = TOOL_CALL["function"]
    arguments = function["arguments"]
    first = (
        f'{{"id":"{TOOL_CALL["id"]}","type":"function","index":0,'
        f'"function":{{"name":"{function["name"]}","arguments":""}}}}'
    )
    return [first] + [
        f'{{"index":0,"function":{{"arguments":{json.dumps(part)}}}}}'
        for part in (arguments[:8], arguments[8:])
    ]


def models(model: str) -> dict:
    """Return the list of models, with one model."""
    entry = {"id": model, "object": "model", "created": 1700000000, "owned_by": "synthetic"}
    return {"object": "list", "data": [entry | {"max_model_len": 32768}]}


def embeddings(request: dict, model: str, dim: int) -> dict:
    """Return one made-up vector of `dim` numbers for each input."""
    inputs = request.get("input", "")
    one = isinstance(inputs, str) or (inputs and isinstance(inputs[0], int))
    n = 1 if one else len(inputs)
    vector = [round((i % 17) / 17 - 0.5, 6) for i in range(dim)]
    return {
        "object": "list",
        "model": model,
        "data": [{"object": "embedding", "index": i, "embedding": vector} for i in range(n)],
        "usage": {"prompt_tokens": 8 * n, "total_tokens": 8 * n},
    }
