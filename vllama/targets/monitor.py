"""Health checks of targets.

`UpstreamMonitor` checks external servers (`--upstream`): which are up, which can serve, and since
when. A server that refuses the key, or lacks the path that is checked, cannot serve, but is up: its
answers are the client's. One that is down gets no requests. `probe_target` asks a target that has
failed a request, a replica too, for a few tokens: many servers whose health check succeeds answer
no request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence

import msgspec

from vllama.base.errors import CoolingDown, EngineError, UpstreamError
from vllama.chat.engine.refusals import clean_engine_error
from vllama.chat.request import Call
from vllama.net.upstream.pool import Upstream, Upstreams
from vllama.supervise.probe import Down, NoAnswer, find_trouble
from vllama.supervise.spec import Endpoint

log = logging.getLogger(__name__)

CHECK_LIMIT_S = 3.0
RETRY_S = 1.0
"""How long a client had better wait, and how often a server is checked that is down but in use."""
SILENT_S = 1.0
"""How long an answer may send nothing before its server is checked."""
PROBE_LIMIT_S = 5.0
PROBE_TOKENS = 4
"""Some servers stall after the first ones."""
NOT_YET = Down("not checked yet")


class UpstreamMonitor:
    """Checks each endpoint at intervals, or when asked to, and logs changes."""

    def __init__(self, endpoints: Sequence[Endpoint], path: str, answers: Upstreams) -> None:
        """Prepare; `path` is asked of those that have no path of their own."""
        self._path = path
        self._answers = answers
        self._troubles: dict[Endpoint, str] = dict.fromkeys(endpoints, NOT_YET)
        self.troubles = self._list_troubles()
        self._down_since_s: dict[str, float] = {}  # Unix times, by URL
        self._replaced = asyncio.Event()
        self.changed = asyncio.Event()  # set whenever a server is found to serve, or not to

    def use(self, endpoints: Sequence[Endpoint], path: str) -> None:
        """Check other endpoints from now on."""
        self._path = path
        self._troubles = {each: self._troubles.get(each, NOT_YET) for each in endpoints}
        self.troubles = self._list_troubles()
        self._replaced.set()
        self.changed.set()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Endpoints to check; of two addresses of which one begins the other, the longer first."""
        return tuple(sorted(self._troubles, key=lambda each: -len(each.url)))

    def _list_troubles(self) -> dict[str, str]:
        """Return the reasons of the endpoints that cannot serve, as plain text by URL."""
        return {endpoint.url: str(why) for endpoint, why in self._troubles.items() if why}

    def are_down(self, endpoints: Sequence[Endpoint]) -> bool:
        """Return whether all of `endpoints` were found unable to serve when last checked."""
        return bool(endpoints) and all(map(self.find_trouble, endpoints))

    def find_trouble(self, endpoint: Endpoint) -> str:
        """Return why `endpoint` was found unable to serve when last checked; "" if it was not."""
        trouble = self.troubles.get(endpoint.url, "")
        return "" if trouble == NOT_YET else trouble

    def is_up(self, endpoint: Endpoint) -> bool:
        """Return whether `endpoint` was up when last checked."""
        return not isinstance(self._troubles.get(find_server(endpoint), ""), Down)

    def find_outage(self, endpoints: Sequence[Endpoint]) -> CoolingDown:
        """Return the error of `endpoints`, of which none can serve."""
        known = [
            self._down_since_s[each.url] for each in endpoints if each.url in self._down_since_s
        ]
        since = "yet"  # it has never answered
        if known:
            since = f"since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(max(known)))}"
        return CoolingDown(
            f"cannot reach {name_upstreams(endpoints)}: no response {since}",
            retry_after_s=RETRY_S,
            hint="start that server, or correct its address in the settings",
        )

    @property
    def all_down(self) -> bool:
        """True if there are endpoints that clients rely on, and none of them can serve."""
        needed = [why for endpoint, why in self._troubles.items() if not endpoint.is_spare]
        return bool(needed) and all(needed)

    @property
    def none_answers(self) -> bool:
        """True if there are endpoints, and none of them can serve, whether relied on or not."""
        return bool(self._troubles) and all(self._troubles.values())

    async def run(self) -> None:
        """Check at intervals until canceled."""
        while True:
            self._replaced.clear()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._watch(each)) for each in self._troubles]
                await self._replaced.wait()
                for task in tasks:
                    task.cancel()

    async def check(self, endpoints: Iterable[Endpoint] | None = None) -> list[str]:
        """Check these endpoints, or all, concurrently; return why each cannot serve, "" if it can.

        It is a `Down` for one that is down.
        """
        chosen = self._troubles if endpoints is None else map(find_server, endpoints)
        return await asyncio.gather(*map(self._check, chosen))

    async def _watch(self, endpoint: Endpoint) -> None:
        """Check at intervals, and end the answers that wait for a server that is gone.

        A check may fail by chance, or because the server is busy: it takes two in a row, and
        answers that have sent nothing since before the first. One that refuses connections is
        there, and may be about to end its answers.
        """
        loop = asyncio.get_running_loop()
        while True:
            answers = self._answers.watch_answers(endpoint.url)
            for _ in range(2):
                begun_s = loop.time()
                if not isinstance(await self._check(endpoint), NoAnswer):
                    break
                if not answers.list_silent():
                    break
                await asyncio.sleep(begun_s + CHECK_LIMIT_S - loop.time())
            else:
                answers.end_silent(f"{endpoint.title} no longer responds")
            await self._pause(endpoint)

    async def _pause(self, endpoint: Endpoint) -> None:
        """Wait for the next check, which comes sooner while answers are silent."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + endpoint.health_interval_s
        while (left_s := until_s - loop.time()) > 0:
            answers = self._answers.watch_answers(endpoint.url)
            await asyncio.sleep(min(SILENT_S, left_s))
            if answers.list_silent():
                return

    async def _check(self, endpoint: Endpoint) -> str:
        path = endpoint.health_path or self._path
        trouble = await find_trouble(endpoint, path, timeout_s=CHECK_LIMIT_S)
        before = self._troubles.get(endpoint)
        if before is None or trouble == before:
            return trouble
        self._troubles[endpoint] = trouble
        self.troubles = self._list_troubles()
        self.changed.set()
        if not before:
            self._down_since_s[endpoint.url] = time.time()
        if trouble:
            log.warning("upstream %s is not available: %s", endpoint.url, trouble)
        else:
            log.info("upstream %s responds", endpoint.url)
        return trouble


def find_server(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint as it is checked: whatever a model is called there."""
    return msgspec.structs.replace(endpoint, model=None) if endpoint.model else endpoint


