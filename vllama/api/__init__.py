"""The Python API: `vllama.Server` and `serve`, `resolve`, `plan`, `pull`."""

from vllama.api.models import Resolved, plan, pull, resolve
from vllama.api.server import Server, serve

__all__ = ["Resolved", "Server", "plan", "pull", "resolve", "serve"]
