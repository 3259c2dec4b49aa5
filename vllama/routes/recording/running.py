"""The requests that are being answered: who asked for what, how far each is, and how one is ended.

Only requests to a model are listed: the others are over in a moment, or have progress of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from vllama.accounts.keys.key import ApiKey
from vllama.accounts.usage.entries import Amounts
from vllama.base import log_context
from vllama.base.errors import ModelNotFound, RequestEnded
from vllama.base.log_context import Outcome
from vllama.base.units import rfc3339_local
from vllama.chat.request import Usage
from vllama.dialects.events import EndedRow, RequestRow
from vllama.models.types import Bundle
from vllama.net.http.request import Request
from vllama.net.relay import Relay
from vllama.net.resumption import Resumer
from vllama.plan.types import Need
from vllama.routes.route import Route
from vllama.scheduler.instance import Prefix
from vllama.scheduler.turns import Flow

if TYPE_CHECKING:
    from vllama.accounts.keys.limits import Reservation
    from vllama.chat.tally import Tally
    from vllama.routes.recording.answer_recorder import AnswerRecorder
    from vllama.scheduler.instance import Lease
    from vllama.scheduler.views import QueuePlace
    from vllama.targets.nodes.forward import Forward, ForwardTally


MAX_PATH = 1000  # characters of a path, and of an error's text, that are kept of one that has ended
MAX_ERROR = 500
MAX_NAME = 200
is_row: ContextVar[bool] = ContextVar("is_row", default=False)
"""Whether the running request is a row of a batch."""


class Wanted(NamedTuple):
    """The model and options that the scheduler is asked for."""

    bundle: Bundle
    need: Need
    keep_alive_s: float | None
    prefix: Prefix | None


class Followed(NamedTuple):
    """An answer, or one choice of it, and what is counted in it."""

    relay: Relay | Forward
    tally: Tally | ForwardTally
    new_prompt: bool


class RunningRequest:
    """One request, from its first byte to the end of its answer."""

    __slots__ = (
        "_ended", "_task", "access", "admitted_to", "answers", "id", "is_metered", "is_paused",
        "is_row", "is_running", "key", "lease", "measure", "model", "read_tokens", "recorder",
        "request", "reserved", "resumed", "resumer", "route", "stop", "waits_for",
        "waits_for_tokens", "wanted",
    )  # fmt: skip

    def __init__(self, id_: str, request: Request, route: Route, access: ApiKey | None) -> None:
        """To be made in the task that answers. `access` is the key that the request shows."""
        self.id = id_
        self.request = request
        self.route = route
        self.access = access
        self.key = access.name if access is not None else ""
        self.model = ""
        self.is_row = is_row.get()
        self.is_running = False  # else it waits: for its turn, or for the model to be loaded
        self.is_paused = False  # a row: others have the engine
        self.wanted: Wanted | None = None  # by the last lease
        self.measure: Callable[[], int] | None = None  # the most tokens that it can take
        self.stop: Callable[[], bool] = bool  # a row; returns whether it leaves the engine
        self.lease: Lease | None = None  # the last one, even after it was released
        self.resumed = 0  # how often it has gone on after the end of its engine
        self.resumer: Resumer | None = None  # while its engine is one that may be asked again
        self.recorder: AnswerRecorder | None = None
        self.read_tokens = 0  # of inputs for which no text is generated, such as embeddings
        self.admitted_to: tuple[str, ...] = ()  # the models whose limits have been checked
        self.is_metered = False  # what it takes is still to be counted; see `metering`
        self.reserved: Reservation | None = None  # of its key's limits, until its end
        self.waits_for = ""  # what else it waits for while it has a slot
        self.waits_for_tokens = False  # other requests of its key have reserved what is left
        self.answers: list[Followed] = []
        self._task = asyncio.current_task()
        self._ended = False

    def start_over(self) -> None:
        """Forget an attempt that has failed; another model is to answer."""
        self.is_running, self.lease, self.read_tokens = False, None, 0
        self.answers.clear()

    @property
    def has_begun(self) -> bool:
        """True once a response has begun: its head is sent, or a token has come."""
        return bool(self.request.status) or self.first_token_ns is not None

    @property
    def expects_no_tokens(self) -> bool:
        """True while an engine works at it that gives no tokens, or has not been asked yet."""
        return self.is_running and not any(answer.tally.streams for answer in self.answers)

    @property
    def owner(self) -> str:
        """Whose files and stored responses it may see: those of its key, "" on a server without."""
        return f"{self.access.owner} {self.access.user}".rstrip() if self.access else ""

    @property
    def flow(self) -> Flow:
        """Whose turn the request takes in a queue: its key's, or that of the client's address."""
        if self.access is None:
            return Flow(self.request.client_host)
        return Flow(f"key {self.key} {self.access.user}".rstrip(), self.access.priority)

    def follow(
        self, relay: Relay | Forward, tally: Tally | ForwardTally, *, new_prompt: bool = True
    ) -> None:
        """Count the tokens of `relay` too; an answer of several choices has several.

        `new_prompt` False: its prompt is that of another one, whose tokens count.
        """
        self.answers.append(Followed(relay, tally, new_prompt))

    @property
    def first_token_ns(self) -> int | None:
        """The time of the first token, on the clock of `base.clock.now_ns`; None if unknown."""
        first_ns: int | None = None
        for answer in self.answers:  # these loops run with every request
            time_ns = answer.tally.first_token_ns
            if time_ns is not None and (first_ns is None or time_ns < first_ns):
                first_ns = time_ns
        return first_ns

    @property
    def generated_tokens(self) -> int:
        """Tokens of the answer so far."""
        return sum(answer.relay.tokens for answer in self.answers)

    def suspend(self) -> bool:
        """Stop its engine, to go on from what has come later; False if it cannot."""
        if len(self.answers) != 1:
            return False
        relay = self.answers[0].relay
        return isinstance(relay, Relay) and relay.suspend()

    def end(self) -> None:
        """End the answer with an error for the client, in whatever state it is."""
        self._ended = True
        if self.answers and self.answers[-1].relay.end(make_ended_error()):
            return
        if self._task is not None:
            self._task.cancel()

    def claims_cancellation(self) -> bool:
        """Tell whether the task was canceled by `end`; it then goes on, to answer."""
        if not self._ended or self._task is None:
            return False
        self._ended = False
        self._task.uncancel()
        return True


def make_ended_error() -> RequestEnded:
    """Return the error that the client of an ended request gets."""
    return RequestEnded("the request was stopped by another client")


def sum_amounts(running: RunningRequest, duration_us: int) -> Amounts:
    """Return the tokens that the request has taken so far; a call without a response took none."""
    amounts = Amounts(prompt_tokens=running.read_tokens, duration_us=duration_us)
    for relay, tally, new_prompt in running.answers:
        if not tally.has_begun:
            continue
        usage = tally.usage
        if new_prompt:
            amounts.prompt_tokens += usage.prompt_tokens
            amounts.cached_tokens += usage.cached_tokens or 0
        amounts.generated_tokens += usage.completion_tokens if tally.ended else relay.tokens
    return amounts


def list_usages(running: RunningRequest) -> list[Usage]:
    """Return the tokens so far, one for each choice of the answer."""
    return [answer.tally.usage for answer in running.answers]


def find_cached_tokens(running: RunningRequest) -> int | None:
    """Return the tokens of a prompt that came from the engine's cache; None: it does not tell."""
    usages = list_usages(running)
    return max((x.cached_tokens for x in usages if x.cached_tokens is not None), default=None)


