"""Nodes behind a name in DNS, such as that of a headless Service of Kubernetes."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from vllama.targets.nodes.node import NodeFailed

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver
    from dns.name import Name
    from dns.resolver import Answer

PREFIX = "dns+"
LOOKUP_LIMIT_S = 3.0


async def find_nodes(url: str, resolver: Resolver | None = None) -> dict[str, str]:
    """Return the names of the nodes behind a URL such as `dns+http://nodes:11434`, by their URLs.

    SRV records give names and ports (RFC 2782), for example those of `_http._tcp.nodes`. Without
    them, each address is a node. Raises NodeFailed if DNS does not respond.
    """
    import dns.asyncresolver  # only where nodes are found by name
    import dns.exception

    parts = urlsplit(url.removeprefix(PREFIX))
    host = parts.hostname or ""
    try:
        resolver = resolver or dns.asyncresolver.Resolver()
        found = await _find_services(resolver, f"_{parts.scheme}._tcp.{host}") or [
            (address, address, parts.port) for address in await _find_addresses(resolver, host)
        ]
    except (dns.exception.DNSException, OSError) as error:
        raise NodeFailed(f"cannot look up '{host}': {error}") from error
    urls = {}
    for name, address, port in found:
        if parts.scheme == "http" and ipaddress.ip_address(address).is_global:
            raise NodeFailed(f"cannot use http at {address}: others could read the node key")
        where = f"[{address}]" if ":" in address else address
        urls[f"{parts.scheme}://{where}{f':{port}' if port else ''}{parts.path}"] = name
    return urls


async def _find_services(resolver: Resolver, name: str) -> list[tuple[str, str, int | None]]:
    """Return name, address and port of each server that the SRV records of a name list."""
    records = await _look_up(resolver, name, "SRV")
    if records is None:
        return []
    # addresses that came along are as new as the records; a lookup may hit an older cache
    known = {
        rows.name: rows[0].address
        for rows in records.response.additional
        if hasattr(rows[0], "address")
    }
    found: list[tuple[str, str, int | None]] = []
    for record in records:
        addresses = [known[record.target]] if record.target in known else None
        for address in (addresses or await _find_addresses(resolver, record.target))[:1]:
            found.append((record.target.to_text().partition(".")[0], address, record.port))
    return found


async def _find_addresses(resolver: Resolver, host: str | Name) -> list[str]:
    """Return the IPv4 addresses of a host, or those of IPv6 if it has no others."""
    rows = await _look_up(resolver, host, "A") or await _look_up(resolver, host, "AAAA")
    return sorted(row.address for row in rows or ())


async def _look_up(resolver: Resolver, name: str | Name, kind: str) -> Answer | None:
    import dns.resolver

    try:
        return await resolver.resolve(name, kind, search=True, lifetime=LOOKUP_LIMIT_S)
    except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
        return None
