"""Compares two answers to one request: what is the same whatever a model says, and how fast.

Compared are the status, the content type, an error's text, and every key of every object with its
value. Of numbers that count or time, of ids and of a model's words only the type is. The chunks of
a stream are taken together, so that their number does not matter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

VARIABLE = re.compile(
    r"created|_duration|^id$|modified_at|digest|expires_at|size|system_fingerprint|request_id"
    r"|^version$|item_id|call_id|_at$|load_|embeddings?$|parent_model|owned_by|_count$|_tokens$"
    r"|^sequence_number$"
    r"|^(done|finish|stop)_reason$|^status$"
)
WORDS = re.compile(
    r"^(content|response|thinking|text|arguments|reasoning|delta|context|token|bytes|logprob"
    r"|logprobs|top_logprobs|partial_json|encrypted_content|rendered_template)$"
)
FROM = re.compile(r"(?m)^FROM .*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer; `type` is the content type."""

    status: int
    type: str
    body: str


def find_differences(theirs: Answer, ours: Answer) -> list[str]:
    """Return how `ours` differs: its status, type, error, or the keys of its objects."""
    if theirs.status != ours.status:
        return [f"status {theirs.status} → {ours.status}"]
    found = []
    if _media_type(theirs) != _media_type(ours):
        found.append(f"type {theirs.type} → {ours.type}")
    if theirs.status >= 400:
        said, says = (_without_ids(answer.body) for answer in (theirs, ours))
        return [*found, *([f"error {said} → {says}"] if said != says else [])]
    left, right = _collect(theirs), _collect(ours)
    found += [f"missing {key}" for key in sorted(left.keys() - right.keys())]
    found += [f"extra {key}" for key in sorted(right.keys() - left.keys())]
    for key in sorted(left.keys() & right.keys()):
        if left[key] != right[key]:
            found.append(f"value {key}: {sorted(left[key])[:3]} → {sorted(right[key])[:3]}")
    return found


def _media_type(answer: Answer) -> str:
    return answer.type.partition(";")[0]


def _without_ids(body: str) -> str:
    text = re.sub(r"req_[0-9a-zA-Z]+", "req_", body)
    try:
        return json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)
    except ValueError:
        return text.strip()


def _collect(answer: Answer) -> dict[str, set[str]]:
    """Return the values of every key, over all objects of an answer."""
    out: dict[str, set[str]] = {}
    for value in _documents(answer):
        for key, shown in _walk(value, "", ""):
            out.setdefault(key, set()).add(shown)
    return out


def _documents(answer: Answer) -> Iterator[object]:
    if "event-stream" in answer.type:
        for line in answer.body.splitlines():
            if line.startswith("data: "):
                yield _decode(line.removeprefix("data: "))
    elif "ndjson" in answer.type:
        yield from map(_decode, answer.body.splitlines())
    elif answer.body.strip():
        yield _decode(answer.body)


def _decode(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _walk(value: object, path: str, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        if not value:
            yield path, "{}"
        # what an event of a stream has depends on its type
        label = value.get("type") if isinstance(value.get("type"), str) and not path else ""
        for key, item in value.items():
            yield from _walk(item, f"{label}{path}.{key}", key)
    elif isinstance(value, list):
        yield path, "[…]" if value else "[]"
        for item in value[:1]:
            yield from _walk(item, f"{path}[]", name)
    else:
        yield path, _show(value, name)


def _show(value: object, name: str) -> str:
    kind = "null" if value is None else type(value).__name__.replace("float", "int")
    if name == "modelfile" and isinstance(value, str):
        value = FROM.sub("FROM x", value)
    if name in ("parameters", "modelfile") and isinstance(value, str):
        value = "\n".join(sorted(value.splitlines()))  # Ollama shuffles the parameters
    fixed = kind != "null" and not VARIABLE.search(name) and not WORDS.search(name)
    return json.dumps(value, ensure_ascii=False) if fixed else kind