def sum_prompt_tokens(running: RunningRequest) -> int | None:
    """Return the tokens of all prompts; None while nobody has counted them."""
    counted = (one.tally.usage.prompt_tokens for one in running.answers if one.new_prompt)
    return sum(counted) or None


def compute_speed(running: RunningRequest) -> float | None:
    """Return the speed of the answer from its first token to its last; None if it is unknown."""
    total_ns = later_tokens = 0
    for relay, _, _ in running.answers:
        total_ns += relay.span_ns
        later_tokens += relay.tokens - 1  # the first of each begins its span
    return later_tokens / total_ns * 1e9 if total_ns > 0 and later_tokens > 0 else None


def compute_prompt_speed(running: RunningRequest, least_tokens: int = 1) -> float | None:
    """Return the tokens per second of the prompts by the engine's own numbers.

    None if it tells none, or has read fewer than `least_tokens`.
    """
    told = [one.tally.timings for one in running.answers]
    tokens = sum(each.prompt_n or 0 for each in told)
    milliseconds = sum(each.prompt_ms or 0 for each in told)
    return tokens / milliseconds * 1000 if tokens >= least_tokens and milliseconds else None


def describe(running: RunningRequest, queue_place: QueuePlace | None) -> RequestRow:
    """Return a request's row in `GET /api/requests`."""
    return RequestRow(
        **_list_fields(running),
        model=running.model,
        path=running.request.path,
        state="running" if running.is_running and not running.waits_for else "waiting",
        queue_place=queue_place.place if queue_place else None,
        waits_for=queue_place.waits_for if queue_place else running.waits_for or None,
    )


