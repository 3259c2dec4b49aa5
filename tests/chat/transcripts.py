# ruff: noqa: E501 (as recorded)
"""Engines' streams.

The first five are of `llama_cpp.server` 0.3.36 (SmolLM2-135M-Instruct Q4_1), recorded 2026-11-21
with shortened ids; the others follow measurements of the other engines.
"""

from __future__ import annotations

CHAT = (
    b'data: {"id": "chatcmpl-1", "model": "m", "created": 1795264126, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"role": "assistant"}, "logprobs": null, "finish_reason": null}]}\n\n'
    b'data: {"id": "chatcmpl-1", "model": "m", "created": 1795264126, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "I"}, "logprobs": null, "finish_reason": null}]}\n\n'
    b'data: {"id": "chatcmpl-1", "model": "m", "created": 1795264126, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "\'m"}, "logprobs": null, "finish_reason": null}]}\n\n'
    b'data: {"id": "chatcmpl-1", "model": "m", "created": 1795264126, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": " glad"}, "logprobs": null, "finish_reason": null}]}\n\n'
    b'data: {"id": "chatcmpl-1", "model": "m", "created": 1795264126, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": " you"}, "logprobs": null, "finish_reason": null}]}\n\n'
    b'data: {"id": "chatcmpl-1", "model": "m", "created": 1795264126, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "\'re"}, "logprobs": null, "finish_reason": null}]}\n\n'
    b'data: {"id": "chatcmpl-1", "model": "m", "created": 1795264126, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": " here"}, "logprobs": null, "finish_reason": null}]}\n\n'
    b'data: {"id": "chatcmpl-1", "model": "m", "created": 1795264126, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "logprobs": null, "finish_reason": "length"}]}\n\n'
    b"data: [DONE]\n\n"
)

COMPLETION = (
    b'data: {"id": "cmpl-1", "object": "text_completion", "created": 1795264127, "model": "m", "choices": [{"text": " Paris", "index": 0, "logprobs": null, "finish_reason": null}]}\n\n'
    b'data: {"id": "cmpl-1", "object": "text_completion", "created": 1795264127, "model": "m", "choices": [{"text": ".", "index": 0, "logprobs": null, "finish_reason": null}]}\n\n'
    b'data: {"id": "cmpl-1", "object": "text_completion", "created": 1795264127, "model": "m", "choices": [{"text": "\\n", "index": 0, "logprobs": null, "finish_reason": null}]}\n\n'
    b'data: {"id": "cmpl-1", "object": "text_completion", "created": 1795264127, "model": "m", "choices": [{"text": "-", "index": 0, "logprobs": null, "finish_reason": null}]}\n\n'
    b'data: {"id": "cmpl-1", "object": "text_completion", "created": 1795264127, "model": "m", "choices": [{"text": "", "index": 0, "logprobs": null, "finish_reason": "length"}]}\n\n'
    b"data: [DONE]\n\n"
)

CHAT_LOGPROBS = (
    b'data: {"id": "chatcmpl-1", "model": "m", "created": 1795264127, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"role": "assistant"}, "logprobs": null, "finish_reason": null}]}\n\n'
    b'data: {"id": "chatcmpl-1", "model": "m", "created": 1795264127, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "I"}, "logprobs": {"content": [{"token": "I", "bytes": null, "logprob": -2.2280375957489014, "top_logprobs": [{"token": "I", "logprob": -2.2280375957489014, "bytes": null}, {"token": "Hello", "logprob": -2.4934566020965576, "bytes": null}]}], "refusal": null}, "finish_reason": null}]}\n\n'
    b'data: {"id": "chatcmpl-1", "model": "m", "created": 1795264127, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "\'m"}, "logprobs": {"content": [{"token": "\'m", "bytes": null, "logprob": -0.17909346520900726, "top_logprobs": [{"token": "\'m", "logprob": -0.17909346520900726, "bytes": null}, {"token": " hope", "logprob": -3.3647356033325195, "bytes": null}]}], "refusal": null}, "finish_reason": null}]}\n\n'
    b'data: {"id": "chatcmpl-1", "model": "m", "created": 1795264127, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "logprobs": null, "finish_reason": "length"}]}\n\n'
    b"data: [DONE]\n\n"
)

