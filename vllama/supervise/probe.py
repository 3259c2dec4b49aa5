"""Connections to endpoints, and readiness probes: a loop that polls until ready or stalled.

A host name that is slow to resolve delays no other one, as it would in the loop's own few threads.
Knows no process: futures interrupt the wait, and a function reports progress.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Collection
from enum import StrEnum
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from vllama.base import executors
from vllama.base.clock import Clock
from vllama.base.errors import ConfigError, describe_connection_error
from vllama.supervise.spec import Endpoint, LaunchSpec

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")


async def reach(endpoint: Endpoint, connect: Callable[..., Awaitable[T]]) -> T:
    """Return the result of `connect` for the first address of the endpoint that answers.

    `connect` takes `host`, `port`, and for TLS `ssl` and `server_hostname`; or `path` alone, of a
    Unix socket. Raises OSError.
    """
    if endpoint.socket:
        return await connect(path=endpoint.socket)
    tls: dict[str, Any] = {}
    if endpoint.scheme == "https":
        pinned = endpoint.certificates
        tls = {"ssl": trust_only(pinned) if pinned else True, "server_hostname": endpoint.host}
    for address in (addresses := await resolve(endpoint.host)):
        try:
            return await connect(host=address, port=endpoint.port, **tls)
        except OSError:
            if address == addresses[-1]:
                raise
    raise OSError(f"'{endpoint.host}' has no address")


@cache
def trust_only(file: str) -> ssl.SSLContext:
    """Return a context that trusts the certificates in a file only. Raises ConfigError."""
    import ssl  # not at the top: most servers need none

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a server's own certificate is enough
    try:
        context.load_verify_locations(file)
    except OSError as error:  # an SSLError is one, too
        reason = "it has no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError(
            f"cannot use the certificates in '{file}': {reason}", hint="use a PEM file"
        ) from error
    return context


async def resolve(host: str) -> list[str]:
    """Return the addresses of a host, in the system's order. Raises OSError."""
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        look_up = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
        rows = await executors.names.finish(executors.names.start(look_up, group=host))
        return [str(row[4][0]) for row in rows]


_BODY_LIMIT_BYTES = 65536


class Down(str):
    """Why a server cannot serve: it answers nothing, or only that it cannot."""

    __slots__ = ()


class NoAnswer(Down):
    """Why a server cannot serve: it is not even there to refuse a connection."""

    __slots__ = ()


class ProbeResult(StrEnum):
    """Result of a wait for readiness."""

    READY = "ready"
    STALLED = "stalled"
    INTERRUPTED = "interrupted"


async def http_status(
    endpoint: Endpoint,
    path: str,
    *,
    timeout_s: float | None,
    api_key: str | None = None,
    post: bytes | None = None,
) -> int | None:
    """GET `path`, or POST the JSON `post` to it, and return the status.

    None if the answer is missing, late, or not HTTP.
    """
    request = _make_request(endpoint, path, api_key, post)
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(endpoint, request)
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
        return None  # TimeoutError is an OSError, IncompleteReadError an EOFError


async def find_trouble(endpoint: Endpoint, path: str, *, timeout_s: float) -> str:
    """GET `path` with the endpoint's key; return why the endpoint cannot serve, "" if it can.

    A busy endpoint (429) can serve.
    """
    request = _make_request(endpoint, path, endpoint.api_key, None)
    try:
        async with asyncio.timeout(timeout_s):
            status = await _exchange(endpoint, request)
    except TimeoutError:
        return NoAnswer(f"no response within {timeout_s:g} s")
    except ConnectionError as error:
        return Down(describe_connection_error(error))
    except OSError as error:
        return NoAnswer(describe_connection_error(error))
    except (EOFError, ValueError, asyncio.LimitOverrunError):
        return Down("its response is not HTTP")
    if status in (401, 403):
        return f"it rejects the key (HTTP {status})"
    if status < 400 or status == 429:
        return ""
    why = f"{path} returned HTTP {status}"
    return Down(why) if status >= 500 else why


def _make_request(endpoint: Endpoint, path: str, api_key: str | None, post: bytes | None) -> bytes:
    method = "GET" if post is None else "POST"
    head = f"{method} {endpoint.prefix}{path} HTTP/1.1\r\n"
    head += f"Host: {endpoint.host}:{endpoint.port}\r\n"
    if api_key is not None:
        head += f"Authorization: Bearer {api_key}\r\n"
    if post is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(post)}\r\n"
    head += "Accept: */*\r\nConnection: close\r\n\r\n"
    return head.encode("latin-1") + (post or b"")


async def _exchange(endpoint: Endpoint, request: bytes) -> int:
    open_it = asyncio.open_unix_connection if endpoint.socket else asyncio.open_connection
    reader, writer = await reach(endpoint, open_it)
    try:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        version, code, *_ = head.split(None, 2)
        if not version.startswith("http/1.") or not 100 <= int(code) <= 599:
            raise ValueError(head)
        _, has_length, after = head.partition("\r\ncontent-length:")
        if has_length:  # read the body, or the server would log a reset
            length = int(after.split("\r\n", 1)[0])
            await reader.readexactly(min(length, _BODY_LIMIT_BYTES))
        return int(code)
    finally:
        writer.close()


async def check(spec: LaunchSpec) -> bool:
    """Probe once: the status, and if the spec asks for it, the key and the first work."""
    probe, key = spec.probe, spec.endpoint.api_key
    status = await http_status(spec.endpoint, probe.path, timeout_s=probe.timeout_s)
    if status not in probe.ready_statuses:
        return False
    if probe.verify_path is not None:
        status = await http_status(
            spec.endpoint, probe.verify_path, timeout_s=probe.timeout_s, api_key=key
        )
        if status != 200:
            return False
    work = probe.first_work
    if work is None:
        return True
    status = await http_status(
        spec.endpoint, work.path, timeout_s=spec.stall_timeout_s, api_key=key, post=work.body
    )
    return status == 200


async def wait_ready(
    spec: LaunchSpec,
    *,
    clock: Clock,
    progress: Callable[[], object],
    interrupts: Collection[asyncio.Future[Any]] = (),
) -> ProbeResult:
    """Poll until ready, stalled, or one of `interrupts` (the child's exit, a stop) is done.

    The deadline is a stall timeout: it restarts whenever the value of `progress()` changes. An
    interrupt takes precedence over a successful probe, because after the child's exit another
    program must have answered.
    """
    polling = asyncio.ensure_future(_poll(spec, clock, progress))
    try:
        await asyncio.wait({polling, *interrupts}, return_when=asyncio.FIRST_COMPLETED)
        if any(interrupt.done() for interrupt in interrupts):
            return ProbeResult.INTERRUPTED
        return polling.result()
    finally:
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)


async def _poll(spec: LaunchSpec, clock: Clock, progress: Callable[[], object]) -> ProbeResult:
    mark, changed_s = progress(), clock.monotonic()
    while True:
        if await check(spec):
            return ProbeResult.READY
        new_mark, now_s = progress(), clock.monotonic()
        if new_mark != mark:
            mark, changed_s = new_mark, now_s
        elif spec.stall_timeout_s is not None and now_s - changed_s >= spec.stall_timeout_s:
            return ProbeResult.STALLED
        await asyncio.sleep(spec.probe.interval_s)
