"""Sends a captured request again, changed or not, and judges the answer.

The server is one that runs, or one that is started for it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from vllama.base.errors import ConfigError, VllamaError
from vllama.lab.judge import TEXTS_DIFFER, Judgement, judge
from vllama.lab.own_server import OwnServer, open_own_server
from vllama.observe.captures.format import Body, Capture, CapturedAnswer, Piece, encode_parts
from vllama.observe.captures.reading import TEXT, Reading, read_answer

if TYPE_CHECKING:
    from vllama.cli.client import Client

SENT_HEADERS = ("content-type", "content-encoding", "accept", "anthropic-version", "anthropic-beta")
"""The headers of a captured request that change its answer."""
KEPT_SETTINGS = ("max_tokens", "gpu_layers", "go_template", "flash_attention", "kv_cache_type")
"""Settings of the capturing server that a server for a replay is started with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One replay: what the new answer says, who gave it and when, and how far it is the same."""

    engine: str
    reading: Reading
    total_s: float
    judgement: Judgement


def replay_once(
    client: Client, captured: Capture, request: Capture, *, max_kl: float, logprobs: bool
) -> Replay:
    """Send `request` and compare its answer with the captured one. Raises VllamaError.

    If the texts differ and `logprobs`, it is sent once more, to learn how close the call was.
    """
    request = with_seed(request)
    answer = send_capture(client, request)
    engine, version = find_engine(client, find_model(request))
    known = captured.engine
    same_engine = known is not None and (known.name, known.version) == (engine, version)
    chance = describe_chance(request, same_engine=same_engine)
    before = read_answer(captured.request.path, captured.answer)
    reading = read_answer(request.request.path, answer)
    judgement = judge(before, reading, chance=chance, max_kl=max_kl)
    if logprobs and judgement.reason == TEXTS_DIFFER and (probe := with_logprobs(request)):
        probed = read_answer(request.request.path, send_capture(client, probe))
        if _get_text(probed) == _get_text(reading):
            judgement = judge(before, probed, chance=chance, max_kl=max_kl)
    label = " ".join(part for part in (engine, version) if part)
    total_s = answer.parts[-1].at_s if answer.parts else 0.0
    return Replay(engine=label, reading=reading, total_s=total_s, judgement=judgement)


def _get_text(reading: Reading) -> bytes | None:
    said = reading.texts.get(TEXT)
    return said.text if said else None


def find_model(capture: Capture) -> str:
    """Return the name by which a server lists the model of a request."""
    return capture.model.name if capture.model else capture.request.model


def open_server_for(
    capture: Capture, *, label: str, engine: str | None, changes: Mapping[str, str]
) -> AbstractContextManager[OwnServer]:
    """Start a server for a capture as the capturing one was started, with `changes`."""
    known, settings = capture.engine, dict[str, object]()
    if known is not None:
        settings = {key: capture.settings[key] for key in KEPT_SETTINGS if key in capture.settings}
        settings["context_length"] = known.context_length
        if known.extra_args and engine in (None, known.name):
            settings["engine_args"] = shlex.join(known.extra_args)
    return open_own_server(
        find_model(capture),
        purpose=f"replay {capture.id}",
        label=label,
        engine=engine or (known.name if known else None),
        **{**settings, **changes},
    )


def parse_changes(given: Sequence[str]) -> dict[str, str]:
    """Read settings as `KEY=VALUE`, by the key of the config file. Raises ConfigError."""
    from vllama.config import SETTINGS
    from vllama.config.removed import suggest_setting

    by_name = {name: one for one in SETTINGS for name in (one.field, one.key, (one.flag or "")[2:])}
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        setting = by_name.get(name.strip())
        if not equals or setting is None:
            reason = "use KEY=VALUE" if not equals else f"'{name}' is not a setting"
            raise ConfigError(
                f"cannot set '{text}': {reason}",
                hint=suggest_setting(name, by_name),
            )
        try:
            setting.kind.parse(value.strip())
        except ValueError as error:
            raise ConfigError(f"cannot set '{text}': {error}") from None
        found[setting.key] = value.strip()
    return found


def send_capture(client: Client, capture: Capture) -> CapturedAnswer:
    """Send a request again, and return its new answer.

    Raises VllamaError if there is no answer, or only a part of one.
    """
    request = capture.request
    given = {name: value for name in SENT_HEADERS if (value := request.headers.get(name))}
    status, content_type, parts = client.exchange(
        request.method, request.path, given, request.body.content
    )
    encoding, texts = encode_parts([part for _, part in parts])
    times = [round(at_s, 6) for at_s, _ in parts]
    return CapturedAnswer(
        status=status,
        content_type=content_type,
        size_bytes=sum(len(part) for _, part in parts),
        encoding=encoding,
        parts=[Piece(at_s, text) for at_s, text in zip(times, texts, strict=True)],
    )


def find_engine(client: Client, model: str) -> tuple[str, str]:
    """Return the name and version of the engine that serves a model; "" for what is unknown."""
    try:
        rows: list[dict[str, Any]] = client.get("/api/ps").get("models") or []
    except VllamaError:  # another server, which has no such route
        return "", ""
    fitting = [row for row in rows if model in (row.get("name"), row.get("model"))]
    fitting = fitting or [row for row in rows if str(row.get("name")).startswith(f"{model}:")]
    row = (fitting or (rows if len(rows) == 1 else [{}]))[0]
    return str(row.get("engine") or ""), str(row.get("engine_version") or "")


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
            hint="replay it without --model",
        )
    return value


def check_whole(capture: Capture) -> None:
    """Raise ConfigError if the body was not kept whole."""
    body = capture.request.body
    if body.cut:
        raise ConfigError(
            f"cannot replay {capture.id}: only {len(body.content)} of its {body.size_bytes} bytes "
            "were saved"
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


def with_seed(capture: Capture) -> Capture:
    """Return the request with the seed that the engine was sent: the server chooses one itself."""
    path, seed = capture.request.path, find_sampling(capture).get("seed")
    if path not in TEXTS or capture.engine is None or not isinstance(seed, int):
        return capture
    body = read_body(capture)
    if path in ("/v1/chat/completions", "/v1/completions"):
        return replace_body(capture, body | {"seed": seed})
    options = {**(body.get("options") or {}), "seed": seed}
    return replace_body(capture, body | {"options": options})


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
        return f"it samples with a seed ({seed}), which another engine uses differently"
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
