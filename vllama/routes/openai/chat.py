"""The OpenAI routes, passed through to the engine's own.

What a client sends is only changed where the engine could not take it (`Traits`); the engine is
always asked to stream, so that a client who leaves stops the generation.

See docs/reference/ollama-api.md#openai-chat-completions, #openai-completions.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from vllama.base.clock import now_ns
from vllama.base.errors import BadRequest
from vllama.chat.engine.request import IN_ONE, ask_in_one, make_completion_call
from vllama.chat.engine.traits import Traits
from vllama.chat.inspect import WholeReader, check_single
from vllama.chat.prepare import prepare_chat
from vllama.chat.request import guess_tokens
from vllama.chat.writer import EVENT_STREAM
from vllama.dialects.openai.answer_types import ChatChunk, ChatCompletion, TextCompletion
from vllama.dialects.openai.choices import NthChoice, reseed
from vllama.dialects.openai.completions import (
    CompletionRequest,
    TextWriter,
    answer_without_engine,
    parse_completion,
)
from vllama.dialects.openai.extras import take_extras
from vllama.dialects.openai.read import parse_openai, read_chat
from vllama.dialects.openai.request_types import ChatCompletionBody, CompletionBody
from vllama.dialects.openai.write import StreamWriter, WholeWriter
from vllama.net.http.request import JSON, Request
from vllama.net.relay import Relay
from vllama.net.upstream.pool import Upstream
from vllama.plan.types import Need
from vllama.routes.inference.demand import hash_messages, hash_text, size_answers
from vllama.routes.inference.lease import with_lease
from vllama.routes.inference.relay import name_ignored, run_relay
from vllama.routes.openai.common import (
    NextChoice,
    find_text_model,
    find_v1_model,
    make_options,
    make_raw_reply,
    read_truncate,
    relay_choices,
)
from vllama.routes.prompts.prepare import CheckedRequest, check_request, prepare
from vllama.routes.prompts.prompt import Prompt, make_dropped_header
from vllama.routes.route import Framing, RouteKind, Stream, Task, openai_route
from vllama.scheduler.instance import Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


async def chat(gateway: Gateway, request: Request) -> None:
    """Continue a conversation.

    Unknown fields are passed on to the engine.
    """
    body, extras = take_extras(parse_openai(await request.body(), ChatCompletionBody))
    asked = read_chat(body, extras, truncate=read_truncate(request, extras, default=None))
    check_single(asked.inspect, asked.n)
    entry = await find_v1_model(gateway, asked.model)
    checked = check_request(entry, asked, "chat")
    options = make_options(asked)
    need = Need(load=checked.load, logprobs=asked.logprobs)

    async def use(lease: Lease, upstream: Upstream) -> None:
        traits = lease.traits
        # without sampling they are alike, and engines refuse to make several of them
        together = traits.takes_n and checked.sampling.temperature != 0
        in_one = None
        may_be_one = traits.openai_in_full and not (asked.stream or asked.inspect)
        if may_be_one and any(asked.extra.get(name) for name in IN_ONE):
            together, in_one = True, WholeReader(upstream.most_answer_bytes)
        turn = await prepare(
            checked, traits, gateway.renderer, upstream, n=asked.n if together else 1
        )
        call = ask_in_one(turn.make_call()) if in_one else turn.make_call()
        choices = [
            NextChoice(
                call=reseed(call, traits, number),
                reply=turn.make_reply(
                    StreamWriter(options, part) if asked.stream else WholeWriter(options, in_one),
                    in_one=in_one,
                ),
                new_prompt=number == 0,
            )
            for number, part in enumerate(NthChoice.several([1 if together else asked.n]))
        ]
        name_ignored(request, turn.chat.ignored)
        headers = make_dropped_header(turn.prompt)
        whole = not asked.stream
        await relay_choices(
            gateway, request, entry.bundle, upstream, choices, whole=whole, headers=headers
        )

    prefix, size = hash_messages(asked.messages), size_answers([checked], asked.n)
    await with_lease(
        gateway, request, entry.bundle, need, asked.keep_alive, use, prefix,
        size=size, streams=asked.stream,
    )  # fmt: skip


async def completions(gateway: Gateway, request: Request) -> None:
    """Complete prompts.

    vLLM responds as it does without vllama, including prompt token IDs and log probabilities.
    Other engines apply the model's template to a prompt; `raw` sends it unchanged.
    """
    body, extras = take_extras(parse_openai(await request.body(), CompletionBody))
    asked = parse_completion(body)
    check_single(extras.inspect, asked.n * len(asked.prompts))
    truncate = read_truncate(request, extras, default=None)
    entry = await find_text_model(gateway, asked.model)

    def check(*, raw: bool) -> list[CheckedRequest]:
        asks = (asked.read_prompt(one, extras, truncate=truncate, raw=raw) for one in asked.prompts)
        return [check_request(entry, one, "generate") for one in asks]

    given = check(raw=False)
    need = Need(load=given[0].load, logprobs=asked.logprobs is not None)

    async def use(lease: Lease, upstream: Upstream) -> None:
        texts, in_full = given, lease.traits.openai_in_full and asked.raw is not False
        if in_full and not asked.suffix:
            texts = check(raw=True)
            if not (asked.loads or extras.inspect):
                await pass_completion(gateway, request, asked, texts[0], lease.traits, upstream)
                return
        if not all(isinstance(prompt, str) for prompt in asked.prompts):
            raise BadRequest(
                "cannot use token IDs as 'prompt': the engine of this model accepts only text"
            )
        if asked.loads or texts[0].sampling.max_tokens == 0:
            answer = answer_without_engine(asked, asked.model, now_ns(), request.number)
            kind = EVENT_STREAM.encode() if asked.stream else JSON
            request.respond(200, answer, kind)
            return
        choices: list[NextChoice] = []
        prompts: list[Prompt] = []
        parts = iter(NthChoice.several([asked.n] * len(asked.prompts)))
        for text, checked in zip(asked.prompts, texts, strict=True):
            turn = await prepare(checked, lease.traits, gateway.renderer, upstream)
            prompts.append(turn.prompt)
            call = turn.make_call()
            for number in range(asked.n):
                writer = TextWriter(
                    make_options(checked.asked, "completion"),
                    echo=str(text) if asked.echo else "",
                    top=asked.logprobs or 0,
                    part=next(parts),
                )
                choices.append(
                    NextChoice(
                        call=reseed(call, lease.traits, number),
                        reply=turn.make_reply(writer),
                        new_prompt=number == 0,
                    )
                )
        name_ignored(request, [*asked.ignored, *turn.chat.ignored])
        headers = make_dropped_header(*prompts)
        whole = not asked.stream
        await relay_choices(
            gateway, request, entry.bundle, upstream, choices, whole=whole, headers=headers
        )

    prefix, size = hash_text(*asked.prompts[:1]), size_answers(given, asked.n)
    await with_lease(
        gateway, request, entry.bundle, need, extras.keep_alive, use, prefix,
        size=size, streams=asked.stream,
    )  # fmt: skip


async def pass_completion(
    gateway: Gateway,
    request: Request,
    asked: CompletionRequest,
    checked: CheckedRequest,
    traits: Traits,
    upstream: Upstream,
) -> None:
    """Forward all prompts at once to an engine that has OpenAI's route in full."""
    chat = prepare_chat(checked.asked, traits, None, n=asked.n)
    own = {
        "stream": asked.stream,
        "echo": asked.echo,
        "logprobs": asked.logprobs,
        "max_tokens": checked.sampling.max_tokens,
    }
    call = make_completion_call(chat, asked.sent, checked.sampling, traits, own)
    name_ignored(request, [*asked.ignored, *chat.ignored])
    reply = make_raw_reply(make_options(checked.asked, "completion"), upstream)
    reply.tally.expect(len(asked.prompts) * asked.n)

    async def count_prompts() -> int:
        return sum(guess_tokens(x) if isinstance(x, str) else len(x) for x in asked.prompts)

    reply.count_prompt = count_prompts
    relay = Relay(request, reply, whole=not asked.stream, headers={})
    await run_relay(gateway, request, checked.entry.bundle, relay, upstream, call)


_answers = partial(openai_route, kind=RouteKind.MODEL)
ROUTES = (
    _answers(
        "POST /v1/completions",
        completions,
        task=Task.COMPLETION,
        body=CompletionBody,
        answer=TextCompletion,
        stream=Stream(Framing.EVENTS, TextCompletion),
    ),
    _answers(
        "POST /v1/chat/completions",
        chat,
        task=Task.CHAT,
        body=ChatCompletionBody,
        answer=ChatCompletion,
        stream=Stream(Framing.EVENTS, ChatChunk),
    ),
)
