"""The prompt of a request as its engine will see it: rendered, counted, cut to the context.

Counted with the engine's own tokenizer, and rendered here where the engine would not do it right.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from vllama.errors import BadRequest, ContextOverflow, VllamaError
from vllama.gateway.connection import ConnectionLost
from vllama.gateway.upstream import Upstream
from vllama.models.types import ModelInfo
from vllama.translate.faults import clean_engine_error
from vllama.translate.go_template_prompt import GoTemplate
from vllama.translate.prefill import is_continued
from vllama.translate.prompt import fit_messages
from vllama.translate.rendered import renders_better
from vllama.translate.style import marks_thinking, style_of, template_switches
from vllama.translate.thinking import ends_open, is_unfinished
from vllama.translate.traits import Traits
from vllama.translate.types import Call, Message, Think

if TYPE_CHECKING:
    from vllama.translate.chat_template import ChatTemplate

log = logging.getLogger(__name__)

DROPPED_HEADER = "x-vllama-truncated"
DROPPED_TOKENS_HEADER = "x-vllama-truncated-tokens"


async def fetch_json(upstream: Upstream, path: str, body: object) -> dict[str, object]:
    """POST JSON to an engine and return its JSON object. Raises UpstreamError and kin."""
    answer = await upstream.fetch(Call(path=path, body=msgspec.json.encode(body)))
    if answer.status != 200:
        raise clean_engine_error(answer.status, answer.body)
    value = msgspec.json.decode(answer.body)
    if not isinstance(value, dict):
        raise clean_engine_error(502, answer.body)
    return value


async def tokenize(
    upstream: Upstream, traits: Traits, text: str, *, special: bool = False
) -> list[int] | None:
    """Return the engine's tokens of `text`, None if it has no tokenizer route.

    `special`: with those that the model puts around an input, where the route leaves them out.
    """
    route = traits.tokenizer
    if route is None:
        return None
    body: dict[str, object] = {route.input_field: text}
    if special and route.special_field:
        body[route.special_field] = True
    if traits.model_name:
        body["model"] = traits.model_name
    try:
        tokens = (await fetch_json(upstream, route.tokenize_path, body)).get("tokens")
    except ConnectionLost as error:
        # splitting a text cannot have ended the engine: asking the next one is safe
        raise ConnectionLost(error.message, unsent=True) from error
    return tokens if isinstance(tokens, list) else None


async def detokenize(upstream: Upstream, traits: Traits, tokens: Sequence[int]) -> str:
    """Return the text of `tokens`. Raises BadRequest if the engine cannot."""
    route = traits.tokenizer
    if route is None:
        raise BadRequest("cannot use 'context': the engine has no tokenizer route")
    body: dict[str, object] = {route.tokens_field: list(tokens)}
    if traits.model_name:
        body["model"] = traits.model_name
    try:
        text = (await fetch_json(upstream, route.detokenize_path, body)).get(route.text_field)
    except ConnectionLost:
        raise
    except VllamaError as error:
        raise BadRequest("cannot use 'context': it holds tokens of another model") from error
    return text if isinstance(text, str) else ""


@lru_cache(maxsize=64)
def compiled(source: str, bos: str, eos: str) -> ChatTemplate:
    """Compile a chat template once."""
    from vllama.translate.chat_template import ChatTemplate  # only here is jinja needed

    return ChatTemplate(source, bos, eos)


def template_of(info: ModelInfo) -> ChatTemplate | None:
    """Return the model's own chat template, compiled, or None if it has none."""
    if not info.chat_template:
        return None
    return compiled(info.chat_template, info.bos_token or "", info.eos_token or "")


def dropped_header(*prompts: Prompt) -> dict[str, str]:
    """Return headers that say how many messages and tokens were cut; Ollama does so in silence."""
    dropped = sum([prompt.dropped for prompt in prompts])
    if not dropped:
        return {}
    tokens = sum(prompt.dropped_tokens for prompt in prompts)
    return {DROPPED_HEADER: str(dropped), DROPPED_TOKENS_HEADER: str(tokens)}


def without_bos(text: str, info: ModelInfo) -> str:
    """Take BOS off a finished prompt if the engine's tokenizer puts it there."""
    return text.removeprefix(info.bos_token) if info.adds_bos and info.bos_token else text


