"""Addresses of upstreams: administrators see them, others see the names instead.

They come into answers in many ways: in versions, plans, errors, and names of models (`URL#MODEL`).
So what a server says of itself is masked as a whole, before it is sent.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from vllama.accounts.keys.key import Key, Scope

if TYPE_CHECKING:
    from vllama.routes.context import Gateway
    from vllama.supervise.spec import Endpoint

USUAL_PORTS = {"http": 80, "https": 443}


def mask_addresses(gateway: Gateway, key: Key | None, data: bytes) -> bytes:
    """Return what a request with `key` may see of `data`; without keys, clients here see all."""
    if not gateway.is_complete:
        return data
    open_here = gateway.guards.loopback and not gateway.keys.is_required
    if key.allows(Scope.ADMIN) if key is not None else open_here:
        return data
    for endpoint in gateway.watch.endpoints:
        data = make_pattern(endpoint).sub(endpoint.upstream.encode() or b"upstream", data)
    return data


@lru_cache(maxsize=256)
def make_pattern(endpoint: Endpoint) -> re.Pattern[bytes]:
    """Return what matches an address as users write it, and as it is shown."""
    host, port = rf"\[?{re.escape(endpoint.host)}\]?", f"(?::{endpoint.port})"
    usual = "?" if USUAL_PORTS[endpoint.scheme] == endpoint.port else ""
    place = rf"(?:https?://{host}{port}{usual}|(?<!\w){host}{port})(?![\w-]|[.:]\w)"
    return re.compile(f"{place}(?:{re.escape(endpoint.prefix)})?".encode(), re.IGNORECASE)
