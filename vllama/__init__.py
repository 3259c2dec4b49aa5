"""vllama: Ollama's API in front of the official vLLM and llama.cpp servers.

For Python programs: `Server` and `serve` run a server; `resolve`, `plan` and `pull` are in
`vllama.api`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllama.api import Server, serve

try:
    from vllama._version import __version__  # written by the build, from the tag
except ImportError:
    __version__ = "0+unknown"  # a checkout that has not been installed
__all__ = ["Server", "__version__", "serve"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    # imported lazily: every command imports this package, and most need no server
    if name in ("Server", "serve"):
        from vllama import api

        return getattr(api, name)
    raise AttributeError(f"module 'vllama' has no attribute {name!r}")
