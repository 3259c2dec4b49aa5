"""The grammar of a listening address, as `OLLAMA_HOST` has it (Ollama's `envconfig.Host`).

Pure but for `find_network_host`: text in, parts out. A part that the text does not name is None, so
that a lower-ranking source may give it.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

SCHEME_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Parts of an address; IPv6 without brackets. `bad_port` is the text of an unusable port."""

    scheme: str | None = None
    host: str | None = None
    port: int | None = None
    bad_port: str | None = None


def parse_address(text: str) -> Address:
    """Split `host`, `:port`, `host:port`, `[ipv6]:port`, `scheme://host[:port][/path]`.

    A scheme brings its port (80, 443) where none is written. An empty host before a port means
    all interfaces, as it does in Go. A path is ignored. Raises ValueError for another scheme.
    """
    scheme: str | None = None
    rest = text.strip()
    if "://" in rest:
        scheme, _, rest = rest.partition("://")
        scheme = scheme.lower()
        if scheme not in SCHEME_PORTS:
            raise ValueError(f'unknown scheme: "{scheme}"')
    rest = rest.partition("/")[0]
    host, port_text = _split(rest)
    port, bad_port = SCHEME_PORTS.get(scheme or ""), None
    if port_text is not None:
        number = int(port_text) if re.fullmatch(r"[0-9]{1,6}", port_text) else -1
        if 0 <= number <= 65535:
            port = number
        else:
            bad_port = port_text
    return Address(scheme=scheme, host=host, port=port, bad_port=bad_port)


def _split(text: str) -> tuple[str | None, str | None]:
    """Separate host and port; a bare IPv6 address has colons but no port."""
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::(.*))?", text)
    if bracketed:
        return bracketed.group(1) or None, bracketed.group(2)
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return host or "0.0.0.0", port
    if ":" in text:
        try:
            return str(ipaddress.IPv6Address(text)), None
        except ValueError:
            raise ValueError("an IPv6 address with a port needs brackets") from None
    return text or None, None


def url(scheme: str, host: str, port: int) -> str:
    """Write an address as a URL, IPv6 in brackets."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def reachable_host(host: str) -> str:
    """Return where a client finds a server that listens on `host`: not "all interfaces"."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)


def list_addresses(*families: int) -> list[str]:
    """Return the addresses of this machine, without zones: all, or those of some families."""
    import psutil  # slow to import, and seldom needed

    wanted = families or (socket.AF_INET, socket.AF_INET6)
    found = (one for group in psutil.net_if_addrs().values() for one in group)
    return [one.address.partition("%")[0] for one in found if one.family in wanted]


def list_listening(host: str) -> list[str]:
    """Return the addresses at which a server on `host` listens, and a name as it is."""
    if host not in ("", "0.0.0.0", "::"):
        return [host]
    return list_addresses() if host == "::" else list_addresses(socket.AF_INET)


def is_public(host: str) -> bool:
    """Tell whether an address is one of the internet; a name is none."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_global
    except ValueError:
        return False


def find_network_host() -> str | None:
    """Return the IPv4 address at which others find this machine; None if it has no network."""
    found = [ipaddress.IPv4Address(address) for address in list_addresses(socket.AF_INET)]
    usable = [one for one in found if not (one.is_loopback or one.is_link_local)]
    # a private one is that of the local network rather than that of a tunnel
    return str(min(usable, key=lambda one: not one.is_private)) if usable else None


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a server on `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def leads_to(host: str, listening: str) -> bool:
    """Return whether `host` is where a server listens on `listening`; no name server is asked."""
    host, listening = ("127.0.0.1" if one == "localhost" else one for one in (host, listening))
    if listening not in ("", "0.0.0.0", "::"):
        return host == listening
    if is_loopback(host) or host == socket.gethostname().lower():
        return True
    return host in {listening, *list_addresses()}


def warn_of_exposure(scheme: str, host: str, port: int, *, read_only: bool) -> str:
    """Return the warning for a server that others can reach and that wants no key."""
    where = url(scheme, host, port)
    if host in ("0.0.0.0", "::") and (other := find_network_host()):
        where += f" (for other machines {url(scheme, other, port)})"
    can = "run its models" if read_only else "run, add, replace and delete its models"
    return (
        f"{where} is open: anyone who can reach it can {can}; require keys with "
        "--api-key-file, or listen on 127.0.0.1 only, behind a proxy or firewall"
    )
