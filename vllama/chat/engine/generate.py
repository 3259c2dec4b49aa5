"""Ollama's `POST /api/generate` at another Ollama or vllama, which leaves raw prompts as they are.

Its `/v1/completions` would put them into the model's template. The lines of its answer are made
into the events of other engines, so that all that follows is the same.

See docs/reference/ollama-api.md#generate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from vllama.base.errors import UpstreamError
from vllama.chat.bodies import has_too_many_values, read_float
from vllama.chat.engine.context import compute_answer_limit
from vllama.chat.engine.fields import need_logprobs
from vllama.chat.engine.traits import Traits
from vllama.chat.framing import DONE, MAX_EVENT_BYTES
from vllama.chat.request import Call, PreparedChat, Sampling

GENERATE_PATH = "/api/generate"


def make_generate_call(
    chat: PreparedChat, source: Mapping[str, Any], sampling: Sampling, traits: Traits
) -> Call:
    """Build the request; `source` has what only this route takes."""
    given = msgspec.structs.asdict(sampling)
    options = {name: x for name, x in given.items() if name not in sampling.left_out}
    for name in ("left_out", "own"):
        options.pop(name, None)
    limit = compute_answer_limit(options.pop("max_tokens", None), traits)
    if limit is not None:
        options["num_predict"] = limit
    body = {**source, "model": traits.model_name or chat.model, "stream": True}
    body["options"] = {**options, **source.get("options", {})}
    if (wanted := chat.response_format) is not None:
        schema = wanted.get("json_schema")
        body["format"] = schema["schema"] if isinstance(schema, Mapping) else "json"
    if chat.logprobs:
        need_logprobs(traits, chat.model)
        body |= {"logprobs": True, "top_logprobs": chat.top_logprobs}
    return Call(path=GENERATE_PATH, fields=body)


class _Line(msgspec.Struct):
    response: str = ""
    thinking: str = ""
    done: bool = False
    done_reason: str = "stop"
    logprobs: list[Any] | None = None
    prompt_eval_count: int | None = None
    prompt_eval_cached_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Line, float_hook=read_float).decode


class GenerateReader:
    """Cuts the stream into lines, and makes each of them the JSON of an event."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def pending(self) -> bool:
        """True if a line has begun whose end has not come."""
        return bool(self._rest)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the events of the lines that `chunk` completes. Raises UpstreamError."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise UpstreamError("the engine sent an incomplete line")
        return [event for line in lines if line.strip() for event in self._read(line)]

    def close(self) -> list[bytes]:
        """Return the events of a last line without a line feed."""
        return self.feed(b"\n")

    def _read(self, line: bytes) -> list[bytes]:
        if has_too_many_values(line):
            raise UpstreamError("cannot use the engine's response: a line has too many values")
        try:
            said = _decode(line)
        except (ValueError, RecursionError):
            raise UpstreamError("the engine sent a line that is not in Ollama's format") from None
        if said.error is not None:
            return [msgspec.json.encode({"error": said.error})]
        choice: dict[str, Any] = {
            "index": 0,
            "delta": {"content": said.response, "reasoning": said.thinking},
            "finish_reason": None,
        }
        if said.logprobs:
            choice["logprobs"] = {"content": said.logprobs}
        if not said.done:
            return [msgspec.json.encode({"choices": [choice]})]
        choice["finish_reason"] = "length" if said.done_reason == "length" else "stop"
        usage: dict[str, Any] = {
            "prompt_tokens": said.prompt_eval_count or 0,
            "completion_tokens": said.eval_count or 0,
        }
        if said.prompt_eval_cached_count is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": said.prompt_eval_cached_count}
        timings = {
            "prompt_ms": (said.prompt_eval_duration or 0) / 1e6,
            "predicted_ms": (said.eval_duration or 0) / 1e6,
        }
        last = {"choices": [choice], "usage": usage, "timings": timings}
        return [msgspec.json.encode(last), DONE]
