"""Memory of other machines for the plan of one model. Unlike the rest of `plan`, it asks for it."""

from __future__ import annotations

import logging
from dataclasses import replace

from vllama.base.errors import EngineStartFailed, NoPlan
from vllama.config.address import leads_to
from vllama.machine.types import FIRST_REMOTE, Accelerator, Vendor
from vllama.models.types import Bundle
from vllama.plan.choose import choose_engine
from vllama.plan.types import Facts

log = logging.getLogger(__name__)


def add_remote(facts: Facts, bundle: Bundle) -> Facts:
    """Return the facts with the devices of a model's RPC servers; blocks for some seconds.

    A server that does not respond is left out, except with `strict`. What one on this machine has
    is RAM, which counts once. Raises NoPlan, EngineMissing.
    """
    if not bundle.settings.rpc:
        return facts
    own, found = facts.of(bundle), facts.found
    here = choose_engine(own, bundle.format, bundle).installation
    gpus, left_out = list[Accelerator](), list[str]()
    for server in dict.fromkeys(bundle.settings.rpc):
        try:
            devices = found.engines[here.engine].list_remote(here, server)
        except EngineStartFailed as error:
            if own.settings.strict:
                raise NoPlan(f"cannot load '{bundle.name}': {error.message}") from None
            left_out.append(f"left out: {error.message}")
            log.warning("%s: %s", bundle.name, left_out[-1])
            continue
        gpus += [
            Accelerator(  # the engine, which gets all servers, calls it so
                vendor=Vendor.REMOTE, index=FIRST_REMOTE + number, name=f"RPC{number} ({server})",
                total_bytes=device.total_bytes, free_bytes=device.free_bytes, bus=server,
                shares_ram=leads_to(server.rpartition(":")[0].strip("[]"), "::"),
            )
            for number, device in enumerate(devices, len(gpus))
        ]  # fmt: skip
    if gpus:
        local = facts.platform.accelerators if here.offloads else ()
        platform = replace(facts.platform, accelerators=(*local, *gpus))
        installed = {**found.installations, here.engine: replace(here, offloads=True)}
        facts = replace(facts, platform=platform, found=replace(found, installations=installed))
    return replace(facts, left_out=tuple(left_out))
