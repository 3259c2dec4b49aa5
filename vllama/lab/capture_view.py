"""A capture as text for people: facts about the request, its texts and those of the response."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from vllama.observe.captures.answer import Response
from vllama.observe.captures.format import Capture, Summary
from vllama.observe.captures.reading import REST, read_answer

NOTHING = "-"


def describe_end(one: Summary) -> str:
    """Return the status of an answer, and how it ended if that was not well."""
    status = str(one.answer.status or NOTHING)
    return status if one.outcome == "ok" else f"{status} {one.outcome}"


def escape_controls(text: str) -> str:
    """Return a text that cannot control the terminal: a client or a model may have written any."""
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else repr(sign)[1:-1] for sign in text
    )


def flatten(text: str) -> str:
    """Return a text in one line that a terminal shows as it is."""
    return escape_controls(text).replace("\n", "\\n").replace("\t", "\\t")


def list_facts(capture: Capture) -> Iterator[tuple[str, str]]:
    """Yield the facts about a request besides its texts."""
    yield "request", f"{capture.request.method} {capture.request.path}"
    yield "id", capture.id
    if capture.request_id != capture.id:
        yield "client's request ID", capture.request_id
    yield "received", capture.received_at
    key = f", key {capture.key}" if capture.key else ""
    yield "client", f"{capture.client or NOTHING}{key}"
    if agent := capture.request.headers.get("user-agent"):
        yield "program", agent
    if model := capture.model:
        form = " ".join(part for part in (model.format, model.quantization) if part)
        yield "model", f"{model.name} ({form}, {model.digest[:12]})"
    else:
        yield "model", capture.request.model or NOTHING
    if engine := capture.engine:
        kept = f", KV cache {engine.kv_cache_type}" if engine.kv_cache_type else ""
        yield "engine", f"{engine.name} {engine.version}, context {engine.context_length}{kept}"
        sampling = (
            f"{name} {value}"
            for name, value in engine.sampling.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        )
        yield "sampling", ", ".join(sampling) or NOTHING
    yield "status", describe_end(capture)
    if capture.error:
        yield "error", capture.error.message
        if capture.error.hint:
            yield "hint", capture.error.hint
    times = capture.times
    parts = [f"{times.total_s:.3f} s"]
    if times.first_token_s is not None:
        parts.append(f"first token after {times.first_token_s:.3f} s")
    if times.queued_s:
        parts.append(f"queued {times.queued_s:.3f} s")
    if times.load_s:
        parts.append(f"of which loading {times.load_s:.3f} s")
    yield "times", ", ".join(parts)
    if tokens := capture.tokens:
        rate = f", {tokens.per_s:.1f} tokens/s" if tokens.per_s else ""
        cached = f" ({tokens.cached} from the cache)" if tokens.cached else ""
        yield "tokens", f"{tokens.prompt} of the prompt{cached}, {tokens.generated} generated{rate}"


def list_questions(capture: Capture) -> Iterator[tuple[str, str]]:
    """Yield the texts of a request; of a body that is no JSON, its beginning."""
    body = capture.request.body
    if body.cut:
        yield (
            "request",
            f"{body.size_bytes} bytes, of which {len(body.content)} were saved",
        )
        return
    try:
        asked = json.loads(body.content)
    except ValueError:
        asked = None
    if not isinstance(asked, dict):
        yield "request", body.data if body.encoding == "utf-8" else f"{body.size_bytes} bytes"
        return
    for field in ("system", "instructions", "prompt", "query", "input", "documents"):
        if value := asked.get(field):
            yield from list_texts(field, value)
    yield from list_texts("messages", asked.get("messages") or [])
    if tools := asked.get("tools"):
        names = [
            (one.get("function") or one).get("name", "?") for one in tools if isinstance(one, dict)
        ]
        yield "tools", ", ".join(map(str, names))


def list_texts(field: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield the texts of a field: of each message, where there are messages."""
    if not isinstance(value, list):
        yield field, render_content(value)
        return
    for item in value:
        if isinstance(item, dict):
            yield str(item.get("role") or item.get("type") or field), render_message(item)
        else:
            yield field, render_content(item)


def render_message(message: dict[str, Any]) -> str:
    """Return a message as text: its content, and below it what else it has."""
    lines = [render_content(message.get("content", message.get("text", "")))]
    if thinking := message.get("thinking"):
        lines.insert(0, f"(thinking) {thinking}")
    if images := message.get("images"):
        lines.append(f"({len(images)} images)")
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        lines.append(f"(call) {function.get('name')}({render_content(function.get('arguments'))})")
    for field in ("name", "arguments", "output"):  # items of the Responses API
        if field in message and "content" not in message:
            lines.append(f"({field}) {render_content(message[field])}")
    return "\n".join(line for line in lines if line)


def render_content(content: object) -> str:
    """Return a content as text: a string, or parts, of which only the texts are shown."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(
            str(part["text"])
            if isinstance(part, dict) and "text" in part
            else f"({part.get('type', 'part')})"
            if isinstance(part, dict)
            else str(part)
            for part in content
        )
    return "" if content is None else json.dumps(content, ensure_ascii=False)


def list_answers(capture: Capture) -> Iterator[tuple[str, str]]:
    """Yield the texts of a response."""
    reading = read_answer(capture.request.path, capture.answer)
    for name, answer in reading.texts.items():
        if answer.text:
            yield f"response, {name}" if name != REST else "response", render_answer(answer)
    for name, values in reading.numbers.items():
        shown = ", ".join(f"{value:.6g}" for value in values[:8])
        yield f"response, {name}", f"[{shown}{', …' if len(values) > 8 else ''}] ({len(values)})"


def render_answer(answer: Response) -> str:
    """Return an answer's text, and whether the limit of tokens has ended it."""
    text = answer.text.decode(errors="replace")
    return f"{text}\n(cut: token limit reached)" if answer.cut else text