COMPLETION_LOGPROBS = (
    b'data: {"id": "cmpl-1", "object": "text_completion", "created": 1795264128, "model": "m", "choices": [{"text": ")", "index": 0, "logprobs": {"tokens": [")"], "text_offset": [3], "token_logprobs": [-1.264532446861267], "top_logprobs": [{")": -1.264532446861267, ").": -3.5937790870666504}]}, "finish_reason": null}]}\n\n'
    b'data: {"id": "cmpl-1", "object": "text_completion", "created": 1795264128, "model": "m", "choices": [{"text": "\\n", "index": 0, "logprobs": {"tokens": ["\\n"], "text_offset": [4], "token_logprobs": [-2.00614333152771], "top_logprobs": [{"\\n": -2.00614333152771, " =": -2.199939489364624}]}, "finish_reason": null}]}\n\n'
    b'data: {"id": "cmpl-1", "object": "text_completion", "created": 1795264128, "model": "m", "choices": [{"text": "", "index": 0, "logprobs": null, "finish_reason": "length"}]}\n\n'
    b"data: [DONE]\n\n"
)

FORCED_TOOL = (
    b'data: {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1795264128, "model": "m", "choices": [{"index": 0, "finish_reason": null, "logprobs": null, "delta": {"role": "assistant", "content": null, "function_call": null, "tool_calls": null}}]}\n\n'
    b'data: {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1795264128, "model": "m", "choices": [{"index": 0, "finish_reason": null, "logprobs": null, "delta": {"role": null, "content": null, "function_call": {"name": "weather", "arguments": "{"}, "tool_calls": [{"index": 0, "id": "call__0_weather_cmpl-1", "type": "function", "function": {"name": "weather", "arguments": "{"}}]}}]}\n\n'
    b'data: {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1795264128, "model": "m", "choices": [{"index": 0, "finish_reason": null, "logprobs": null, "delta": {"role": null, "content": null, "function_call": {"name": "weather", "arguments": " \\""}, "tool_calls": [{"index": 0, "id": "call__0_weather_cmpl-1", "type": "function", "function": {"name": "weather", "arguments": " \\""}}]}}]}\n\n'
    b'data: {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1795264128, "model": "m", "choices": [{"index": 0, "finish_reason": null, "logprobs": null, "delta": {"role": null, "content": null, "function_call": {"name": "weather", "arguments": "city"}, "tool_calls": [{"index": 0, "id": "call__0_weather_cmpl-1", "type": "function", "function": {"name": "weather", "arguments": "city"}}]}}]}\n\n'
    b'data: {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1795264128, "model": "m", "choices": [{"index": 0, "finish_reason": null, "logprobs": null, "delta": {"role": null, "content": null, "function_call": {"name": "weather", "arguments": "\\":"}, "tool_calls": [{"index": 0, "id": "call__0_weather_cmpl-1", "type": "function", "function": {"name": "weather", "arguments": "\\":"}}]}}]}\n\n'
    b'data: {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1795264128, "model": "m", "choices": [{"index": 0, "finish_reason": null, "logprobs": null, "delta": {"role": null, "content": null, "function_call": {"name": "weather", "arguments": " \\""}, "tool_calls": [{"index": 0, "id": "call__0_weather_cmpl-1", "type": "function", "function": {"name": "weather", "arguments": " \\""}}]}}]}\n\n'
    b'data: {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1795264128, "model": "m", "choices": [{"index": 0, "finish_reason": null, "logprobs": null, "delta": {"role": null, "content": null, "function_call": {"name": "weather", "arguments": "Paris"}, "tool_calls": [{"index": 0, "id": "call__0_weather_cmpl-1", "type": "function", "function": {"name": "weather", "arguments": "Paris"}}]}}]}\n\n'
    b'data: {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1795264128, "model": "m", "choices": [{"index": 0, "finish_reason": null, "logprobs": null, "delta": {"role": null, "content": null, "function_call": {"name": "weather", "arguments": "\\""}, "tool_calls": [{"index": 0, "id": "call__0_weather_cmpl-1", "type": "function", "function": {"name": "weather", "arguments": "\\""}}]}}]}\n\n'
    b'data: {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1795264128, "model": "m", "choices": [{"index": 0, "finish_reason": null, "logprobs": null, "delta": {"role": null, "content": null, "function_call": {"name": "weather", "arguments": " }"}, "tool_calls": [{"index": 0, "id": "call__0_weather_cmpl-1", "type": "function", "function": {"name": "weather", "arguments": " }"}}]}}]}\n\n'
    b'data: {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1795264128, "model": "m", "choices": [{"index": 0, "finish_reason": null, "logprobs": null, "delta": {"role": null, "content": null, "function_call": {"name": "weather", "arguments": ""}, "tool_calls": [{"index": 0, "id": "call__0_weather_cmpl-1", "type": "function", "function": {"name": "weather", "arguments": ""}}]}}]}\n\n'
    b'data: {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1795264128, "model": "m", "choices": [{"index": 0, "finish_reason": "tool_calls", "logprobs": null, "delta": {"role": null, "content": null, "function_call": null, "tool_calls": null}}]}\n\n'
    b"data: [DONE]\n\n"
)


