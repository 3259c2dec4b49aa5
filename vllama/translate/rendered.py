"""A chat as the completion of a prompt that the front has rendered itself.

For engines whose own rendering lacks something (`Traits.completes_chats`): llama.cpp's Python
server takes no switches of the template with a request, so that thinking could not be turned off,
and gives templates the arguments of earlier calls as strings, which many of them cannot read. And
for those whose chats cost more than their completions (`Traits.chats_by_completion`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from vllama.translate.altered import AlteredReply
from vllama.translate.logprobs import ollama_logprobs
from vllama.translate.prefill import is_continued
from vllama.translate.reply import Reply
from vllama.translate.style import Style
from vllama.translate.traits import Traits
from vllama.translate.types import Call, Message, Think
from vllama.translate.upstream import need_completions, put_completion_format, put_max_tokens

COMPLETION_PATH = "/v1/completions"
_OF_CHATS = (
    "messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs",
    "reasoning_effort", "response_format", "logprobs", "top_logprobs",
)  # fmt: skip


def renders_better(
    messages: Sequence[Message],
    think: Think,
    traits: Traits,
    style: Style,
    *,
    plain: bool = False,
) -> bool:
    """Tell whether the front should render a chat: the engine would do it wrongly, or slower.

    `plain`: its answer is nothing but text, without thinking or calls.
    """
    if plain and traits.chats_by_completion:
        return True
    if is_continued(messages) and traits.completes and not traits.takes_continue_final_message:
        return True
    if not traits.completes_chats:
        return False
    switched = think is not None and bool(style.switches)
    return switched or any(message.tool_calls for message in messages)


def rendered_call(body: bytes, prompt: str | Sequence[int], traits: Traits) -> Call:
    """Return the completion of a finished prompt, with the settings of a chat's `body`.

    Raises CapabilityMissing if the engine has no completions.
    """
    need_completions(traits)
    chat: dict[str, Any] = msgspec.json.decode(body)
    out = {name: value for name, value in chat.items() if name not in _OF_CHATS}
    out["prompt"] = prompt
    put_completion_format(out, chat.get("response_format"), traits)
    if chat.get("logprobs"):
        out["logprobs"] = max(1, chat.get("top_logprobs") or 0)
    if traits.parameters.get("max_tokens", "max_tokens") not in out:
        put_max_tokens(out, None, traits, default_is_small=True)
    return Call(path=COMPLETION_PATH, body=msgspec.json.encode(out))


class RenderedReply(AlteredReply):
    """A chat's reply, fed with the stream of a completion."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self._begun = False

    def _alter(self, event: dict[str, Any]) -> dict[str, Any]:
        """Turn one event of a completion into that of a chat."""
        for choice in event["choices"]:
            if isinstance(choice, dict) and "delta" not in choice:
                choice["delta"] = {"content": choice.pop("text", None) or ""}
                if not self._begun:  # the first delta of a chat names the role
                    choice["delta"] = {"role": "assistant", **choice["delta"]}
                logprobs = ollama_logprobs(choice.get("logprobs"))
                choice["logprobs"] = {"content": logprobs} if logprobs else None
        self._begun = self._begun or bool(event["choices"])
        if isinstance(event.get("id"), str):
            # llama-server's completions have the ids of chats
            event["id"] = f"chatcmpl-{event['id'].removeprefix('chat').removeprefix('cmpl-')}"
        return {**event, "object": "chat.completion.chunk"}
