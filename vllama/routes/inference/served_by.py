"""Headers that name the model and the settings that serve a request."""

from __future__ import annotations

from msgspec import json

from vllama.accounts.keys.key import (
    FAILURE_HEADER,
    REPLAYS_HEADER,
    SEED_HEADER,
    USAGE_HEADER,
)
from vllama.chat.request import Usage
from vllama.routes.chain import current
from vllama.routes.recording.running import RunningRequest, list_usages, sum_amounts
from vllama.routes.recording.stage import Stage

SERVED_BY_HEADER = "x-vllama-served-by"
CONTEXT_HEADER = "x-vllama-num-ctx"  # what runs, where a request asked for more
LAYERS_HEADER = "x-vllama-num-gpu"  # what runs, where a request asked for another number


class ServedBy(Stage):
    """Tells the client what serves its request, where that is not just what it asked for.

    It is a link as the user wrote it, or a model here. Of an upstream without a link it is
    NAME:MODEL, or URL#MODEL if it has no name.
    """

    def leased(self, running: RunningRequest) -> None:
        request, lease, wanted, chain = (
            running.request,
            running.lease,
            running.wanted,
            current.get(),
        )
        assert lease is not None and wanted is not None
        if chain is not None or wanted.bundle.upstream is not None:
            server = (chain and chain.link) or wanted.bundle.name
            if wanted.bundle.upstream is not None and not (chain and chain.link):
                name, model = lease.endpoint.upstream, lease.traits.model_name
                server = f"{name}:{model}" if name else f"{lease.endpoint.url}#{model}"
            request.set_header(SERVED_BY_HEADER, request.mask(server.encode()).decode())
        load, plan = wanted.need.load, lease.instance.plan
        if plan and lease.traits.replays and SEED_HEADER in request.headers:
            build = f"{wanted.bundle.digest} {plan.engine} {plan.installation.version}"
            request.set_header(REPLAYS_HEADER, build)
        if load.num_ctx is not None and load.num_ctx > lease.traits.context_length:
            request.set_header(CONTEXT_HEADER, str(lease.traits.context_length))
        if plan and load.num_gpu not in (None, plan.settings.gpu_layers):
            request.set_header(LAYERS_HEADER, str(plan.settings.gpu_layers))

    def before_end(self, running: RunningRequest) -> None:
        """Tell a head what it cannot read of every response."""
        request, taken = running.request, sum_amounts(running, 0)
        if SEED_HEADER not in request.headers:
            return
        usage = Usage(
            prompt_tokens=taken.prompt_tokens,
            completion_tokens=taken.generated_tokens,
            cached_tokens=taken.cached_tokens,
            estimated=any(one.estimated for one in list_usages(running)),
        )
        request.tell_at_end(USAGE_HEADER, json.encode(usage).decode())
        if request.failure is not None:
            request.tell_at_end(FAILURE_HEADER, " ".join(request.failure.sentence().split()))