def _event(text: str) -> bytes:
    return b"data: " + text.encode() + b"\n\n"


_VLLM = (
    '{"id":"chatcmpl-7","object":"chat.completion.chunk","created":1,"model":"engine","choices":'
)


def _vllm(delta: str, finish: str = "null") -> bytes:
    choice = f'"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish},"token_ids":null'
    return _event(_VLLM + "[{" + choice + "}]}")


DONE = _event("[DONE]")
VLLM_USAGE = _event(
    _VLLM + '[],"usage":{"prompt_tokens":11,"total_tokens":14,"completion_tokens":3}}'
)
VLLM_REASONING = (
    _vllm('{"role":"assistant","content":""}')
    + _vllm('{"reasoning":"Hm, "}')
    + b": keepalive\n\n"
    + _vllm('{"reasoning":"4 < 5 & so."}')
    + _vllm('{"content":"Grüße 😀"}')
    + _vllm('{"content":"."}', '"stop"')
    + VLLM_USAGE
    + DONE
)
VLLM_TOOLS = (
    _vllm('{"role":"assistant","content":""}')
    + _vllm('{"content":"Let me look."}')
    + _vllm(
        '{"tool_calls":[{"id":"chatcmpl-tool-a","type":"function","index":0,'
        '"function":{"name":"weather"}}]}'
    )
    + _vllm('{"tool_calls":[{"index":0,"function":{"arguments":"{\\"city\\": "}}]}')
    + _vllm('{"tool_calls":[{"index":0,"function":{"arguments":"\\"Paris\\"}"}}]}')
    + _vllm('{"tool_calls":[{"type":"function","index":1,"function":{"name":"now"}}]}')
    + _vllm("{}", '"tool_calls"')
    + VLLM_USAGE
    + DONE
)
VLLM_BROKEN_TOOL = (
    _vllm(
        '{"tool_calls":[{"id":"x","type":"function","index":0,'
        '"function":{"name":"weather","arguments":"{\\"city\\": \\"Par"}}]}'
    )
    + _vllm("{}", '"length"')
    + DONE
)
VLLM_ABORT = _vllm('{"content":"one"}') + _vllm('{"content":" two"}', '"abort"') + DONE
VLLM_ERROR = (
    _vllm('{"content":"one"}')
    + _event('{"error":{"message":"EngineCore died: see /opt/vllm/engine/core.py","code":500}}')
    + DONE
)
TRANSFORMERS = (  # no [DONE], usage inside the finish chunk, finish_reason missing at first
    _event('{"id":"req","model":"/models/x","choices":[{"index":0,"delta":{"role":"assistant"}}]}')
    + _event('{"id":"req","model":"/models/x","choices":[{"index":0,"delta":{"content":"Hi"}}]}')
    + _event(
        '{"id":"req","model":"/models/x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
        '"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}'
    )
).replace(b"\n", b"\r\n")
NATIVE = (
    _event('{"choices":[{"index":0,"delta":{"role":"assistant","content":null}}],"id":"n"}')
    + b":\n\n"
    + _event('{"choices":[{"index":0,"delta":{"reasoning_content":"why"}}],"id":"n"}')
    + _event('{"choices":[{"index":0,"delta":{"content":"yes"}}],"id":"n"}')
    + _event(
        '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"id":"n","timings":'
        '{"cache_n":4,"prompt_n":6,"prompt_ms":2.5,"predicted_n":9,"predicted_ms":100.25}}'
    )
    + DONE
)
THINK_TEXT = (
    _vllm('{"role":"assistant"}')
    + _vllm('{"content":"<th"}')
    + _vllm('{"content":"ink>\\nlet me"}')
    + _vllm('{"content":" see\\n</thi"}')
    + _vllm('{"content":"nk>\\n\\nFour"}')
    + _vllm('{"content":"."}')
    + _vllm("{}", '"stop"')
    + DONE
)
TOOL_TEXT = (
    _vllm('{"role":"assistant"}')
    + _vllm('{"content":"<tool"}')
    + _vllm('{"content":"_call>\\n{\\"name\\": \\"weather\\", "}')
    + _vllm('{"content":"\\"arguments\\": {\\"city\\": \\"Paris\\"}}\\n</tool_call>"}')
    + _vllm("{}", '"stop"')
    + DONE
)
CUT = b"".join(CHAT.partition(b'{"index": 0, "delta": {}')[0].rpartition(b"data: ")[:1])
