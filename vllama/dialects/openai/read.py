"""Bodies of OpenAI's form: bytes to a `ChatRequest`, or BadRequest with OpenAI's words.

The fields of `request_types` have their types when they are read; `3.0` is an integer. What
a model or an engine cannot take is found out when the engine's body is built.

The bodies of Anthropic's messages and of the Responses API get this form first. Nothing here
depends on the engine: fields that only engines understand are passed on in `extra`.

See docs/reference/ollama-api.md#openai-chat-completions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from vllama.base.errors import BadRequest
from vllama.chat.bodies import Body, decode_object, encode_json, find_error
from vllama.chat.engine.request_fields import check_code, check_nested, find_customs, take_tools
from vllama.chat.logprobs import check_top_logprobs
from vllama.chat.parsers.call_values import ToolCall, object_of
from vllama.chat.request import MAX_TOOLS, ChatRequest, Message
from vllama.dialects.ollama.read import make_format_error
from vllama.dialects.ollama.request_types import is_base64
from vllama.dialects.openai.extras import (
    NOTHING,
    Extras,
    parse_effort,
    read_effort,
    refuse_type,
)
from vllama.dialects.openai.request_types import IMAGE_URI, OpenAIBody

_NUMBERS = (
    "temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "repetition_penalty",
    "presence_penalty", "frequency_penalty",
)  # fmt: skip
_INTEGERS = ("top_k", "repeat_last_n", "num_keep", "seed")
# what Ollama has for OpenAI's chats and completions in place of a model's own
NEUTRAL: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0}
_FORMATS = ("text", "json_object", "json_schema", "structural_tag")
_OURS = {"repetition_penalty": "repeat_penalty"}  # vLLM's name


def parse_openai(body: bytes, python_type: type[Body] = OpenAIBody) -> dict[str, Any]:
    """Decode a `/v1` body: an object, top-level keys in lower case.

    Fields that Ollama knows have their types. Raises BadRequest, and Forbidden for a field that
    may be code.
    """
    source = decode_object(body)
    if not "".join(source).islower():
        source = {key.lower(): value for key, value in source.items()}
    check_code(source)
    names = python_type.__struct_encode_fields__
    known = {name: source[name] for name in names if source.get(name) is not None}
    if problem := find_error(known, python_type):
        raise BadRequest(problem)
    return source


def read_chat(
    body: Mapping[str, Any],
    extras: Extras = NOTHING,
    *,
    truncate: bool | None = True,
    assumed: Mapping[str, Any] = NEUTRAL,
    may_be_empty: bool = False,
) -> ChatRequest:
    """Read a chat, without the `extras` that were taken out of it. Raises BadRequest.

    `assumed` are the dialect's values of parameters that are absent; the others are the model's.
    `may_be_empty`: without messages a request loads
    the model. As in Ollama, messages are looked at first, and a `stop` or a `response_format` that
    says nothing is left out.
    """
    rest = {name: value for name, value in body.items() if value is not None}
    given = rest.pop("messages", None)
    if not (given or may_be_empty):
        raise BadRequest("[] is too short - 'messages'")
    passed_over: list[str] = []
    last = len(given or ()) - 1
    messages = tuple(
        _message(number, item or {}, passed_over, is_last=number == last)
        for number, item in enumerate(given or ())
    )
    logprobs, top_logprobs = rest.pop("logprobs", False), int(rest.pop("top_logprobs", 0))
    check_top_logprobs(top_logprobs)
    effort = parse_effort(read_effort(rest))
    for name in ("reasoning_effort", "reasoning"):
        rest.pop(name, None)
    if not isinstance(rest.get("user", ""), str):  # of no use to anybody, and engines refuse it
        del rest["user"]
    if "min_tokens" in rest:
        rest["min_tokens"] = max(0, int(rest["min_tokens"]))
    return ChatRequest(
        model=rest.pop("model", ""),
        messages=messages,
        stream=rest.pop("stream", False),
        include_usage=rest.pop("stream_options", {}).get("include_usage") is True,
        response_format=_response_format(rest),
        customs=find_customs(rest.get("tools", ())),
        tools=_tools(rest, passed_over),
        tool_choice=_tool_choice(rest),
        parallel_tool_calls=rest.pop("parallel_tool_calls", None),
        logprobs=logprobs,
        top_logprobs=top_logprobs if logprobs else 0,
        n=int(rest.pop("n", 1)),
        think=extras.think if effort is None else effort,
        effort=effort is not None,
        parameters=_parameters(rest),
        assumed=assumed,
        options=extras.options,
        keep_alive=extras.keep_alive,
        truncate=truncate,
        shift=extras.shift,
        inspect=extras.inspect,
        extra=rest,
        passed_over=tuple(dict.fromkeys(passed_over)),
    )


def _response_format(rest: dict[str, Any]) -> Mapping[str, Any] | None:
    given: Any = rest.pop("response_format", None)
    if not given and not isinstance(given, str):
        return None
    if not isinstance(given, dict):
        raise BadRequest("Invalid value for 'response_format': expected an object.")
    kind, named = given.get("type"), given.get("json_schema")
    kind = kind.strip().lower() if isinstance(kind, str) else kind  # as Ollama reads it
    if kind not in _FORMATS:
        raise BadRequest(
            f"Invalid value for 'response_format.type': {str(kind)[:80]!r}. Supported values are: "
            f"{', '.join(map(repr, _FORMATS))}."
        )
    if kind == "json_schema":
        schema = named.get("schema") if isinstance(named, dict) else None
        if schema is None:
            raise BadRequest("Missing required parameter: 'response_format.json_schema.schema'.")
        if not isinstance(schema, dict):
            raise make_format_error(schema)
    return None if kind == "text" else {**given, "type": kind}


def _tool_choice(rest: dict[str, Any]) -> object:
    choice = rest.pop("tool_choice", None)
    if isinstance(choice, dict):
        check_nested("tool_choice", choice)
    return _name_functions(choice)


def _name_functions(choice: object) -> object:
    """Return a choice with functions in the place of custom tools."""
    match choice:
        case "any" | {"type": "any" | "required"}:
            return "required"
        case {"type": "auto" | "none" as mode}:
            return mode
        case {"type": "tool" | "function" | "custom", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case {"type": "custom", "custom": {"name": name}}:
            return {"type": "function", "function": {"name": name}}
        case {"allowed_tools": {"tools": list(tools), **rest}}:
            allowed = {**rest, "tools": [_name_functions(tool) for tool in tools]}
            return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice


def _tools(rest: dict[str, Any], passed_over: list[str]) -> tuple[dict[str, Any], ...]:
    tools = rest.pop("tools", ())
    if not tools:
        return ()
    if len(tools) > MAX_TOOLS:
        raise BadRequest(f"cannot read the request: {len(tools)} tools, at most {MAX_TOOLS}")
    return tuple(take_tools(tools, passed_over))


def _parameters(rest: dict[str, Any]) -> dict[str, Any]:
    """Take the sampling parameters out of a body, by our names."""
    given: dict[str, Any] = {}
    for name in _NUMBERS:
        if name in rest:
            given[_OURS.get(name, name)] = rest.pop(name)
    for name in _INTEGERS:
        if name in rest:
            given[name] = int(rest.pop(name))
    if stop := _stop(rest.pop("stop", None)):
        given["stop"] = stop
    for name in ("max_tokens", "max_completion_tokens"):  # the newer name wins
        if name in rest:
            limit = int(rest.pop(name))
            given["max_tokens"] = None if limit < 0 else limit
    return given


def _stop(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = value if isinstance(value, list) else [value]
    return tuple(text for text in texts if isinstance(text, str) and text)


_READ = frozenset(
    ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning", "reasoning_content",
     "refusal", "function_call")
)  # fmt: skip
_IMAGE_URI = re.compile(IMAGE_URI, re.IGNORECASE)
_OF_CALLS = frozenset(("id", "type", "function", "custom"))
_THOUGHTS = ("thinking", "reasoning")


def _message(
    number: int, item: Mapping[str, Any], passed_over: list[str], *, is_last: bool
) -> Message:
    """Read a turn. What was said earlier is taken as it is, or passed over by name.

    OpenAI allows a response and a tool's result without content, Ollama does not.
    """
    role, content = (item.get("role") or "").lower(), item.get("content")
    if len(item) == 2 and isinstance(content, str):  # as most have it
        return Message(role=role, content=content)
    if role == "tool" and not isinstance(content, str | list | None):
        content = encode_json(content).decode()
    where, is_asked = f"messages[{number}]", role in ("user", "system", "developer", "")
    parts: tuple[dict[str, Any], ...] = ()
    thoughts = [item.get("reasoning"), item.get("reasoning_content")]
    if isinstance(content, list):
        if not is_asked:
            content = _take_thoughts(where, content, thoughts, passed_over)
        parts = _parts(content)
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    elif isinstance(content, str) or (content is None and not (is_asked and is_last)):
        refusal = item.get("refusal")
        text = content or (refusal if isinstance(refusal, str) else "")
    else:
        refuse_type(f"{where}.content", "a string or an array", content)
    extra = _leave_out(item, _READ)
    check_nested(where, extra)
    calls = item.get("tool_calls") or ()
    if not calls and isinstance(old := item.get("function_call"), Mapping):
        calls = ({"function": old},)
    return Message(
        role=role,
        content=text,
        parts=parts,
        has_content=content is not None,
        thinking=max((said for said in thoughts if isinstance(said, str)), key=len, default=None),
        tool_calls=_tool_calls(where, calls, passed_over),
        tool_call_id=str(item.get("tool_call_id") or "") or None,
        tool_name=item.get("name") or None,
        extra=extra,
    )


def _take_thoughts(
    where: str, parts: list[Any], thoughts: list[object], passed_over: list[str]
) -> list[Any]:
    """Return the parts of an earlier response that can be said again; thoughts go to `thoughts`.

    LiteLLM and Mistral's client send thinking back as parts.
    """
    left, said = [], []
    for number, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else "text"
        if kind in _THOUGHTS:
            inner = part.get(kind) or part.get("text")
            inner = inner if isinstance(inner, list) else [{"text": inner}]
            said += [one["text"] for one in inner if isinstance(one, Mapping) and one.get("text")]
        elif kind in _PARTS:
            left.append(part)
        else:
            passed_over.append(f"{where}.content[{number}] {kind}"[:80])
    thoughts += ["".join(map(str, said))] if said else []
    return left


def _leave_out(given: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the fields of other names that are not null."""
    return {name: x for name, x in given.items() if name not in names and x is not None}


