"""The adapter: where the server is, how it is started, what it takes, how it fails."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllama.chat.engine.traits import SchemaStyle, Stops, Traits
from vllama.engines.base import FailurePattern, Installation, Overhead, SearchPaths, Settings
from vllama.engines.failures import COMMON_FAILURES
from vllama.engines.package_server import PackageServer
from vllama.engines.recipe import Recipe
from vllama.hardware.types import Platform
from vllama.models.types import Bundle, Format
from vllama.supervise.spec import Endpoint

SERVER = Path(__file__).with_name("server.py")


@dataclass(frozen=True, kw_only=True)
class Echo(PackageServer):
    """Adapter of `server.py` beside it."""

    name: str = "echo"
    aliases: tuple[str, ...] = ("parrot",)
    title: str = "Echo"
    formats: tuple[Format, ...] = (Format.GGUF,)
    overhead: Overhead = Overhead(logprobs_take_memory=False)
    failures: tuple[FailurePattern, ...] = (
        FailurePattern(
            pattern=r"no such voice: (.+)",
            cause="it does not have the voice {0}",
            hint="choose one of: loud, plain",
        ),
        *COMMON_FAILURES,
    )
    install: Recipe = Recipe(by_hand="pip install vllama-echo")
    distributions: tuple[str, ...] = ("vllama-echo",)

    def find(self, search_paths: SearchPaths) -> Installation:
        """It is part of this package: no need to look for it."""
        return Installation(engine=self.name, version="1.0", python=Path(sys.executable))

    def preference(self, platform: Platform) -> tuple[int, str]:
        """Only by name."""
        return 0, "it only says what it was told"

    def build_arguments(
        self, bundle: Bundle, settings: Settings, endpoint: Endpoint
    ) -> Sequence[object]:
        """Start the server."""
        return (SERVER, "--port", endpoint.port, "--model", bundle.path)

    def traits(self, bundle: Bundle, settings: Settings) -> Traits:
        """Declare what `server.py` takes: it refuses all fields that it does not know."""
        return Traits(
            context_length=settings.context_length,
            model_name="echo-1",
            parameters={"max_tokens": "most"},
            taken_fields=frozenset({"model", "messages", "stream", "most"}),
            schema_style=SchemaStyle.NONE,
            stops=Stops.UNKNOWN,
            completes=False,
            takes_tools=False,
            takes_logprobs=False,
        )


ENGINE = Echo()
