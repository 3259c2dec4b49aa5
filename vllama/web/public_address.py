"""Which addresses a page may be fetched from: those of the public internet.

A client must not reach through the server what only the server can reach: this machine, its
network, the metadata service of a cloud (server-side request forgery).
"""

from __future__ import annotations

import ipaddress
import socket

from vllama.errors import BadRequest, UpstreamError

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_public(address: IPAddress) -> bool:
    """Tell whether an address, and the IPv4 address that it may stand for, is a public one."""
    inner = find_embedded(address)
    if inner is not None:
        return is_public(inner)
    return address.is_global and not address.is_multicast


def find_embedded(address: IPAddress) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address leads to (RFC 4291, 3056, 4380, 6052)."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]


def resolve_public(host: str, port: int) -> str:
    """Return an address of `host` to connect to. Raises BadRequest if any of them is not public.

    What was checked is connected to: a name that is asked again may have another answer.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise UpstreamError(f"cannot fetch the page: host '{host[:80]}' is not known") from None
    addresses = [str(row[4][0]).partition("%")[0] for row in found]
    for address in addresses:
        if not is_public(ipaddress.ip_address(address)):
            raise BadRequest(f"cannot fetch the page: '{host[:80]}' is not on the public internet")
    return addresses[0]
