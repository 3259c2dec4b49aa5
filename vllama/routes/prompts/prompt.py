"""The prompt of a request as its engine will see it: rendered, counted, cut to the context.

Counted with the engine's own tokenizer, and rendered here where the engine would not do it right.

See docs/reference/ollama-api.md#truncation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import msgspec

from vllama.base.errors import BadRequest, ContextOverflow, TemplateRefused, TemplateTooCostly
from vllama.chat.bodies import check_length, encode_json
from vllama.chat.conversation import arrange_roles, is_continued, render_continued, should_render
from vllama.chat.engine.context import (
    IMAGE_TOKENS,
    check_text,
    compute_answer_limit,
    cut_middle,
    find_starts,
    take_newest,
)
from vllama.chat.engine.traits import Traits, remember_for_traits
from vllama.chat.parsers.thinking import find_open, is_unfinished
from vllama.chat.request import Call, Fitting, Message, Think
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
from vllama.routes.prompts.tokenizer import (
    count_conversation,
    decode_tokens,
    tokenize,
)

log = logging.getLogger(__name__)

DROPPED_HEADER = "x-vllama-truncated"
DROPPED_TOKENS_HEADER = "x-vllama-truncated-tokens"
FITTING = Fitting()


def make_dropped_header(*prompts: Prompt) -> dict[str, str]:
    """Return headers that say how many messages and tokens were cut; Ollama does so in silence."""
    if not (dropped := sum([prompt.dropped for prompt in prompts])):
        return {}
    tokens = sum(prompt.dropped_tokens for prompt in prompts)
    return {DROPPED_HEADER: str(dropped), DROPPED_TOKENS_HEADER: str(tokens)}


@remember_for_traits
def _parse_nothing(traits: Traits) -> Traits:
    return replace(traits, parses_tools=False, splits_reasoning=False)


class Prompt:
    """A conversation as the engine will see it, counted with the engine's own tokenizer.

    With `template`, that of a Modelfile, the prompt is made here: `finished` then says that `sent`
    has to go as it is to the engine's completions, whose answer is not parsed there. First `fit` or
    `take`, then `shorten`; `text` is the whole prompt, also if less of it is sent.
    """

    def __init__(
        self,
        info: ModelInfo,
        renderer: Renderer,
        upstream: Upstream,
        traits: Traits,
        template: GoTemplate | None = None,
        fitting: Fitting = FITTING,
    ) -> None:
        self._info = info
        self._renderer = renderer
        self._go = template
        self.finished = False
        self._upstream = upstream
        self._traits = traits
        self._fitting = fitting
        # one that the engine does not have: recognized, because the model's files have none
        recognized = info.template_family is not None and not traits.was_given_template
        self._is_foreign = recognized and template is None
        # whoever splits thinking off must know whether the template has opened it
        self._splits = not traits.splits_reasoning and marks_thinking(info.chat_template or "")
        # a refusal has to be known before the engine answers it with an error of its own
        self._may_refuse = "raise_exception" in (info.chat_template or "")
        self._may_cut = traits.completes
        self._cut: str | list[int] | None = None
        self.text: str | None = None
        self.tokens: int | None = None
        self.dropped = 0
        self.dropped_tokens = 0
        self._thought_begun = False
        self._images = 0

    @property
    def sent(self) -> str | list[int]:
        """Form of a finished prompt for the engine: its text, or the stored tokens."""
        return (self.text or "") if self._cut is None else self._cut

    @property
    def whole_text(self) -> str | None:
        """The text that the engine reads; None if it is not known, cut, or has images."""
        return None if self._cut is not None or self._images else self.text

    async def fit(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, object]],
        *,
        think: Think,
        always: bool = False,
        chat_only: bool = False,
        text_wanted: bool = False,
        finish: bool = False,
    ) -> Sequence[Message]:
        """Return the messages that fit into the context; count them on the way.

        Oldest messages go first, system messages and the last one stay.
        Nothing is counted for an engine that counts by itself, unless `always` or where it might be
        too long. Images can only be
        given to the engine with the messages, so that they need its own template; so does what only
        its chat route can do (`chat_only`: keep to a schema). `finish`: a completion is wanted.
        Raises BadRequest for what no context holds, or a template refuses.
        """
        for item in messages:
            check_text(item.content, self._traits)
        check_length(sum([len(item.content) for item in messages]))  # rendering it takes a copy
        self._thought_begun = is_continued(messages) and is_unfinished(messages[-1].content)
        images = self._images = sum([item.media_count for item in messages])
        self.finished = self._go is not None and not images
        self._may_cut &= not images and not (chat_only and not self._traits.formats_completions)
        if self._is_foreign and not images:
            self.finished = self._traits.completes
        elif not (self.finished or images or chat_only) and self._info.chat_template:
            plain = not tools and not marks_thinking(self._info.chat_template)
            self.finished = finish or should_render(messages, self._traits, plain=plain)
        counts = always or not self._traits.usage_in_stream or self._may_be_long(messages, tools)
        wanted = counts or text_wanted or self._splits or self._may_refuse
        if not self.finished and not (self._info.chat_template and wanted):
            return messages
        try:
            messages, text = await self._arrange(messages, tools, think)
        except (TemplateRefused, TemplateTooCostly):
            raise  # the engine would try the same
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
        await self.take(text)
        if not self._fitting.truncate or len(messages) < 2 or self._holds(messages):
            return messages
        return await self._drop_oldest(messages, lambda kept: self._render(kept, tools, think))

    async def take(self, text: str) -> None:
        """Count a finished prompt."""
        self.text = text
        tokens = await tokenize(self._upstream, self._traits, text, special=True)
        if tokens is None:
            return
        self.tokens = len(tokens)
        bos = self._info.bos_token
        if bos and self._info.adds_bos and text.startswith(bos):
            self.tokens -= 1  # the tokenizer route puts one more before the template's own

    async def count_conversation(
        self, asked: Mapping[str, object] | None, call: Call
    ) -> int | None:
        """Return the tokens of a conversation that the engine renders; None if it cannot count."""
        return await count_conversation(self._upstream, self._traits, asked, call.fields)

    async def shorten(self) -> None:
        """Cut a prompt in its middle that is still too long, as Ollama does.

        Raises ContextOverflow where that may not be done, or the engine takes no finished prompts.
        """
        if self.tokens is None or self.tokens < self._traits.window:
            return
        fitting = self._fitting
        if not (fitting.truncate and fitting.shift and self._may_cut):
            error = ContextOverflow(
                f"the prompt is longer than the available context length: it has {self.tokens} "
                f"tokens, the context {self._traits.window}",
                hint="shorten it, or ask for a larger num_ctx",
            )
            error.tokens, error.limit = self.tokens, self._traits.window
            raise error
        text = strip_bos(self.text or "", self._info)
        tokens = await tokenize(self._upstream, self._traits, text, special=True) or []
        keep = fitting.num_keep
        if keep >= 0 and self._info.adds_bos:
            keep += 1
        kept = cut_middle(tokens, self._traits.window, keep)
        before, self.tokens = self.tokens, len(kept)
        if self._traits.takes_prompt_lists:
            self._cut = kept
        else:
            made = await decode_tokens(self._info, self._upstream, self._traits, kept)
            self._cut = strip_bos(made, self._info)
            counted = await tokenize(self._upstream, self._traits, self._cut, special=True)
            self.tokens = len(counted or kept)
        self.finished = True
        self.dropped += 1  # what is left of a message is not that message
        self.dropped_tokens += before - self.tokens

    def limit(self, asked: int | None) -> int | None:
        """Return the most tokens of the answer; None: the end of the engine's context ends it."""
        return compute_answer_limit(asked, self._traits, self.tokens, shift=self._fitting.shift)

    @property
    def traits(self) -> Traits:
        """Traits of the response: an engine does not parse that to a finished prompt."""
        return _parse_nothing(self._traits) if self.finished else self._traits

    @property
    def opens_thinking(self) -> bool:
        """True if the prompt ends inside the thinking, so that the answer begins with it."""
        return bool(find_open(self.text or "")) or self._thought_begun

    async def context(self, answer: str, upstream: Upstream) -> list[int] | None:
        """Return the tokens of prompt and answer together, for `context`.

        `upstream` has answered; it may have been started since the prompt was made.
        """
        if self.text is None:
            return None
        return await tokenize(upstream, self._traits, self.text + answer)

    def _may_be_long(self, messages: Sequence[Message], tools: Sequence[dict[str, object]]) -> bool:
        """Return whether the texts could fill the context: a token is one byte at least.

        An engine that counts by itself refuses what is too long, where Ollama cuts it.
        """
        traits = self._traits
        if traits.tokenizer is None:
            return False
        if traits.num_ctx is not None or (traits.shifts_context and not self._fitting.shift):
            return True  # the request may use less than the engine would by itself
        size = sum([len(message.content.encode()) for message in messages])
        size += IMAGE_TOKENS * self._images + (len(encode_json(tools)) if tools else 0)
        return size >= traits.window

    def _holds(self, messages: Sequence[Message]) -> bool:
        """Tell whether the context holds the messages that were counted last."""
        images = sum(message.media_count for message in messages)
        return (self.tokens or 0) + IMAGE_TOKENS * images <= self._traits.window

    async def _drop_oldest(
        self, messages: Sequence[Message], render: Callable[[Sequence[Message]], Awaitable[str]]
    ) -> Sequence[Message]:
        """Return the newest messages that the context holds; take their prompt."""
        everything = self.tokens or 0
        try:
            kept = await self._first_held(messages, find_starts(messages), render)
        except BadRequest:  # a template may refuse an answer without its question
            kept = await self._first_held(messages, find_starts(messages, "user"), render)
        self.dropped = len(messages) - len(kept)
        self.dropped_tokens = everything - (self.tokens or 0)
        return kept

    async def _first_held(
        self,
        messages: Sequence[Message],
        begins: Sequence[int],
        render: Callable[[Sequence[Message]], Awaitable[str]],
    ) -> Sequence[Message]:
        """Return the messages from the first of `begins` that fits, from the last if none does."""
        low, high = 0, len(begins) - 1
        while low < high:  # dropping more never makes it longer
            middle = (low + high) // 2
            kept = take_newest(messages, begins[middle])
            await self.take(await render(kept))
            if self._holds(kept):
                high = middle
            else:
                low = middle + 1
        kept = take_newest(messages, begins[low])
        await self.take(await render(kept))
        return kept

    async def _arrange(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, object]],
        think: Think,
    ) -> tuple[Sequence[Message], str]:
        """Return the conversation as its template takes it, and its prompt.

        Raises TemplateRefused, with the words for the conversation as it came, if there is none.
        """
        try:
            return messages, await self._render(messages, tools, think)
        except TemplateRefused:
            for arranged in arrange_roles(messages):
                with suppress(TemplateRefused):
                    return arranged, await self._render(arranged, tools, think)
            raise

    async def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, object]],
        think: Think,
    ) -> str:
        plain = [msgspec.structs.replace(message, images=(), parts=()) for message in messages]
        # an engine that takes no switches renders its chats without them
        is_told = self.finished or self._traits.takes_template_kwargs
        switches = template_switches(think) if is_told else {}

        async def render(turns: Sequence[Message], opens: bool) -> str:
            now = time.time()
            if self.finished and self._go is not None:
                chat = partial(self._go.chat, turns, tools=tools, think=think, now=now)
                return await self._renderer.run_template(self._go.source, chat)
            source = self._info.chat_template or ""
            variables = template_variables(
                source,
                turns,
                tools=tools,
                add_generation_prompt=opens,
                bos=self._info.bos_token or "",
                eos=self._info.eos_token or "",
                **switches,
            )
            return await self._renderer.render(source, variables, now)

        going_on = is_continued(plain)
        text = await (render_continued(plain, render) if going_on else render(plain, True))
        return strip_bos(text, self._info) if self.finished else text
