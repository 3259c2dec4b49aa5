"""The prompt of a request as its engine will see it: rendered, counted, cut to the context.

Counted with the engine's own tokenizer, and rendered here where the engine would not do it right.

See docs/reference/ollama-api.md#truncation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from vllama.base.errors import BadRequest, ContextOverflow, TemplateRefused, TemplateTooCostly
from vllama.chat.bodies import check_length, encode_json
from vllama.chat.conversation import arrange_roles, is_continued, render_continued, should_render
from vllama.chat.engine.context import (
    IMAGE_TOKENS,
    check_text,
    cut_middle,
    find_starts,
    take_newest,
)
from vllama.chat.engine.traits import Traits, remember_for_traits
from vllama.chat.parsers.thinking import find_open, is_unfinished
from vllama.chat.request import Fitting, Message, Think
from vllama.chat.templates.go_template_prompt import GoTemplate
from vllama.chat.templates.jinja.renderer import Renderer
from vllama.chat.templates.template_style import (
    marks_thinking,
    template_switches,
    template_variables,
)
from vllama.models.types import ModelInfo
from vllama.net.upstream.pool import Upstream
from vllama.routes.prompts.templates import strip_bos
from vllama.routes.prompts.tokenizer import decode_tokens, tokenize

log = logging.getLogger(__name__)

DROPPED_HEADER = "x-vllama-truncated"
DROPPED_TOKENS_HEADER = "x-vllama-truncated-tokens"


def make_dropped_header(*prompts: Prompt) -> dict[str, str]:
    """Return headers that say how many messages and tokens were cut; Ollama does so in silence."""
    if not (dropped := sum([prompt.dropped for prompt in prompts])):
        return {}
    tokens = sum(prompt.dropped_tokens for prompt in prompts)
    return {DROPPED_HEADER: str(dropped), DROPPED_TOKENS_HEADER: str(tokens)}


@remember_for_traits
def _parse_nothing(traits: Traits) -> Traits:
    return replace(traits, parses_tools=False, splits_reasoning=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt that `PromptMaker` has made."""

    engine: Traits
    may_be_cut: bool
    text: str | None = None
    """All of it, also if less is sent; None if only the engine renders it."""
    tokens: int | None = None
    """None if nobody has counted them."""
    finished: bool = False
    """It goes as it is to the engine's completions; the response is not parsed there."""
    cut: str | list[int] | None = None
    """The part that is sent of one that is too long."""
    media: int = 0
    thought_begun: bool = False
    """The conversation ends inside the thinking of a response that goes on."""
    dropped: int = 0
    """Messages."""
    dropped_tokens: int = 0

    @property
    def sent(self) -> str | list[int]:
        """Form of a finished prompt for the engine: its text, or the stored tokens."""
        return (self.text or "") if self.cut is None else self.cut

    @property
    def whole_text(self) -> str | None:
        """The text that the engine reads; None if it is not known, cut, or has images."""
        return None if self.cut is not None or self.media else self.text

    @property
    def traits(self) -> Traits:
        """Traits of the response: an engine does not parse that to a finished prompt."""
        return _parse_nothing(self.engine) if self.finished else self.engine

    @property
    def opens_thinking(self) -> bool:
        """True if the prompt ends inside the thinking, so that the response begins with it."""
        return bool(find_open(self.text or "")) or self.thought_begun


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Makes the prompts of one request for one engine.

    `template` is that of a Modelfile, with which the prompt is finished here.
    """

    info: ModelInfo
    renderer: Renderer
    upstream: Upstream
    traits: Traits
    template: GoTemplate | None = None
    fitting: Fitting = Fitting()

    async def from_text(self, text: str, newest: Prompt | None = None) -> Prompt:
        """Return a prompt that needs no rendering, counted; `newest` is that of its end."""
        made = newest or Prompt(engine=self.traits, may_be_cut=self.traits.completes)
        return await self._take(made, text)

    async def from_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, object]],
        *,
        think: Think,
        always: bool = False,
        chat_only: bool = False,
        text_wanted: bool = False,
        finish: bool = False,
    ) -> tuple[Sequence[Message], Prompt]:
        """Return the messages that fit into the context, and their prompt.

        The oldest messages go first; system messages and the last one stay. Nothing is counted for
        an engine that counts by itself, unless `always`, or where it might be too long. Images can
        only be given to the engine with the messages, so they need its own template; so does what
        only its chat route can do (`chat_only`: keep to a schema). `finish`: a completion is
        wanted. Raises BadRequest for what no context holds, or a template refuses.
        """
        for item in messages:
            check_text(item.content, self.traits)
        check_length(sum([len(item.content) for item in messages]))  # rendering it takes a copy
        info, traits = self.info, self.traits
        media = sum([item.media_count for item in messages])
        finished = self._finishes(messages, tools, media, chat_only=chat_only, finish=finish)
        held = chat_only and not traits.formats_completions
        prompt = Prompt(
            engine=traits,
            finished=finished,
            may_be_cut=traits.completes and not media and not held,
            media=media,
            thought_begun=is_continued(messages) and is_unfinished(messages[-1].content),
        )
        source = info.chat_template or ""
        counts = always or not traits.usage_in_stream or self._may_be_long(messages, tools, media)
        # whoever splits thinking off must know whether the template has opened it
        splits = not traits.splits_reasoning and marks_thinking(source)
        # a template's refusal is found before the engine fails on it
        wanted = counts or text_wanted or splits or "raise_exception" in source
        if not finished and not (source and wanted):
            return messages, prompt
        try:
            messages, text = await self._arrange(messages, tools, think, finished)
        except (TemplateRefused, TemplateTooCostly):
            raise  # the engine would try the same
        except BadRequest as error:
            if finished and self.template is not None:
                raise
            # the engine renders for itself; only our count is missing then
            log.info("cannot count the prompt's tokens: %s", error.message)
            return messages, replace(prompt, finished=False)
        if not counts:
            return messages, replace(prompt, text=text)
        prompt = await self._take(prompt, text)
        if not self.fitting.truncate or len(messages) < 2 or self._holds(prompt, messages):
            return messages, prompt

        async def render(kept: Sequence[Message]) -> Prompt:
            return await self._take(prompt, await self._render(kept, tools, think, finished))

        return await self._drop_oldest(messages, prompt.tokens or 0, render)

    async def shorten(self, prompt: Prompt) -> Prompt:
        """Return the prompt, cut in its middle as by Ollama if it is still too long.

        Raises ContextOverflow where that may not be done, or the engine takes no finished prompts.
        """
        traits, fitting = self.traits, self.fitting
        if prompt.tokens is None or prompt.tokens < traits.window:
            return prompt
        if not (fitting.truncate and fitting.shift and prompt.may_be_cut):
            error = ContextOverflow(
                f"the prompt exceeds the context length: the prompt has {prompt.tokens} tokens, "
                f"the context {traits.window}",
                hint="shorten it, or request a larger num_ctx",
            )
            error.tokens, error.limit = prompt.tokens, traits.window
            raise error
        text = strip_bos(prompt.text or "", self.info)
        tokens = await tokenize(self.upstream, traits, text, special=True) or []
        keep = fitting.num_keep
        if keep >= 0 and self.info.adds_bos:
            keep += 1
        kept = cut_middle(tokens, traits.window, keep)
        cut: str | list[int] = kept
        left = len(kept)
        if not traits.takes_prompt_lists:
            made = await decode_tokens(self.info, self.upstream, traits, kept)
            cut = strip_bos(made, self.info)
            left = len(await tokenize(self.upstream, traits, cut, special=True) or kept)
        return replace(
            prompt,
            finished=True,
            cut=cut,
            tokens=left,
            dropped=prompt.dropped + 1,  # what is left of a message is not that message
            dropped_tokens=prompt.dropped_tokens + prompt.tokens - left,
        )

    async def _take(self, prompt: Prompt, text: str) -> Prompt:
        """Return the prompt with its text, counted if the engine can."""
        found = await tokenize(self.upstream, self.traits, text, special=True)
        if found is None:
            return replace(prompt, text=text)
        bos = self.info.bos_token
        # the tokenizer route puts one more before the template's own
        doubled = bool(bos and self.info.adds_bos and text.startswith(bos))
        return replace(prompt, text=text, tokens=len(found) - doubled)

    def _finishes(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, object]],
        media: int,
        *,
        chat_only: bool,
        finish: bool,
    ) -> bool:
        """Tell whether the prompt is finished here."""
        info, traits = self.info, self.traits
        if media:
            return False
        if self.template is not None:
            return True
        # one that the engine does not have: recognized, because the model's files have none
        if info.template_family is not None and not traits.was_given_template:
            return traits.completes
        if chat_only or not info.chat_template:
            return False
        plain = not tools and not marks_thinking(info.chat_template)
        return finish or should_render(messages, traits, plain=plain)

    def _may_be_long(
        self, messages: Sequence[Message], tools: Sequence[dict[str, object]], media: int
    ) -> bool:
        """Return whether the texts could fill the context: a token is one byte at least.

        An engine that counts by itself refuses what is too long, where Ollama cuts it.
        """
        traits = self.traits
        if traits.tokenizer is None:
            return False
        if traits.num_ctx is not None or (traits.shifts_context and not self.fitting.shift):
            return True  # the request may use less than the engine would by itself
        size = sum([len(message.content.encode()) for message in messages])
        size += IMAGE_TOKENS * media + (len(encode_json(tools)) if tools else 0)
        return size >= traits.window

    def _holds(self, prompt: Prompt, messages: Sequence[Message]) -> bool:
        """Tell whether the context holds the messages, of which this is the prompt."""
        images = sum(message.media_count for message in messages)
        return (prompt.tokens or 0) + IMAGE_TOKENS * images < self.traits.window

    async def _drop_oldest(
        self,
        messages: Sequence[Message],
        everything: int,
        render: Callable[[Sequence[Message]], Awaitable[Prompt]],
    ) -> tuple[Sequence[Message], Prompt]:
        """Return the newest messages that the context holds, and their prompt."""
        try:
            kept, prompt = await self._first_held(messages, find_starts(messages), render)
        except BadRequest:  # a template may refuse an answer without its question
            starts = find_starts(messages, "user")
            kept, prompt = await self._first_held(messages, starts, render)
        return kept, replace(
            prompt,
            dropped=len(messages) - len(kept),
            dropped_tokens=everything - (prompt.tokens or 0),
        )

    async def _first_held(
        self,
        messages: Sequence[Message],
        begins: Sequence[int],
        render: Callable[[Sequence[Message]], Awaitable[Prompt]],
    ) -> tuple[Sequence[Message], Prompt]:
        """Return the messages from the first of `begins` that fits, from the last if none does."""
        low, high = 0, len(begins) - 1
        while low < high:  # dropping more never makes it longer
            middle = (low + high) // 2
            kept = take_newest(messages, begins[middle])
            if self._holds(await render(kept), kept):
                high = middle
            else:
                low = middle + 1
        kept = take_newest(messages, begins[low])
        return kept, await render(kept)

    async def _arrange(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, object]],
        think: Think,
        finished: bool,
    ) -> tuple[Sequence[Message], str]:
        """Return the conversation as its template takes it, and its prompt.

        Raises TemplateRefused, with the words for the conversation as it came, if there is none.
        """
        try:
            return messages, await self._render(messages, tools, think, finished)
        except TemplateRefused:
            for arranged in arrange_roles(messages):
                with suppress(TemplateRefused):
                    return arranged, await self._render(arranged, tools, think, finished)
            raise

    async def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, object]],
        think: Think,
        finished: bool,
    ) -> str:
        plain = [msgspec.structs.replace(message, images=(), parts=()) for message in messages]
        info, go = self.info, self.template
        # an engine that takes no switches renders its chats without them
        is_told = finished or self.traits.takes_template_kwargs
        switches = template_switches(think) if is_told else {}

        async def render(turns: Sequence[Message], opens: bool) -> str:
            now = time.time()
            if finished and go is not None:
                chat = partial(go.chat, turns, tools=tools, think=think, now=now)
                return await self.renderer.run_template(go.source, chat)
            source = info.chat_template or ""
            variables = template_variables(
                source,
                turns,
                tools=tools,
                add_generation_prompt=opens,
                bos=info.bos_token or "",
                eos=info.eos_token or "",
                **switches,
            )
            return await self.renderer.render(source, variables, now)

        going_on = is_continued(plain)
        text = await (render_continued(plain, render) if going_on else render(plain, True))
        return strip_bos(text, info) if finished else text
