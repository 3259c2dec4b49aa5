"""The body of a captured request: what it leaves to chance, and the same request with changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from vllama.base.errors import ConfigError
from vllama.observe.captures.format import Body, Capture

TOP = 10
"""How many of the likeliest tokens are asked for."""
OPTIONS = ("/api/chat", "/api/generate")
"""Routes whose sampling parameters are in `options`."""
TEXTS = (*OPTIONS, "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
"""Routes that generate text."""


def read_body(capture: Capture) -> dict[str, Any]:
    """Return the body of a request. Raises ConfigError if it is not a JSON object, or was cut."""
    body = capture.request.body
    check_whole(capture)
    try:
        value = json.loads(body.content)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(
            f"cannot change the request {capture.id}: its body is not a JSON object",
            hint="send it as it is: without --model",
        )
    return value


def check_whole(capture: Capture) -> None:
    """Raise ConfigError if the body was not kept whole."""
    body = capture.request.body
    if body.cut:
        raise ConfigError(
            f"cannot replay {capture.id}: of its {body.size_bytes} bytes only the first "
            f"{len(body.content)} were kept"
        )


def replace_body(capture: Capture, body: Mapping[str, Any]) -> Capture:
    """Return the request with another body."""
    content = json.dumps(body, ensure_ascii=False).encode(errors="surrogatepass")
    headers = {
        name: value for name, value in capture.request.headers.items() if name != "content-encoding"
    }
    request = msgspec.structs.replace(capture.request, body=Body.of(content), headers=headers)
    return msgspec.structs.replace(capture, request=request)


def with_model(capture: Capture, model: str) -> Capture:
    """Return the request for another model. Raises ConfigError."""
    asked = replace_body(capture, read_body(capture) | {"model": model})
    request = msgspec.structs.replace(asked.request, model=model)
    return msgspec.structs.replace(asked, request=request, model=None)


def with_logprobs(capture: Capture) -> Capture | None:
    """Return the request with log probabilities asked for; None if its route has none."""
    path = capture.request.path
    if path not in (*OPTIONS, "/v1/chat/completions", "/v1/completions"):
        return None
    body = read_body(capture)
    if body.get("logprobs") and (path == "/v1/completions" or body.get("top_logprobs")):
        return None  # it asks for them already
    more = {"logprobs": TOP} if path == "/v1/completions" else {"top_logprobs": TOP}
    return replace_body(capture, body | {"logprobs": True} | more)


def make_greedy(capture: Capture) -> Capture:
    """Return the request at temperature 0. Raises ConfigError."""
    body = read_body(capture)
    if capture.request.path in OPTIONS:
        options = body.get("options")
        body["options"] = {**(options if isinstance(options, dict) else {}), "temperature": 0}
    else:
        body["temperature"] = 0
    return msgspec.structs.replace(replace_body(capture, body), engine=None)


def describe_chance(capture: Capture, *, same_engine: bool) -> str:
    """Return why the same request may be answered otherwise each time, "" if it may not.

    A seed means something else to another engine. What the engine was sent counts; for a capture
    without that, what the client asked for.
    """
    if capture.request.path not in TEXTS:
        return ""
    sampling = find_sampling(capture)
    temperature, seed = sampling.get("temperature"), sampling.get("seed")
    if temperature == 0 or sampling.get("top_k") == 1:
        return ""
    if isinstance(seed, int) and seed >= 0:
        if same_engine:
            return ""
        return f"it samples with a seed ({seed}), which means something else to another engine"
    what = "at its default temperature" if temperature is None else f"at temperature {temperature}"
    return f"it samples {what}, without a seed"


def find_sampling(capture: Capture) -> Mapping[str, Any]:
    """Return the sampling parameters of a request."""
    if capture.engine is not None and capture.engine.sampling:
        return capture.engine.sampling
    try:
        body = read_body(capture)
    except ConfigError:
        return {}
    if capture.request.path not in OPTIONS:
        return body
    options = body.get("options")
    return options if isinstance(options, dict) else {}
