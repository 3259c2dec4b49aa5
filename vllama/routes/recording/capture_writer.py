"""Makes captures of recorded requests and answers, and writes them to a folder.

Recording keeps bytes that are there anyway (`AnswerRecorder`). Everything else (encoding, writing,
removing old captures) happens in a thread, for the captures of a moment together, because waking a
thread costs more than its work; what cannot be written is lost, with a warning, and no request
waits for it or fails by it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from vllama import __version__
from vllama.base import executors
from vllama.base.clock import now_ns, wait_for
from vllama.base.log_context import Outcome
from vllama.base.units import rfc3339_utc
from vllama.chat.reply import Reply
from vllama.chat.request import Call
from vllama.dialects.events import EndedRow
from vllama.net.http.request import Request
from vllama.net.upstream.pool import Upstream
from vllama.observe.captures.folder import CaptureFolder
from vllama.observe.captures.format import (
    Body,
    Capture,
    CapturedAnswer,
    CapturedRequest,
    Engine,
    Failure,
    Model,
    Piece,
    Times,
    Tokens,
    encode_parts,
)
from vllama.routes.in_use import InUse
from vllama.routes.recording.answer_recorder import AnswerRecorder
from vllama.routes.recording.running import (
    RunningRequest,
    compute_speed,
    find_cached_tokens,
    list_usages,
    sum_prompt_tokens,
)
from vllama.routes.recording.stage import Stage
from vllama.scheduler.instance import Lease

log = logging.getLogger(__name__)

MAX_WAITING_BYTES = 64 * 1024**2
"""Of captures that are still to be written; more are dropped."""
MOMENT_S = 0.2
"""How long a capture waits for others to be written with."""

SHOWN_HEADERS = frozenset(
    {
        "accept", "accept-encoding", "accept-language", "anthropic-beta", "anthropic-version",
        "connection", "content-encoding", "content-length", "content-type", "expect", "host",
        "openai-beta", "origin", "traceparent", "transfer-encoding", "user-agent", "x-request-id",
        "x-stainless-arch", "x-stainless-async", "x-stainless-lang", "x-stainless-os",
        "x-stainless-package-version", "x-stainless-retry-count", "x-stainless-runtime",
        "x-stainless-runtime-version", "x-stainless-timeout",
    }
)  # fmt: skip
"""Headers whose values are kept. Of all others only the names are: any of them may be a secret."""
PROMPT_FIELDS = frozenset(
    {"messages", "prompt", "input", "tools", "documents", "query", "suffix", "chat_template_kwargs"}
)
"""Fields of an engine's body that say what the request's own body says."""


class Captures(Stage):
    """The captures of a server: what it records, and the folder where that ends up."""

    def __init__(self, folder: CaptureFolder, in_use: InUse) -> None:
        self.folder = folder.path
        self._in_use = in_use
        self._folder = folder
        self._waiting: list[_Recorded] = []
        self._has_any, self._closing = asyncio.Event(), asyncio.Event()
        self._waiting_bytes = 0
        self._is_failing = False
        log.warning("requests are captured in %s, including prompts and responses", folder.path)

    async def admitted(self, running: RunningRequest) -> None:
        """Begin to record; the body is read, and left to be read again."""
        if not running.route.captured:
            return
        request = running.request
        body = await request.body()
        request.put_back(body)
        request.recorder = running.recorder = AnswerRecorder(body)

    async def before_send(
        self, running: RunningRequest, reply: Reply, upstream: Upstream, call: Call
    ) -> Call:
        """Note what the engine is asked."""
        recorder = running.recorder
        if recorder is not None and running.answers[-1].new_prompt and not reply.resumes_text:
            recorder.call = call  # of the first choice, whose seed is the request's
        return call

    def ended(self, running: RunningRequest, row: EndedRow) -> None:
        """Hand over what was recorded of a request that has ended."""
        recorder = running.recorder
        if recorder is None:
            return
        lease = running.lease
        recorded = _Recorded(
            request=running.request,
            recorder=recorder,
            key=running.key,
            model=describe_model(lease) if lease else None,
            engine=describe_engine(lease) if lease else None,
            settings=self._in_use.now.answering,
            times=describe_times(running, now_ns()),
            tokens=describe_tokens(running),
            outcome=row.outcome,
        )
        if self._waiting_bytes + recorded.size_bytes > MAX_WAITING_BYTES:
            self._warn("captures arrive faster than '%s' can be written", self.folder)
            return
        self._waiting_bytes += recorded.size_bytes
        self._waiting.append(recorded)
        self._has_any.set()

    async def run(self) -> None:
        """Write captures until `close`."""
        while await self._has_any.wait():
            await wait_for(self._closing, MOMENT_S)
            self._has_any.clear()
            batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
            await executors.upkeep.run(self._write, batch)
            if self._closing.is_set() and not self._waiting:
                return

    def close(self) -> None:
        """Let `run` end as soon as all that was recorded is written."""
        self._closing.set()
        self._has_any.set()

    def _write(self, batch: Sequence[_Recorded]) -> None:
        """Write captures; blocks."""
        for recorded in batch:
            try:
                self._folder.write(recorded.make_capture())
                self._is_failing = False
            except OSError as error:
                reason = error.strerror or error
                self._warn("cannot write captures to '%s': %s", self.folder, reason)
            except Exception:
                # boundary: a bug in recording must not end the server
                log.exception("cannot capture a request: unexpected error")

    def _warn(self, text: str, *values: object) -> None:
        """Warn about captures that are lost, once until the next one is written."""
        if not self._is_failing:
            log.warning(text + "; requests are served but not captured", *values)
        self._is_failing = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """The record of a request: taken in the loop, made into a capture in a thread."""

    request: Request
    recorder: AnswerRecorder
    key: str
    model: Model | None
    engine: Engine | None
    settings: Mapping[str, str]
    times: Times
    tokens: Tokens | None
    outcome: Outcome

    @property
    def size_bytes(self) -> int:
        """The memory that it takes, in bytes."""
        return self.recorder.memory_bytes

    def make_capture(self) -> Capture:
        """Return it in the form of the files."""
        request, recorder, engine = self.request, self.recorder, self.engine
        failure = request.failure
        taken = recorder.list_parts()
        encoding, parts = encode_parts([part for _, part in taken])
        offsets_s = [(at_ns - request.started_ns) / 1e9 for at_ns, _ in taken]
        asked = find_model_name(recorder.body) or (self.model.name if self.model else "")
        if engine is not None:
            engine = msgspec.structs.replace(engine, sampling=list_sampling(recorder.call))
        return Capture(
            id=request.number,
            request_id=request.id,
            received_at=rfc3339_utc(request.started_ns),
            vllama=__version__,
            client=request.client_host,
            key=self.key or None,
            request=CapturedRequest(
                method=request.method,
                path=request.path,
                model=asked,
                headers=select_headers(request.headers),
                body=Body.of(recorder.body, recorder.body_bytes),
            ),
            model=self.model,
            engine=engine,
            settings=self.settings,
            times=self.times,
            answer=CapturedAnswer(
                status=request.status,
                content_type=recorder.content_type,
                size_bytes=sum(len(part) for _, part in taken) + recorder.left_out_bytes,
                cut=recorder.left_out_bytes > 0,
                encoding=encoding,
                parts=[
                    Piece(round(at_s, 6), data) for at_s, data in zip(offsets_s, parts, strict=True)
                ],
            ),
            outcome=self.outcome,
            error=Failure(message=failure.message, hint=failure.hint) if failure else None,
            tokens=self.tokens,
        )


def select_headers(headers: Mapping[bytes, bytes]) -> dict[str, str | None]:
    """Return the headers as a capture has them: without any value that may be a secret."""
    texts = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
    return {name: value if name in SHOWN_HEADERS else None for name, value in texts.items()}


def find_model_name(body: bytes) -> str:
    """Return the name of a model that a body asks for, "" if it is not JSON or has none."""
    try:
        found = msgspec.json.decode(body, type=_Named).model
    except (ValueError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


class _Named(msgspec.Struct):
    model: Any = ""


def describe_times(running: RunningRequest, ended_ns: int) -> Times:
    """Return how long the parts of a request took."""
    began_ns, first_ns, lease = running.request.started_ns, running.first_token_ns, running.lease
    queued_s = load_s = 0.0
    if lease is not None:
        queued_s, instance = lease.queued_s, lease.instance
        loading_from_s = max(lease.began_s - queued_s, instance.ready_s - instance.load_s)
        load_s = max(0.0, min(lease.began_s, instance.ready_s) - loading_from_s)
    return Times(
        queued_s=round(queued_s, 6),
        load_s=round(load_s, 6),
        first_token_s=round((first_ns - began_ns) / 1e9, 6) if first_ns else None,
        total_s=round((ended_ns - began_ns) / 1e9, 6),
    )


def describe_tokens(running: RunningRequest) -> Tokens | None:
    """Return the tokens of a request; None if nothing was generated for it."""
    usages, rate = list_usages(running), compute_speed(running)
    if not usages:
        return None
    return Tokens(
        prompt=sum_prompt_tokens(running) or 0,
        generated=running.generated_tokens,
        cached=find_cached_tokens(running),
        estimated=any(usage.estimated for usage in usages),
        per_s=round(rate, 3) if rate else None,
    )


def describe_model(lease: Lease) -> Model:
    """Return which files answered."""
    bundle = lease.instance.bundle
    return Model(
        name=bundle.name,
        digest=bundle.digest,
        format=str(bundle.format),
        quantization=bundle.quant,
    )


def describe_engine(lease: Lease) -> Engine | None:
    """Return which engine answered, and how it was started; None without a plan."""
    plan = lease.instance.plan
    if plan is None:
        return None
    settings = plan.settings
    return Engine(
        name=plan.engine,
        version=plan.installation.version,
        context_length=lease.traits.context_length,
        parallel=settings.parallel,
        threads=settings.threads,
        gpu_layers=settings.gpu_layers,
        kv_cache_type=settings.kv_cache_type,
        flash_attention=settings.flash_attention,
        extra_args=settings.extra_args,
    )


def list_sampling(call: Call | None) -> dict[str, Any]:
    """Return the fields that an engine was sent beside the prompt."""
    given = call.fields.items() if call is not None else ()
    return {name: value for name, value in given if name not in PROMPT_FIELDS}
