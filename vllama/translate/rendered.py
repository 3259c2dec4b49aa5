"""A chat as the completion of a prompt that the front has rendered itself.

For engines whose own rendering lacks something (`Traits.completes_chats`): llama.cpp's Python
server takes no switches of the template with a request, so that thinking could not be turned off,
and gives templates the arguments of earlier calls as strings, which many of them cannot read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from vllama.errors import VllamaError
from vllama.translate.framing import DONE, SseReader, sse
from vllama.translate.logprobs import ollama_logprobs
from vllama.translate.reply import Reply
from vllama.translate.style import Style
from vllama.translate.traits import Traits
from vllama.translate.types import Call, Message, Think, Usage
from vllama.translate.upstream import need_completions, put_max_tokens

COMPLETION_PATH = "/v1/completions"
_OF_CHATS = (
    "messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs",
    "reasoning_effort", "response_format", "logprobs", "top_logprobs",
)  # fmt: skip


def renders_better(messages: Sequence[Message], think: Think, traits: Traits, style: Style) -> bool:
    """Tell whether a chat must be rendered by the front: the engine would do it wrongly."""
    if not traits.completes_chats:
        return False
    switched = think is not None and bool(style.switches)
    return switched or any(message.tool_calls for message in messages)


def rendered_call(body: bytes, prompt: str, traits: Traits) -> Call:
    """Return the completion of a finished prompt, with the settings of a chat's `body`.

    Raises CapabilityMissing if the engine has no completions.
    """
    need_completions(traits)
    chat: dict[str, Any] = msgspec.json.decode(body)
    out = {name: value for name, value in chat.items() if name not in _OF_CHATS}
    out["prompt"] = prompt
    if chat.get("logprobs"):
        out["logprobs"] = max(1, chat.get("top_logprobs") or 0)
    if traits.parameters.get("max_tokens", "max_tokens") not in out:
        put_max_tokens(out, None, traits, default_is_small=True)
    return Call(path=COMPLETION_PATH, body=msgspec.json.encode(out))


class RenderedReply:
    """A chat's reply, fed with the stream of a completion."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._reader = SseReader()
        self.usual = None  # the reply does not see what the engine sends
        self.content_type = reply.content_type
        self.ended = reply.ended
        self.first_token_ns = reply.first_token_ns

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return self._reply.usage

    def feed(self, chunk: bytes, now_ns: int) -> bytes:
        """Take bytes of a completion's stream. Raises what the reply raises."""
        return self._pass(self._reader.feed(chunk), now_ns)

    def finish(self, now_ns: int) -> bytes:
        """Return the rest. Raises what the reply raises."""
        rest = self._pass(self._reader.close(), now_ns)
        return rest + self._reply.finish(now_ns)

    def fail(self, error: VllamaError) -> bytes:
        """Return how the dialect reports an error."""
        return self._reply.fail(error)

    def __getattr__(self, name: str) -> Any:
        """Give what else the reply knows (its text, its finish reason)."""
        return getattr(self._reply, name)

    def _pass(self, payloads: list[bytes], now_ns: int) -> bytes:
        events = b"".join(sse(_as_chat(payload)) for payload in payloads)
        out = self._reply.feed(events, now_ns) if events else b""
        self.ended = self._reply.ended
        self.first_token_ns = self._reply.first_token_ns
        return out


def _as_chat(payload: bytes) -> bytes:
    """Turn one event of a completion into that of a chat; errors and the end stay."""
    if payload == DONE:
        return payload
    try:
        event = msgspec.json.decode(payload)
    except ValueError:
        return payload  # the reply says what is wrong with it
    choices = event.get("choices") if isinstance(event, Mapping) else None
    if not isinstance(choices, list):
        return payload
    for choice in choices:
        if isinstance(choice, dict) and "delta" not in choice:
            choice["delta"] = {"content": choice.pop("text", None) or ""}
            logprobs = ollama_logprobs(choice.get("logprobs"))
            choice["logprobs"] = {"content": logprobs} if logprobs else None
    if isinstance(event.get("id"), str):
        event["id"] = event["id"].replace("cmpl-", "chatcmpl-", 1)
    return msgspec.json.encode({**event, "object": "chat.completion.chunk"})
