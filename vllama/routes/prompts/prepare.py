"""A request on its way to an engine: checked, completed, rendered, counted, cut.

The only place that knows the model, its template, its context and the engine's limits together. All
dialects pass through it in two steps: `check_request` before an engine is asked for gives a
`CheckedRequest`, of which `prepare` makes a `Turn` with the engine's lease. A prompt that is
finished here, with a Modelfile's Go template or because the engine would render it wrongly, is sent
as a completion instead of a chat.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import asdict, replace

from vllama.base.errors import BadRequest, CapabilityMissing, VllamaError
from vllama.chat.engine.context import compute_answer_limit
from vllama.chat.engine.generate import GenerateReader, make_generate_call
from vllama.chat.engine.request import make_chat_call, make_completion_call
from vllama.chat.engine.traits import Traits
from vllama.chat.filters import CallSource, choose_reading, compose_filters
from vllama.chat.inspect import Inspect, WholeReader
from vllama.chat.parsers.marks import has_marks
from vllama.chat.parsers.thinking import find_open
from vllama.chat.prepare import hold_from_start, leaves_choice, prepare_chat
from vllama.chat.reply import Reply
from vllama.chat.request import (
    Call,
    ChatRequest,
    Fitting,
    LoadOptions,
    Message,
    PreparedChat,
    Sampling,
    Think,
    guess_tokens,
)
from vllama.chat.schema_check import SchemaCheck
from vllama.chat.stops import StopFilter, check_stops, make_stop_filter
from vllama.chat.templates.go_template_prompt import GoTemplate
from vllama.chat.templates.jinja.renderer import Renderer
from vllama.chat.thinking_pass import ThinkingPass
from vllama.chat.writer import Writer
from vllama.dialects.ollama.options import OPTION_FIELDS
from vllama.models.lookup import Entry
from vllama.models.settings import ModelSettings
from vllama.models.types import Bundle, Capability, Format
from vllama.net.upstream.pool import Upstream
from vllama.routes.prompts.inspection import Inspection, prepare_inspection
from vllama.routes.prompts.prompt import Prompt, PromptMaker
from vllama.routes.prompts.templates import find_style, find_template, insert_text, strip_bos
from vllama.routes.prompts.tokenizer import (
    count_conversation,
    decode_tokens,
    find_unknown,
    tokenize,
)

COUNT_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """A request that its model can answer, completed with what the model brings.

    `template` is the Go template in force, None if there is none.
    """

    entry: Entry
    asked: ChatRequest
    sampling: Sampling
    load: LoadOptions
    template: GoTemplate | None

    @property
    def thinks(self) -> bool:
        """True if the model can think."""
        return Capability.THINKING in self.entry.info.capabilities

    @property
    def is_thinking_shown(self) -> bool | None:
        """True if thinking belongs into the response; None: the model has none."""
        return self.asked.think is not False if self.thinks else None


def check_request(entry: Entry, asked: ChatRequest, what: str) -> CheckedRequest:
    """Complete a request with the model's own messages and options.

    `what` names the route in an error. Raises CapabilityMissing for what the model cannot do, and
    BadRequest for options and templates that cannot be read.
    """
    capabilities = entry.info.capabilities
    # a request that only loads the model does not use a template of its own
    own = None if asked.is_empty else asked.template
    template = None if asked.raw else find_template(entry, own)
    inserts = Capability.INSERT in capabilities or (template and template.takes_suffix)
    if asked.think and Capability.THINKING not in capabilities:
        if asked.effort and entry.bundle.format is not Format.GGUF:  # as engines do (decision 39)
            return check_request(entry, replace(asked, think=None), what)
        raise CapabilityMissing(f'"{asked.model}" does not support thinking')
    if Capability.COMPLETION not in capabilities:
        raise CapabilityMissing(f'"{asked.model}" does not support {what}')
    if asked.suffix and not inserts:
        raise CapabilityMissing(f"{entry.full_name} does not support insert")
    # any model can make a forced call, through a schema
    if leaves_choice(asked) and Capability.TOOLS not in capabilities:
        raise CapabilityMissing(f"{entry.full_name} does not support tools")
    if asked.tools:  # Ollama takes tools without a name, which nobody can call
        named = [tool for tool in asked.tools if (tool.get("function") or {}).get("name")]
        asked = replace(asked, tools=tuple(named))
    asked = apply_settings(asked, entry.bundle.settings)
    sampling, load = entry.options(asked.options)
    # a server elsewhere has defaults of its own, and so may a model's files
    known = asked.assumed if entry.bundle.upstream is not None else entry.own_sampling
    if entry.bundle.upstream is not None:
        theirs = sampling.own.intersection(asked.assumed)
        sampling = replace(sampling, left_out=sampling.left_out | theirs)
    assumed = {name: x for name, x in asked.assumed.items() if name not in known}
    if given := {**assumed, **asked.parameters}:
        left = (sampling.left_out.difference(given), sampling.own.difference(given))
        sampling = replace(sampling, **given, left_out=left[0], own=left[1])
    check_stops(sampling.stop)
    if (limit := entry.limit_answer(sampling.max_tokens)) != sampling.max_tokens:
        sampling = replace(sampling, max_tokens=limit)
    if asked.messages and not asked.is_text:
        asked = replace(
            asked, messages=add_own_messages(asked, entry.bundle, system_first=what == "generate")
        )
    return CheckedRequest(entry=entry, asked=asked, sampling=sampling, load=load, template=template)


def apply_settings(asked: ChatRequest, settings: ModelSettings) -> ChatRequest:
    """Take out of a request what the user's settings for the model replace, or do not want.

    The values themselves come with the model's options (`Entry.options`).
    """
    force, strip = settings.force or {}, settings.strip or ()
    if not (force or strip or settings.defaults):
        return asked
    gone = {OPTION_FIELDS.get(name, name) for name in (*force, *strip)}
    usual = gone | {OPTION_FIELDS.get(name, name) for name in settings.defaults or ()}
    return replace(
        asked,
        parameters={name: x for name, x in asked.parameters.items() if name not in gone},
        assumed={name: x for name, x in asked.assumed.items() if name not in usual},
        extra={name: x for name, x in asked.extra.items() if name not in gone},
    )


def add_own_messages(
    asked: ChatRequest, bundle: Bundle, *, system_first: bool = False
) -> tuple[Message, ...]:
    """Put what the model brings before the conversation: its SYSTEM, then its MESSAGEs.

    `system_first`: a system prompt of the request's own stays before them, as with Ollama's
    `/api/generate`. The model's is left out if the conversation itself begins with one, and the
    messages if it goes on from the tokens of an earlier answer, which has them.
    """
    own = tuple(map(make_own_message, () if asked.context else bundle.messages))
    if system_first and asked.messages[0].role == "system":
        return (asked.messages[0], *own, *asked.messages[1:])
    messages = (*own, *asked.messages)
    if not bundle.system or asked.messages[0].role in ("system", "developer"):
        return messages
    return (Message(role="system", content=bundle.system), *messages)


def make_own_message(item: Mapping[str, object]) -> Message:
    """Return a message that a model brings."""
    images = item.get("images")
    return Message(
        role=str(item.get("role", "user")),
        content=str(item.get("content", "")),
        images=tuple(map(str, images)) if isinstance(images, list) else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A prepared request: what is sent to the engine, and what to expect of its answer.

    `limit` bounds the tokens of the answer, None: the end of the engine's context does. `is_text`:
    the answer goes on a text, so that nothing in it is thinking. `keeps_thinking_end`: as Ollama's
    answers to prompts made with a Go template do. `source`: see `compose_filters`. `generate`: the
    body for an upstream Ollama. `inspection`: what is collected, and how the model is steered.
    `special_tokens`: those that the engine leaves in the text, and that are taken out of it.
    """

    chat: PreparedChat
    sampling: Sampling
    maker: PromptMaker
    prompt: Prompt
    limit: int | None
    thinks: bool
    is_text: bool
    keeps_thinking_end: bool
    source: CallSource
    special_tokens: tuple[str, ...] = ()
    generate: Mapping[str, Any] | None = None
    inspection: Inspection | None = None

    def make_call(self) -> Call:
        """Return the request to the engine. Raises BadRequest, CapabilityMissing."""
        call = self._make_call()
        return call if self.inspection is None else self.inspection.add_to(call)

    def _make_call(self) -> Call:
        prompt, chat, traits = self.prompt, self.chat, self.prompt.traits
        if self.generate is not None:
            return make_generate_call(chat, self.generate, self.sampling, traits)
        if not (prompt.finished or self.is_text):
            return make_chat_call(chat, self.sampling, traits)
        if chat.response_format is not None and not traits.formats_completions:
            raise BadRequest(
                "cannot use 'format' with a rendered prompt (raw, suffix, context or a "
                "template of the request): this engine supports formats only in chats",
                hint="remove one of them, or use an engine that supports it, such as llama-server",
            )
        return make_completion_call(chat, prompt.sent, self.sampling, traits)

    def make_reply(
        self,
        writer: Writer,
        *,
        stops: StopFilter | None = None,
        as_chat: bool = True,
        in_one: WholeReader | None = None,
    ) -> Reply:
        """Return the reply that `writer` writes; `stops` instead of those that were asked for.

        `as_chat`: the writer wants the chunks of a chat, also where a completion is sent. `in_one`
        reads an answer that comes as one object.
        """
        prompt, traits = self.prompt, self.prompt.traits
        reader = None if self.generate is None else GenerateReader()
        whole = None if self.inspection is None else self.inspection.make_reader()
        filters = compose_filters(
            traits,
            tools=self.chat.toolset or False,
            thinks=self.thinks and not self.is_text,
            think_opened=prompt.opens_thinking and not self.chat.constrained,
            keeps_thinking_end=self.keeps_thinking_end,
            from_completion=as_chat and prompt.finished and not self.is_text,
            is_whole=not writer.streams,
            source=self.source,
            special_tokens=self.special_tokens,
        )
        check = None
        if self.chat.half_held and not self.chat.continues:
            filters.append(check := SchemaCheck(self.chat.half_held))
        reply = Reply(
            writer,
            filters,
            stops=stops or make_stop_filter(self.sampling.stop, traits),
            prompt_tokens=prompt.tokens,
            max_tokens=self.limit,
            tools=self.chat.called,
            reader=whole or in_one or reader,
            passes=ThinkingPass(traits, closing=find_open(prompt.text or ""))
            if self.chat.thinks_first
            else None,
        )
        if self.inspection is not None and whole is not None:
            reply.collect = partial(self.inspection.collect, whole, reply.tally)
        reply.count_prompt, reply.check = self.count_or_guess, check
        reply.prompt_text = prompt.whole_text
        reply.continues_prompt = prompt.finished or self.is_text
        return reply

    async def count_prompt(self, asked: Mapping[str, object] | None = None) -> int | None:
        """Return the tokens of the prompt, counted by the engine if it can in any way.

        `asked` is the request in Anthropic's form, if it came so. Raises VllamaError.
        """
        prompt, chat, maker = self.prompt, self.chat, self.maker
        if prompt.tokens is None and prompt.text is None:
            _, prompt = await maker.from_chat(
                chat.messages, chat.tools, think=chat.think, always=True
            )
        if prompt.tokens is None and not (prompt.finished or self.is_text or self.generate):
            call = self.make_call()
            counted = await count_conversation(maker.upstream, maker.traits, asked, call.fields)
            if counted is not None:
                return counted
        if prompt.tokens is None:  # no template: the text is most of it
            text = prompt.text or "\n".join(item.content for item in chat.messages)
            prompt = await maker.from_text(text)
        return prompt.tokens

    async def make_context(self, answer: str, upstream: Upstream) -> list[int] | None:
        """Return the tokens of prompt and response together, for `context`.

        `upstream` has answered; it may have been started since the prompt was made.
        """
        if self.prompt.text is None:
            return None
        return await tokenize(upstream, self.maker.traits, self.prompt.text + answer)

    async def count_or_guess(self) -> int:
        """Return the tokens of a prompt whose client has left, guessed if nobody counts them."""
        with suppress(VllamaError, TimeoutError):
            async with asyncio.timeout(COUNT_LIMIT_S):
                if (tokens := await self.count_prompt()) is not None:
                    return tokens
        return guess_tokens(self.prompt.text or "\n".join(m.content for m in self.chat.messages))


