"""An engine that says in its answers that it is dead, though its process still runs.

Its words name no cause, or one that only its log has. What it says counts as a crash: nobody is
sent there any more, it is restarted, and the clients are told why by the log.
"""

from __future__ import annotations

from vllama.errors import EngineCrashed, UpstreamError, VllamaError
from vllama.scheduler.instance import Lease
from vllama.upstream.pool import Explain, Upstream

RESTARTED = "try again: it is being restarted"


def make_explainer(lease: Lease, upstream: Upstream) -> Explain | None:
    """Return what turns an error of a lease's engine into that of its crash, if it is one.

    All its other answers end for the same reason then. None for an engine of which no such words
    are known.
    """
    words = lease.traits.dead_words
    part = lease.instance.find_part(lease.endpoint) if words else None
    if part is None:
        return None
    endpoint = lease.endpoint
    told: list[str] = []  # all hear the same, also those that come when it is being restarted

    def explain(error: VllamaError) -> VllamaError:
        if isinstance(error, EngineCrashed) and (cause := part.find_unhealthy_cause(endpoint)):
            # its log was faster than its answers, which end with its process
            return EngineCrashed(f"cannot go on: the engine has crashed: {cause}", hint=RESTARTED)
        if not isinstance(error, UpstreamError) or not any(word in error.message for word in words):
            return error
        if not told:
            told.append(f"the engine has crashed: {part.declare_unhealthy(endpoint, None)}")
            upstream.abort_answers(told[0])
        return EngineCrashed(f"cannot go on: {told[0]}", hint=RESTARTED)

    return explain