def name_upstreams(endpoints: Iterable[Endpoint]) -> str:
    """Return upstreams by their names; clients are told this, so addresses are left to the log."""
    return " or ".join(dict.fromkeys(each.title for each in endpoints))


async def probe_target(upstream: Upstream, model: str, *, embeds: bool) -> EngineError | None:
    """Return why a target cannot answer for `model`; None if it can, or refuses the request."""
    probe = make_probe(model, embeds=embeds)
    try:
        async with asyncio.timeout(PROBE_LIMIT_S):
            answer = await upstream.fetch(probe, most_events=PROBE_TOKENS)
    except TimeoutError:
        return UpstreamError(f"no response to a probe within {PROBE_LIMIT_S:g} s", status=504)
    except EngineError as error:
        return error
    if answer.status == 200:
        works = (b'"embedding"' if embeds else b'"choices"') in answer.body
        return None if works else UpstreamError("invalid response to a probe")
    refusal = clean_engine_error(answer.status, answer.body, answer.headers)
    return refusal if isinstance(refusal, EngineError) else None


def make_probe(model: str, *, embeds: bool) -> Call:
    """Return the request of a probe."""
    if embeds:
        return Call(path="/v1/embeddings", fields={"model": model, "input": "ok"})
    talk = [{"role": "user", "content": "ok"}]
    asked = {"model": model, "messages": talk, "max_tokens": PROBE_TOKENS, "stream": True}
    return Call(path="/v1/chat/completions", fields=asked)
