"""The `messages` of an OpenAI client, made fit for the engine behind.

Ollama takes text, images as data URIs, and audio. llama.cpp's Python server cannot take parts,
null content, or the role `developer`.

See docs/reference/ollama-api.md#openai-chat-completions;
docs/reference/engines.md#llama-cpp-python-requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vllama.chat.engine.fields import make_audio_part, map_role
from vllama.chat.engine.traits import Traits, remember_for_traits
from vllama.chat.go_json import encode_json, kind
from vllama.chat.template_style import Style
from vllama.errors import BadRequest, CapabilityMissing
from vllama.parsers.tool_calls import short_id

_DATA_URI = re.compile(r"data:(?:image/(?:jpeg|jpg|png|webp|gif))?;base64,", re.IGNORECASE)


def adapt_messages(
    value: object, traits: Traits, model: str, style: Style | None = None
) -> list[dict[str, Any]]:
    """Rewrite each message per `traits` and `style`. Raises BadRequest, CapabilityMissing."""
    if value is None or value == []:
        raise BadRequest("[] is too short - 'messages'")
    if not isinstance(value, list):
        raise BadRequest(f"Invalid type for 'messages': expected an array, got {kind(value)}.")
    plain = _plain_roles(traits)
    messages = [
        item
        if type(item) is dict
        and len(item) == 2
        and item.get("role") in plain
        and type(item.get("content")) is str
        else _message(number, item, traits, model)
        for number, item in enumerate(value)
    ]
    if style is not None and style.short_ids:
        for message in messages:
            _shorten_ids(message)
    return messages


@remember_for_traits
def _plain_roles(traits: Traits) -> tuple[str, ...]:
    """Return the roles of messages that pass as they are if they have a text and nothing else."""
    roles = ("user", "assistant", "system", "tool")
    return tuple(role for role in roles if traits.roles is None or role in traits.roles)


def _shorten_ids(message: dict[str, Any]) -> None:
    """Write the ids of calls as Mistral's templates want them: nine letters or digits."""
    for call in message.get("tool_calls") or ():
        call["id"] = short_id(str(call.get("id") or ""))
    if message.get("role") == "tool":
        message["tool_call_id"] = short_id(str(message.get("tool_call_id") or ""))


def _message(number: int, item: object, traits: Traits, model: str) -> dict[str, Any]:
    where = f"messages[{number}]"
    if not isinstance(item, dict):
        raise BadRequest(f"Invalid type for '{where}': expected an object, got {kind(item)}.")
    message = {name: v for name, v in item.items() if v is not None}
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise BadRequest(f"Missing required parameter: '{where}.role'.")
    message["role"] = map_role(role.lower(), traits)
    if "tool_calls" in message:
        calls = message.pop("tool_calls")
        if calls:
            message["tool_calls"] = _tool_calls(where, calls)
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = _parts(where, content, traits, model)
    elif content is None:
        message["content"] = None if traits.takes_null_content else ""
    elif not isinstance(content, str):
        raise BadRequest(
            f"Invalid type for '{where}.content': expected a string or an array, "
            f"but got {kind(content)}."
        )
    if "reasoning" in message or "reasoning_content" in message:
        _reasoning(message, traits)
    return message


def _reasoning(message: dict[str, Any], traits: Traits) -> None:
    """Replay earlier thinking under the one name that the engine reads, or not at all."""
    values = [message.pop(name, None) for name in ("reasoning", "reasoning_content")]
    text = next((v for v in values if isinstance(v, str) and v), None)
    if text is not None and traits.reasoning_field is not None:
        message[traits.reasoning_field] = text


def _tool_calls(where: str, calls: object) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise BadRequest(f"Invalid type for '{where}.tool_calls': expected an array.")
    out = []
    for number, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadRequest(
                f"Missing required parameter: '{where}.tool_calls[{number}].function.name'."
            )
        arguments = function.get("arguments", "")
        if arguments is None:
            arguments = ""
        if not isinstance(arguments, str):
            arguments = encode_json(arguments).decode()
        out.append(
            {
                **{name: v for name, v in call.items() if v is not None},
                "type": "function",
                "function": {"name": function["name"], "arguments": arguments or "{}"},
            }
        )
    return out


def _parts(where: str, parts: list[object], traits: Traits, model: str) -> object:
    """Check the parts; only text becomes one string where the engine takes no parts."""
    out: list[dict[str, object]] = []
    for number, part in enumerate(parts):
        here = f"{where}.content[{number}]"
        if isinstance(part, str):
            out.append({"type": "text", "text": part})
            continue
        if not isinstance(part, Mapping):
            raise BadRequest(f"Invalid type for '{here}': expected an object, got {kind(part)}.")
        match part.get("type"):
            case "text" | "input_text" | "output_text" | "refusal":
                text = part.get("text", part.get("refusal", ""))
                if not isinstance(text, str):
                    raise BadRequest(f"Invalid type for '{here}.text': expected a string.")
                out.append({"type": "text", "text": text})
            case "image_url":
                out.append(_image(here, part.get("image_url"), traits, model))
            case "input_audio":
                out.append(_audio(here, part.get("input_audio"), traits, model))
            case other:
                raise BadRequest(f"Invalid value for '{here}.type': '{str(other)[:80]}'.")
    if all(part["type"] == "text" for part in out) and (not traits.takes_content_parts or not out):
        return "\n".join(str(part["text"]) for part in out)
    return out


def _image(here: str, value: object, traits: Traits, model: str) -> dict[str, object]:
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str):
        raise BadRequest(f"Missing required parameter: '{here}.image_url.url'.")
    if not traits.takes_images:
        raise CapabilityMissing(f'"{model}" does not support vision')
    if _DATA_URI.match(url) is None:  # an address would make the engine fetch it, from in here
        raise BadRequest("invalid image input")
    image: dict[str, object] = {"url": url}
    if isinstance(value, Mapping) and isinstance(value.get("detail"), str):
        image["detail"] = value["detail"]
    return {"type": "image_url", "image_url": image}


def _audio(here: str, value: object, traits: Traits, model: str) -> dict[str, object]:
    if not isinstance(value, Mapping) or not isinstance(value.get("data"), str):
        raise BadRequest(f"Missing required parameter: '{here}.input_audio.data'.")
    return make_audio_part(value["data"], str(value.get("format") or "wav"), traits, model)
