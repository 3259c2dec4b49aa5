"""Connections to endpoints by the names of hosts: one that is slow to resolve delays no other.

The loop would resolve names with a few threads that all of them share.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from vllama.base import executors
from vllama.supervise.spec import Endpoint

T = TypeVar("T")


async def reach(endpoint: Endpoint, connect: Callable[..., Awaitable[T]]) -> T:
    """Return what `connect` makes of the first address of the endpoint that answers.

    `connect` takes `host`, `port`, and for TLS `ssl` and `server_hostname`. Raises OSError.
    """
    is_secure = endpoint.scheme == "https"
    tls: dict[str, Any] = {"ssl": True, "server_hostname": endpoint.host} if is_secure else {}
    for address in (addresses := await resolve(endpoint.host)):
        try:
            return await connect(host=address, port=endpoint.port, **tls)
        except OSError:
            if address == addresses[-1]:
                raise
    raise OSError(f"'{endpoint.host}' has no address")


async def resolve(host: str) -> list[str]:
    """Return the addresses of a host, in the system's order. Raises OSError."""
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        look_up = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
        rows = await executors.names.finish(executors.names.start(look_up, group=host))
        return [str(row[4][0]) for row in rows]
