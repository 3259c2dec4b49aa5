"""The Python API: `vllama.Server` and `serve`, `resolve`, `plan`, `pull`."""

from vllama.api.models import plan, pull, resolve
from vllama.api.server import Server, serve
from vllama.plan.preview import Resolved

__all__ = ["Resolved", "Server", "plan", "pull", "resolve", "serve"]