def describe_end(running: RunningRequest, seconds: float, outcome: Outcome) -> EndedRow:
    """Return a request's row among those that have ended, `seconds` after it came."""
    request, rate, model = running.request, compute_speed(running), running.model
    prompt_rate = compute_prompt_speed(running)
    failure = request.failure
    named = failure.name if isinstance(failure, ModelNotFound) else log_context.requested.get()
    return EndedRow(
        **_list_fields(running),
        model=model,
        requested=(model or log_context.model.get() or named)[:MAX_NAME],
        path=request.path[:MAX_PATH],
        outcome=outcome,
        status=request.status,
        seconds=round(seconds, 3),
        cached_tokens=find_cached_tokens(running),
        prompt_tokens_per_s=round(prompt_rate, 1) if prompt_rate else None,
        tokens_per_s=round(rate, 1) if rate else None,
        error=failure.sentence()[:MAX_ERROR] if failure else None,
        capture=request.number if running.recorder is not None else None,
    )


def _list_fields(running: RunningRequest) -> dict[str, Any]:
    """Return the fields that both kinds of rows have."""
    request, first_ns = running.request, running.first_token_ns
    return {
        "id": running.id,
        "method": request.method,
        "dialect": running.route.dialect,
        "client": request.client_host,
        "key": running.key or None,
        "started_at": rfc3339_local(request.started_ns / 1e9),
        "prompt_tokens": sum_prompt_tokens(running),
        "generated_tokens": running.generated_tokens,
        "first_token_s": round((first_ns - request.started_ns) / 1e9, 3) if first_ns else None,
        "resumed": running.resumed,
    }


class RunningRequests:
    """All of them, by their ids."""

    def __init__(self) -> None:
        self._by_id: dict[str, RunningRequest] = {}
        self._by_request: dict[Request, RunningRequest] = {}

    def begin(self, request: Request, route: Route, access: ApiKey | None) -> RunningRequest:
        """Add a request; its id is the client's own unless another running request has that."""
        doubled = request.id in self._by_id
        id_ = f"{request.id}-{request.number}" if doubled else request.id
        running = RunningRequest(id_, request, route, access)
        self._by_id[id_] = self._by_request[request] = running
        return running

    def finish(self, running: RunningRequest) -> None:
        """Forget a request: its answer has ended."""
        del self._by_id[running.id], self._by_request[running.request]

    def of(self, request: Request) -> RunningRequest:
        """Return the known facts of a request."""
        return self._by_request[request]

    def find(self, id_: str) -> RunningRequest | None:
        """Return a request to a model by its id."""
        running = self._by_id.get(id_)
        return running if running and running.model else None

    def list_requests(self) -> list[RunningRequest]:
        """Return all requests to models."""
        return [running for running in self._by_id.values() if running.model]

    def list_rows(
        self, queue_places: Mapping[str, QueuePlace], key: str | None = None
    ) -> list[RequestRow]:
        """Return the rows of all requests to models, the oldest first; `key`: of one key only.

        `queue_places` has the places of those that wait, by their ids.
        """
        found = [one for one in self.list_requests() if key is None or one.key == key]
        found.sort(key=lambda running: running.request.started_ns)
        return [describe(running, queue_places.get(running.id)) for running in found]