async def prepare(
    checked: CheckedRequest,
    traits: Traits,
    renderer: Renderer,
    upstream: Upstream,
    *,
    n: int = 1,
    counts: bool = False,
    text_wanted: bool = False,
) -> Turn:
    """Make a request fit for the engine of `traits`.

    `n`: how many choices the engine is asked for. `counts`: the prompt is rendered and counted even
    if the engine does so; `text_wanted`: its text is needed. Raises BadRequest, ContextOverflow,
    CapabilityMissing.
    """
    entry, asked, sampling = checked.entry, checked.asked, checked.sampling
    chat = prepare_chat(
        asked,
        traits,
        find_style(entry, checked.template),
        n=n,
        renders=checked.template is not None,
        thinks=checked.thinks,
    )
    # with some engines only their own chat route holds an answer to a format
    chat_only = chat.response_format is not None and not traits.formats_completions
    # a template that was asked for is not given up for a format in silence
    template = checked.template if asked.template or not chat_only else None
    truncate = not traits.openai_in_full if asked.truncate is None else asked.truncate
    fitting = Fitting(truncate=truncate, shift=asked.shift, num_keep=sampling.num_keep)
    maker = PromptMaker(entry.info, renderer, upstream, traits, template, fitting)
    think: Think = None
    if checked.thinks:
        think = True if chat.think is None else chat.think
    if asked.is_text:
        text = asked.prompt
        if not asked.raw:
            text = await insert_text(
                entry, renderer, text, asked.suffix, template=checked.template, think=think
            )
        prompt = await maker.from_text(text)
    elif asked.context:
        if find_unknown(asked.context, entry.info.vocab_size) is not None:
            raise BadRequest("cannot use 'context': it has tokens of another model")
        before = await decode_tokens(entry.info, upstream, traits, asked.context)
        _, newest = await maker.from_chat(chat.messages, (), think=think, always=True)
        text = before + (newest.text or asked.messages[-1].content)
        prompt = await maker.from_text(strip_bos(text, entry.info), newest)
    else:
        kept, prompt = await maker.from_chat(
            chat.messages,
            chat.tools,
            think=think,
            always=counts,
            # a completion's log probabilities say less; but only one continues an answer
            chat_only=(chat_only and not asked.template) or (chat.logprobs and not chat.continues),
            text_wanted=text_wanted or traits.slots is not None,
            finish=chat.thinks_first,
        )
        chat = replace(chat, messages=kept)
        if chat.thinks_first and not prompt.finished:  # its template was of no use
            chat = hold_from_start(chat, asked, thinks=True)
    limit = None
    if not asked.debug_render_only:
        prompt = await maker.shorten(prompt)
        limit = compute_answer_limit(
            sampling.max_tokens, traits, prompt.tokens, shift=fitting.shift
        )
        if not asked.shift:
            sampling = replace(sampling, max_tokens=limit)
    name = traits.model_name or entry.bundle.name
    source = upstream.call_sources.setdefault(name, CallSource(model=name))
    is_text = asked.is_text or bool(asked.context)
    thinks, special = checked.thinks and not is_text, entry.info.special_tokens
    scans, splits, _ = choose_reading(prompt.traits, chat.toolset or False, thinks, source)
    # some of vLLM's own parsers look for marks that it strips, too
    marked = (thinks or chat.toolset is not None) and has_marks(special)
    if traits.fields_for_marks and (scans or splits or marked):
        if chat.extra.get("skip_special_tokens") is False:  # the client wants them
            special = ()
        chat = replace(chat, extra={**chat.extra, **traits.fields_for_marks})
    else:
        special = ()
    turn = Turn(
        chat=chat,
        sampling=sampling,
        maker=maker,
        prompt=prompt,
        limit=limit,
        thinks=checked.thinks,
        is_text=is_text,
        keeps_thinking_end=template is not None,
        source=source,
        special_tokens=special,
        generate=make_source(checked, prompt) if traits.generates else None,
    )
    return turn if asked.inspect is None else await _inspect(turn, asked.inspect, entry, traits)


async def _inspect(turn: Turn, asked: Inspect, entry: Entry, traits: Traits) -> Turn:
    """Add the request's inspection; the response is no longer than can be collected."""
    inspection = prepare_inspection(asked, entry, traits)
    limit, sampling = turn.limit, turn.sampling
    if inspection.layers:
        tokens = await turn.count_or_guess()
        limit = inspection.limit_answer(tokens, sampling.max_tokens, traits.window)
        sampling = replace(sampling, max_tokens=limit)
    return dataclasses.replace(turn, inspection=inspection, limit=limit, sampling=sampling)


def make_source(checked: CheckedRequest, prompt: Prompt) -> dict[str, Any] | None:
    """Return the body for another Ollama's `/api/generate`; None: its chat is used."""
    asked = checked.asked
    if not (asked.raw or prompt.finished):
        return None
    text = asked.prompt if asked.raw else prompt.sent
    load = {name: x for name, x in asdict(checked.load).items() if x is not None}
    return {"prompt": text, "raw": True, "images": asked.images, "options": load}
