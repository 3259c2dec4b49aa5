"""Guards of the server: the Host check and CORS, as in Ollama.

Pure functions of header values; nothing here knows a socket.

See docs/reference/ollama-api.md#origins-and-hosts.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from vllama.config.address import is_loopback, list_addresses

if TYPE_CHECKING:
    from vllama.config import Config
    from vllama.net.http.request import Request
    from vllama.supervise.spec import Endpoint


LOCAL_HOSTS = ("localhost", "127.0.0.1", "0.0.0.0")
APP_SCHEMES = ("app", "file", "tauri", "vscode-webview", "vscode-file")
PRIVATE = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"))
)
"""What RFC 1918 and RFC 4193 give to everybody; not all that Python calls private."""
LOCAL_DOMAINS = (".localhost", ".local", ".internal", ".lan", ".home", ".home.arpa", ".localdomain")
"""Names that no public name server answers for."""
METHODS = "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS"
HEADERS = {
    "x-request-id": "request ID, as shown in the log",
    "x-vllama-truncated": "number of messages or inputs truncated to fit the context",
    "x-vllama-truncated-tokens": "number of truncated tokens",
    "x-vllama-num-ctx": "actual context length, if less than `num_ctx`",
    "x-vllama-num-gpu": "layers on the GPU (-1: all), if different from `num_gpu`",
    "x-vllama-ignored": "parts of the request that had no effect",
    "x-vllama-violates": "violations of the response's schema",
    "x-vllama-token-count": "`estimate` if the token counts are not exact",
    "x-vllama-queue-position": "position at which the request was queued",
    "x-vllama-served-by": "upstream or fallback that served the request",
    "x-vllama-resumed": "number of times the response resumed after an engine crash",
}
"""Headers of responses to requests for a model, as `/openapi.json` and clients' pages get them."""
EXPOSED = ", ".join(("Retry-After", *HEADERS))
"""Headers of a response that a page may read."""
_NAMES = re.compile(r"[\w!#$%&'*+.^`|~-]+(?:\s*,\s*[\w!#$%&'*+.^`|~-]+)*", re.ASCII)
MAX_HOST = 300  # characters: a name has 253 at most; what is decided of one is kept
MAX_ORIGIN = 1000
_HOST = re.compile(r"\[([0-9a-f:.]+)\](?::[0-9]*)?|([^\[\]:/?#@\s]*)(?::[0-9]*)?|([0-9a-f:.]+)")
PREFLIGHT_AGE_S = 12 * 3600


class Guards(Struct, frozen=True, kw_only=True):
    """Allowed origins and hosts. `origins` may have `*`; `loopback`: bound to it only.

    `read_only`: no request changes what models there are; `most_upload_bytes` None: files of any
    size may be uploaded. `ui`: there is the page, which may connect to `mcp_origins`.
    `inspect_code`: administrators may send fields that an engine may run as code.
    """

    origins: tuple[str, ...] = ()
    loopback: bool = True
    read_only: bool = False
    most_upload_bytes: int | None = None
    ui: bool = True
    mcp_origins: tuple[str, ...] = ()
    inspect_code: bool = False

    @classmethod
    def of(cls, config: Config) -> Guards:
        """Return the guards that the settings define."""
        return cls(
            origins=config.origins,
            loopback=is_loopback(config.host),
            read_only=config.read_only,
            inspect_code=config.inspect_code,
            ui=not config.no_ui,
            mcp_origins=config.mcp_origins,
            most_upload_bytes=config.max_blob_size_bytes,
        )

    def origin_allowed(self, origin: str, host: str, *, keyed: bool = False) -> bool:
        """Return True if a page of `origin` may talk to us; no origin is no page.

        `keyed`: requests need a key, which a stranger's page does not have.
        """
        if len(origin) > MAX_ORIGIN or len(host) > MAX_HOST:
            return False
        if not origin or _local_origin(origin) or any(_matches(i, origin) for i in self.origins):
            return True
        if origin == f"https://{host}":
            return True
        # our own page, or one of the same host behind a proxy; but on plain http it may also be a
        # stranger's, whose name was made to lead here (DNS rebinding)
        return origin == f"http://{host}" and (keyed or _is_no_stranger(host))

    @staticmethod
    def is_own_origin(request: Request) -> bool:
        """Tell whether a request comes from no page, or from one of this server's own."""
        origin, host = request.header(b"origin"), request.header(b"host")
        return not origin or origin in (f"http://{host}", f"https://{host}")

    def is_stranger(self, request: Request, *, keyed: bool) -> bool:
        """Tell whether a page at the address of a request may be a stranger's, and send no Origin.

        Browsers tell `Sec-Fetch-Site` over https only, where no stranger has the certificate.
        """
        host = request.header(b"host")
        return not (
            self.origin_allowed(f"http://{host}", host, keyed=keyed)
            or request.header(b"sec-fetch-site") == "same-origin"
        )

    def host_allowed(self, host: str, *, keyed: bool = False) -> bool:
        """Return True unless the Host header looks like DNS rebinding (loopback only).

        `keyed`: requests need a key, so that a proxy may have any name.
        """
        return keyed or not self.loopback or (len(host) <= MAX_HOST and _host_allowed(host))


