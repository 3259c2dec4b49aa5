"""What a model's own jinja chat template is rendered with: the variables that transformers gives.

Rendered are such templates in processes of their own, see `vllama.rendering`.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllama.chat.request import Message


def template_variables(
    source: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[dict[str, object]] = (),
    add_generation_prompt: bool = True,
    bos: str = "",
    eos: str = "",
    **switches: object,
) -> dict[str, object]:
    """Return the variables for the template `source`.

    `bos` and `eos` are the texts of the model's special tokens, `switches` the template's own, as
    `enable_thinking`.
    """
    # OpenAI's new name for the system message, which most templates do not know
    roles = {} if "developer" in source else {"developer": "system"}
    return {
        **switches,
        "messages": [_message(message, roles) for message in messages],
        "tools": list(tools) or None,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos,
        "eos_token": eos,
    }


def _message(message: Message, roles: dict[str, str]) -> dict[str, object]:
    """Return the dict that templates expect; keys only where there is something."""
    role = roles.get(message.role, message.role)
    out: dict[str, object] = {"role": role, "content": message.content}
    if message.thinking:
        out["reasoning_content"] = message.thinking
        out["thinking"] = message.thinking
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_name:
        out["name"] = message.tool_name
    if message.tool_call_id:
        out["tool_call_id"] = message.tool_call_id
    return out