class Prompt:
    """A conversation as the engine will see it, counted with the engine's own tokenizer.

    With `template`, that of a Modelfile, the prompt is made here: `finished` then says that `text`
    has to be sent as it is, to the engine's completions, whose answer is not parsed there.
    """

    def __init__(
        self,
        info: ModelInfo,
        upstream: Upstream,
        traits: Traits,
        template: GoTemplate | None = None,
    ) -> None:
        self._info = info
        self._go = template
        self.finished = False
        self._upstream = upstream
        self._traits = traits
        self._template = template_of(info)
        # whoever splits thinking off must know whether the template has opened it
        self._splits = not traits.splits_reasoning and marks_thinking(info.chat_template or "")
        self.text: str | None = None
        self.tokens: int | None = None
        self.dropped = 0
        self.dropped_tokens = 0
        self._thought_begun = False

    @property
    def matters(self) -> bool:
        """Whether anything is to be done here: an engine may render and count all by itself."""
        counts = not self._traits.usage_in_stream
        rendered = self._traits.completes_chats or self._go is not None
        return counts or rendered or self._splits

    async def fit(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, object]],
        *,
        truncate: bool,
        think: Think,
        always: bool = False,
        chat_only: bool = False,
        held: bool = False,
        text_wanted: bool = False,
    ) -> Sequence[Message]:
        """Return the messages that fit into the context; count them on the way.

        Oldest messages go first, system messages and the last one stay (contract §3.6).
        Nothing is counted for an engine that counts by itself, unless `always` or where it might be
        too long. Images can only be
        given to the engine with the messages, so that they need its own template; so does what only
        its chat route can do (`chat_only`: keep to a schema). `held`: the answer keeps to one.
        Raises ContextOverflow.
        """
        self._thought_begun = is_continued(messages) and is_unfinished(messages[-1].content)
        has_images = any(item.images for item in messages)
        self.finished = self._go is not None and not has_images
        if not (self.finished or has_images or chat_only) and self._template is not None:
            style = style_of(self._info.chat_template)
            held = held and not tools and not marks_thinking(self._info.chat_template or "")
            self.finished = renders_better(messages, think, self._traits, style, held=held)
        counts = always or not self._traits.usage_in_stream or self._may_be_long(messages)
        wanted = counts or text_wanted or self._splits
        if not self.finished and (self._template is None or not wanted):
            return messages
        try:
            text = self._render(messages, tools, think)
        except BadRequest as error:
            if self.finished and self._go is not None:
                raise
            self.finished = False
            # the engine renders for itself; only our count is missing then
            log.info("cannot count the prompt: %s", error.message)
            return messages
        if not counts:
            self.text = text
            return messages
        await self.count(text)
        limit = self._traits.context_length - 1
        kept = messages
        while self.tokens is not None and self.tokens > limit:
            # each round removes the share that is over, so that two rounds are the rule
            spare = max(1, round(len(kept) * (1 - limit / self.tokens)))
            kept, dropped = fit_messages(kept, len, len(kept) - spare)
            if not truncate or not dropped:
                self.check()
            self.dropped += dropped
            before = self.tokens
            await self.count(self._render(kept, tools, think))
            self.dropped_tokens += before - self.tokens
        return kept

    def _may_be_long(self, messages: Sequence[Message]) -> bool:
        """Whether the texts could fill the context: a token is one byte at least.

        An engine that counts by itself refuses what is too long, where Ollama cuts it.
        """
        size = sum(len(message.content.encode()) for message in messages)
        return self._traits.tokenizer is not None and size >= self._traits.context_length

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, object]],
        think: Think,
    ) -> str:
        if self.finished and self._go is not None:
            text = self._go.chat(messages, tools=tools, think=think, now=time.time())
            return without_bos(text, self._info)
        assert self._template is not None
        plain = [msgspec.structs.replace(message, images=()) for message in messages]
        switches = template_switches(think)
        render = self._template.render_continued if is_continued(plain) else self._template.render
        text = render(plain, tools=tools, now=time.time(), **switches)
        return without_bos(text, self._info) if self.finished else text

    @property
    def traits(self) -> Traits:
        """What to expect of the answer: an engine does not parse that to a finished prompt."""
        if not self.finished:
            return self._traits
        return replace(self._traits, parses_tools=False, splits_reasoning=False)

    @property
    def opens_thinking(self) -> bool:
        """Whether the prompt ends inside the thinking, so that the answer begins with it."""
        return ends_open(self.text or "") or self._thought_begun

    async def count(self, text: str) -> None:
        """Count a finished prompt."""
        self.text = text
        tokens = await tokenize(self._upstream, self._traits, text)
        if tokens is None:
            return
        self.tokens = len(tokens)
        bos = self._info.bos_token
        if bos and self._info.adds_bos and text.startswith(bos):
            self.tokens -= 1  # the tokenizer route puts one more before the template's own

    def check(self) -> None:
        """Raise ContextOverflow if the counted prompt leaves no room for an answer."""
        if self.tokens is not None and self.tokens >= self._traits.context_length:
            error = ContextOverflow(
                f"the prompt is longer than the available context length: it has {self.tokens} "
                f"tokens, the context {self._traits.context_length}",
                hint="shorten it, or load the model with a larger num_ctx",
            )
            error.tokens, error.limit = self.tokens, self._traits.context_length
            raise error

    async def context(self, answer: str) -> list[int] | None:
        """Return the tokens of prompt and answer together, for `context`."""
        if self.text is None:
            return None
        return await tokenize(self._upstream, self._traits, self.text + answer)
