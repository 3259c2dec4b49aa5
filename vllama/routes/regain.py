"""Asking an engine once more for an answer's text, where it lost parts of it (`regained`)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from vllama.chat.regained import RegainedReply, streamed_text, text_only
from vllama.chat.reply import Reply
from vllama.chat.request import Call
from vllama.errors import VllamaError
from vllama.http.request import Request, now_ns
from vllama.routes.inference import unless_gone
from vllama.upstream.pool import Upstream

log = logging.getLogger(__name__)


def regaining(
    request: Request,
    reply: Reply,
    call: Call,
    upstream: Upstream,
    then: Callable[[], Awaitable[None]] | None = None,
) -> Callable[[], Awaitable[None]] | None:
    """Return what a relay does before the end: give the reply what it lost, and then `then`.

    None if there is nothing to do.
    """
    if not isinstance(reply, RegainedReply):
        return then

    async def before_finish() -> None:
        if reply.lost:
            text = ""
            try:
                answer = await unless_gone(request, upstream.fetch(text_only(call)))
                text = streamed_text(answer.body) if answer.status == 200 else ""
            except VllamaError as error:
                log.warning("cannot regain the lost characters of an answer: %s", error.message)
            reply.regain(text, now_ns())
        if then is not None:
            await then()

    return before_finish