def _tool_calls(
    where: str, calls: Sequence[Mapping[str, Any] | None], passed_over: list[str]
) -> tuple[ToolCall, ...]:
    out = []
    for number, given in enumerate(calls):
        call: Mapping[str, Any] = given or {}
        function = call.get("function") or {}
        name, text = function.get("name") or "", function.get("arguments") or ""
        if isinstance(custom := call.get("custom"), Mapping):
            name, text = str(custom.get("name") or ""), {"input": custom.get("input") or ""}
        if not isinstance(text, str):
            text = encode_json(text).decode()
        if not (name or text):
            passed_over.append(f"{where}.tool_calls[{number}]")
            continue
        extra = _leave_out(call, _OF_CALLS)
        check_nested(f"{where}.tool_calls[{number}]", extra)
        out.append(
            ToolCall(
                id=str(call.get("id") or ""),
                name=name,
                arguments=object_of(text) or {},
                index=number,
                text=text,
                extra=extra,
            )
        )
    return tuple(out)


_PARTS = ("text", "input_text", "output_text", "refusal", "image_url", "input_audio")


def _parts(parts: list[object]) -> tuple[dict[str, Any], ...]:
    """Check the parts and spell them as OpenAI does."""
    out: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str):
            out.append({"type": "text", "text": part})
            continue
        if not isinstance(part, Mapping):
            raise BadRequest("invalid message format")
        match part.get("type"):
            case "text" | "input_text" | "output_text" | "refusal":
                text = part.get("text", part.get("refusal"))
                if not isinstance(text, str):
                    raise BadRequest("invalid message format")
                out.append({"type": "text", "text": text})
            case "image_url":
                out.append(_image(part.get("image_url")))
            case "input_audio":
                out.append(_audio(part.get("input_audio")))
            case _:
                raise BadRequest("invalid message format")
    return tuple(out)


def _image(value: object) -> dict[str, Any]:
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str):
        raise BadRequest("invalid message format")
    if url.startswith(("http://", "https://")):  # the engine would fetch it
        raise BadRequest(
            "image URLs are not currently supported, please use base64 encoded data instead"
        )
    if _IMAGE_URI.match(url) is None:
        raise BadRequest("invalid image input")
    image: dict[str, Any] = {"url": url}
    if isinstance(value, Mapping) and isinstance(value.get("detail"), str):
        image["detail"] = value["detail"]
    return {"type": "image_url", "image_url": image}


def _audio(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise BadRequest("invalid input_audio format")
    if not isinstance(value.get("data"), str):
        raise BadRequest("invalid input_audio format: missing data")
    if not is_base64(value["data"]):
        raise BadRequest("invalid input_audio format: data is not base64")
    audio = {"data": value["data"], "format": str(value.get("format") or "wav")}
    return {"type": "input_audio", "input_audio": audio}
