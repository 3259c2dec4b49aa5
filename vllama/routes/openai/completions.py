"""OpenAI's older route, `POST /v1/completions`.

See docs/reference/ollama-api.md#openai-completions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from vllama.chat.engine.request import COMPLETION_PATH
from vllama.chat.engine.traits import Traits
from vllama.chat.reply import EVENT_STREAM
from vllama.chat.request import Call, Fitting, Sampling
from vllama.dialects.openai.choices import Part, reseed
from vllama.dialects.openai.completions import (
    CompletionRequest,
    parse_completion,
)
from vllama.dialects.openai.extras import add_effort, take_extras
from vllama.dialects.openai.read import adapt_completion, parse_openai
from vllama.dialects.openai.write_text import TextWriter, answer_without_engine
from vllama.engines.base import Mode
from vllama.errors import CapabilityMissing
from vllama.http.request import JSON, Request, now_ns
from vllama.models.types import Capability
from vllama.rendering.renderer import Renderer
from vllama.routes.affinity import hash_text
from vllama.routes.catalog import Entry
from vllama.routes.chat_pipeline import Turn, add_own_messages, prepare_turn
from vllama.routes.inference import make_need, with_lease
from vllama.routes.openai.common import find_v1_model, make_fitting, make_ignored_header
from vllama.routes.openai.multi_choice import Choice, relay_choices
from vllama.routes.prompt import Prompt, make_dropped_header
from vllama.routes.prompt_templates import render_insertion
from vllama.scheduler.instance import Lease
from vllama.upstream.pool import Upstream

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


async def completions(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/completions`: continue prompts."""
    body, extras = take_extras(parse_openai(await request.body()))
    asked = parse_completion(add_effort(body, extras.think))
    entry = await find_v1_model(gateway, asked.model)
    name = str(asked.model)
    if asked.suffix:
        render_insertion(entry, "", asked.suffix)  # raises where there is no way to ask for it
    if Capability.COMPLETION not in entry.info.capabilities:
        raise CapabilityMissing(f'"{name}" does not support generate')
    defaults, load = entry.options(extras.options)
    if asked.max_tokens is None:
        asked = replace(asked, max_tokens=defaults.max_tokens)
    need = make_need(load, Mode.CHAT, logprobs=asked.logprobs is not None)
    fitting = make_fitting(request, extras, defaults)

    async def use(lease: Lease, upstream: Upstream) -> None:
        if asked.loads or asked.max_tokens == 0:
            answer = answer_without_engine(asked, name, now_ns(), request.number)
            kind = EVENT_STREAM.encode() if asked.stream else JSON
            request.respond(200, answer, kind)
            return
        choices: list[Choice] = []
        prompts: list[Prompt] = []
        parts = iter(Part.several([asked.n] * len(asked.prompts)))
        for text in asked.prompts:
            turn = await prepare_text_turn(
                entry, asked, text, gateway.renderer, upstream, lease.traits, defaults, fitting
            )
            prompts.append(turn.prompt)
            for number in range(asked.n):
                writer = TextWriter(
                    turn.options,
                    echo=text if asked.echo else "",
                    top=asked.logprobs or 0,
                    part=next(parts),
                )
                call = reseed(turn.call, lease.traits, number)
                choices.append(Choice(call=call, reply=turn.reply(writer), new_prompt=number == 0))
        headers = make_ignored_header(asked.ignored) | make_dropped_header(*prompts)
        whole = not asked.stream
        await relay_choices(
            gateway, request, entry.bundle, upstream, choices, whole=whole, headers=headers
        )

    prefix = hash_text(*asked.prompts[:1])
    await with_lease(gateway, request, entry.bundle, need, extras.keep_alive, use, prefix)


async def prepare_text_turn(
    entry: Entry,
    asked: CompletionRequest,
    text: str,
    renderer: Renderer,
    upstream: Upstream,
    traits: Traits,
    defaults: Sampling,
    fitting: Fitting,
) -> Turn:
    """Return one prompt as a turn of a chat, or as the finished text that it is.

    Finished is what is asked for as `raw`, and a text with a gap.
    """
    if not asked.raw and not asked.suffix:
        body = add_own_messages(asked.chat(text), entry.bundle)
        turn = await prepare_turn(
            entry, body, renderer, upstream, traits, defaults=defaults, fitting=fitting
        )
        options = replace(turn.options, kind="completion", include_usage=asked.include_usage)
        return replace(turn, options=options)
    finished = render_insertion(entry, text, asked.suffix) if asked.suffix else text
    prompt = Prompt(entry.info, renderer, upstream, traits, fitting=fitting)
    await prompt.take(finished)
    await prompt.shorten()
    limit = prompt.limit(asked.max_tokens)
    sent = asked if fitting.shift else replace(asked, max_tokens=limit)
    body = sent.completion(prompt.sent)
    data, options = adapt_completion(body, traits, model=str(asked.model), defaults=defaults)
    options = replace(options, include_usage=asked.include_usage, max_tokens=limit)
    call = Call(path=COMPLETION_PATH, body=data)
    return Turn(call=call, options=options, prompt=prompt, thinks=False)
