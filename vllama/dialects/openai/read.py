"""Bodies of OpenAI's form: bytes to a `ChatRequest`, or BadRequest with OpenAI's words.

The fields of `request_types` have their types when they are read; `3.0` is an integer. What
a model or an engine cannot take is found out when the engine's body is built.

The bodies of Anthropic's messages and of the Responses API get this form first. Nothing here
depends on the engine: fields that only engines understand are passed on in `extra`.

See docs/reference/ollama-api.md#openai-chat-completions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from vllama.base.errors import BadRequest
from vllama.chat.bodies import Body, decode_object, encode_json, find_error
from vllama.chat.conversation import find_last_turn
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
    messages = _messages(given or (), passed_over)
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
        messages=tuple(messages),
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
        raise BadRequest(f"cannot read the request: it has {len(tools)} tools, at most {MAX_TOOLS}")
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
_ASKING = ("user", "system", "developer", "")


def _messages(given: Sequence[Mapping[str, Any] | None], passed_over: list[str]) -> list[Message]:
    roles = [((item or {}).get("role") or "").lower() for item in given]
    last_turn = find_last_turn(roles)
    passed_over += [f"messages[{number}]" for number, item in enumerate(given) if item is None]
    messages = [
        _message(f"messages[{number}]", roles[number], item, passed_over, number >= last_turn)
        for number, item in enumerate(given)
        if item is not None
    ]
    if messages and messages[-1].role in _ASKING and not messages[-1].has_content:
        refuse_type(f"messages[{len(given) - 1}].content", "a string or an array", None)
    return messages


def _message(
    where: str, role: str, item: Mapping[str, Any], passed_over: list[str], is_last: bool
) -> Message:
    """Read a message. What was said before the `is_last` turn is taken, or passed over by name.

    OpenAI allows a response and a tool's result without content, Ollama does not.
    """
    content, is_asked = item.get("content"), is_last and role in _ASKING
    if len(item) == 2 and isinstance(content, str):  # as most have it
        return Message(role=role, content=content)
    if isinstance(content, Mapping) and "type" in content and role != "tool":
        content = [content]  # the only part
    if not (is_asked or isinstance(content, str | list | None)):
        content = encode_json(content).decode()
    parts: tuple[dict[str, Any], ...] = ()
    thoughts = [item.get("reasoning"), item.get("reasoning_content")]
    if isinstance(content, list):
        parts = tuple(_parts(where, content, None if is_asked else passed_over, thoughts))
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    elif isinstance(content, str | None):
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


def _parts(
    where: str, parts: list[object], passed_over: list[str] | None, thoughts: list[object]
) -> Iterator[dict[str, Any]]:
    """Yield the parts as OpenAI spells them; None for `passed_over`: what is no part is refused.

    LiteLLM and Mistral's client send thinking back as parts: it goes to `thoughts`.
    """
    for number, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        try:
            if passed_over is not None and isinstance(part, Mapping) and kind in _THOUGHTS:
                inner = part.get(kind) or part.get("text")
                inner = inner if isinstance(inner, list) else [{"text": inner}]
                said = [x["text"] for x in inner if isinstance(x, Mapping) and x.get("text")]
                thoughts[:] = [*thoughts, "".join(map(str, said))]
            else:
                yield read_part(part)
        except BadRequest:
            if passed_over is None:
                raise
            passed_over.append(f"{where}.content[{number}] {kind}"[:80])


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


def read_part(part: Any) -> dict[str, Any]:
    """Return a part as OpenAI spells it. Raises BadRequest."""
    match part:
        case str():
            return {"type": "text", "text": part}
        case {"type": "text" | "input_text" | "output_text" | "refusal"}:
            if isinstance(text := part.get("text", part.get("refusal")), str):
                return {"type": "text", "text": text}
        case {"type": "image_url"}:
            return _image(part.get("image_url"))
        case {"type": "input_audio"}:
            return _audio(part.get("input_audio"))
        case {"type": "file" | "input_file" | "document"}:
            raise BadRequest(
                "file inputs are not currently supported", hint="send the text of documents"
            )
    raise BadRequest("invalid message format")


def _image(value: object) -> dict[str, Any]:
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str):
        raise BadRequest("invalid message format")
    if url.startswith(("http://", "https://")):  # the engine would fetch it
        raise BadRequest(
            "image URLs are not currently supported, please use base64 encoded data instead"
        )
    if not ((head := _IMAGE_URI.match(url)) and is_base64(url[head.end() :])):
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
