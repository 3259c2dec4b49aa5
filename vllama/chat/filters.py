"""A reply whose engine's events are changed before it sees them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from vllama.chat.engine.fields import need_completions, put_completion_format, put_max_tokens
from vllama.chat.engine.traits import Traits
from vllama.chat.framing import DONE, SseReader, sse
from vllama.chat.logprobs import ollama_logprobs
from vllama.chat.prefill import is_continued
from vllama.chat.reply import CountsReader, Reply
from vllama.chat.request import Call, Message, Think, Usage
from vllama.chat.template_style import Style
from vllama.errors import VllamaError


class AlteredReply:
    """Stands before a reply; `_alter` says what is changed.

    Not an `ABC`: whether a reply is one is asked with every request, which is slow for those.
    """

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

    @property
    def counts(self) -> CountsReader | None:
        """What tells the counts at the end, where the engine's stream does not."""
        return self._reply.counts

    @counts.setter
    def counts(self, reader: CountsReader | None) -> None:
        self._reply.counts = reader

    @property
    def may_cut(self) -> bool:
        """Whether the engine's answer may be ended before the engine ends it."""
        return self._reply.may_cut

    def feed(self, chunk: bytes, now_ns: int) -> bytes:
        """Take bytes of the engine's stream. Raises what the reply raises."""
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

    @abstractmethod
    def _alter(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return what the reply sees of an event, whose `choices` are a list."""

    def _pass(self, payloads: list[bytes], now_ns: int) -> bytes:
        events = b"".join(sse(self._payload(payload)) for payload in payloads)
        out = self._reply.feed(events, now_ns) if events else b""
        self.ended = self._reply.ended
        self.first_token_ns = self._reply.first_token_ns
        return out

    def _payload(self, payload: bytes) -> bytes:
        """Change one event; errors and the end stay."""
        if payload == DONE:
            return payload
        try:
            event = msgspec.json.decode(payload)
        except ValueError:
            return payload  # the reply says what is wrong with it
        if not isinstance(event, dict) or not isinstance(event.get("choices"), list):
            return payload
        return msgspec.json.encode(self._alter(event))


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