USUAL_PORTS = {"http": 80, "https": 443}


def mask_addresses(endpoints: Iterable[Endpoint], data: bytes) -> bytes:
    """Return `data` with the names of upstreams in place of their addresses.

    They come into answers in many ways: in versions, plans, errors, and names of models
    (`URL#MODEL`). So what a server says of itself is masked as a whole, before it is sent.
    """
    for endpoint in endpoints:
        data = make_pattern(endpoint).sub(endpoint.upstream.encode() or b"upstream", data)
    return data


@lru_cache(maxsize=256)
def make_pattern(endpoint: Endpoint) -> re.Pattern[bytes]:
    """Return patterns for an address as users write it, and as it is shown."""
    host, port = rf"\[?{re.escape(endpoint.host)}\]?", f"(?::{endpoint.port})"
    usual = "?" if USUAL_PORTS[endpoint.scheme] == endpoint.port else ""
    place = rf"(?:https?://{host}{port}{usual}|(?<!\w){host}{port})(?![\w-]|[.:]\w)"
    return re.compile(f"{place}(?:{re.escape(endpoint.prefix)})?".encode(), re.IGNORECASE)


def cors_headers(origin: str, *, preflight: bool, asked: str = "") -> dict[str, str]:
    """Return the headers that allow `origin`.

    A preflight is granted all headers that it `asked` for: it is the origin that is judged.
    """
    headers = {"access-control-allow-origin": origin, "vary": "Origin"}
    if not preflight:
        headers["access-control-expose-headers"] = EXPOSED
    else:
        headers["access-control-allow-methods"] = METHODS
        headers["vary"] += ", Access-Control-Request-Headers"
        granted = asked if _NAMES.fullmatch(asked) else "Authorization, Content-Type"
        headers["access-control-allow-headers"] = granted
        headers["access-control-max-age"] = str(PREFLIGHT_AGE_S)
    return headers


@lru_cache(maxsize=256)
def _local_origin(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    if parts.scheme in APP_SCHEMES:
        return True
    is_whole = parts.scheme in ("http", "https") and origin == f"{parts.scheme}://{parts.netloc}"
    return is_whole and _name_of(parts.netloc) in LOCAL_HOSTS


@lru_cache(maxsize=256)
def _matches(pattern: str, origin: str) -> bool:
    regex = ".*".join(re.escape(part) for part in pattern.strip().split("*"))
    return re.fullmatch(regex, origin) is not None


@lru_cache(maxsize=256)
def _host_allowed(host: str) -> bool:
    name = _name_of(host)
    if name in ("", "localhost", socket.gethostname().lower()):
        return True
    if name.endswith((".localhost", ".local", ".internal")):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback or address.is_unspecified:
        return True
    return any(address in network for network in PRIVATE if network.version == address.version) or (
        str(address) in list_addresses()
    )


@lru_cache(maxsize=256)
def _is_no_stranger(host: str) -> bool:
    """Tell whether a host can only be one of this network: no name that anybody may own."""
    name = _name_of(host)
    if "." not in name or name.endswith(LOCAL_DOMAINS) or _host_allowed(host):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True  # which no name server has a say in


def _name_of(host: str) -> str:
    """Return the name in a Host header, without its port; "." for what is none."""
    match = _HOST.fullmatch(host.strip().lower())
    return next(name for name in match.groups() if name is not None) if match else "."
