"""Which registry a model's name means, and where that is. Pure.

A name belongs to a registry that speaks Ollama's protocol if it says so (`ollama://model`), names
a host (`host/namespace/model`), or is a plain library name and the settings name a registry for
those. Plain http is for this machine, for a registry set so, and for pulls that ask for it
(Ollama's `insecure`).

See docs/reference/ollama-api.md#names.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from vllama.errors import BadRequest, ConfigError
from vllama.models.ollama_layout import StoredName
from vllama.models.ref import DEFAULT_HOST, Kind, ModelRef

SCHEME = "ollama://"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model at a registry: its full name, the registry's address without a trailing slash.

    `asked`: the name itself said that it is there.
    """

    name: StoredName
    address: str
    asked: bool


def target(ref: ModelRef, registry: str | None, *, insecure: bool = False) -> Target | None:
    """Return where `ref` would be pulled from by Ollama's protocol, None if it would not be.

    `registry` is the one from the settings, for names without a host. Raises BadRequest for plain
    http that nobody has allowed, ConfigError for a setting that is no address.
    """
    text = ref.text.lower()
    if ref.kind is not Kind.LIBRARY:
        return None
    asked = text.startswith(SCHEME) or ref.host is not None
    if not asked and registry is None:
        return None
    name = StoredName.of(ref)
    if registry is not None and name.host.lower() == DEFAULT_HOST:
        return Target(name=name, address=_configured(registry), asked=asked)
    if text.startswith("http://") and not (insecure or _is_here(name.host)):
        raise BadRequest("insecure protocol http", hint="allow it: vllama pull --insecure")
    plain = insecure or (_is_here(name.host) and not text.startswith("https://"))
    return Target(name=name, address=f"{'http' if plain else 'https'}://{name.host}", asked=asked)


def _configured(registry: str) -> str:
    if "://" not in registry:
        registry = f"{'http' if _is_here(registry) else 'https'}://{registry}"
    parts = urlsplit(registry.rstrip("/"))
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(
            f"cannot use ollama_registry '{registry}': it is no address of a registry",
            hint="give a host, or an address such as https://registry.example",
        )
    return parts.geturl()


def _is_here(host: str) -> bool:
    """Tell whether `host[:port]` is this machine."""
    name = urlsplit(f"//{host}").hostname or ""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
