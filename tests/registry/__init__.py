"""Models in Ollama's form, and registries to pull them from: a stand-in and Debian's real one."""

from tests.registry.models import PARAMS, OllamaModel, store
from tests.registry.real import RealRegistry, find_registry, push
from tests.registry.standin import StandInRegistry

__all__ = [
    "PARAMS",
    "OllamaModel",
    "RealRegistry",
    "StandInRegistry",
    "find_registry",
    "push",
    "store",
]
