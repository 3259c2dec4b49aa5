"""The adapter: where the server is, how it is started, what it accepts, and how it fails."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllama.chat.engine.traits import SchemaStyle, Stops, Traits
from vllama.engines.base import FailurePattern, Installation, Overhead, SearchPaths, Settings
from vllama.engines.package_server import PackageServer
from vllama.engines.recipe import Recipe
from vllama.engines.request_body import keep_fields
from vllama.machine.types import Platform
from vllama.models.types import Bundle, Format
from vllama.supervise.spec import Endpoint, HttpProbe

SERVER = Path(__file__).with_name("server.py")
FIELDS = frozenset({"model", "messages", "stream", "most"})


@dataclass(frozen=True, kw_only=True)
class Echo(PackageServer):
    """Adapter of `server.py` beside it. The fields below are what every adapter states."""

    name: str = "echo"
    aliases: tuple[str, ...] = ("parrot",)
    title: str = "Echo"
    distributions: tuple[str, ...] = ("vllama-echo",)
    formats: tuple[Format, ...] = (Format.GGUF,)
    # the server answers /health to everybody and /v1/models only with the key
    ready: HttpProbe = HttpProbe(path="/health", verify_path="/v1/models")
    overhead: Overhead = Overhead(logprobs_take_memory=False)
    failures: tuple[FailurePattern, ...] = (
        FailurePattern(
            pattern=r"no such voice: (.+)",
            cause="it does not have the voice {0}",
            hint="choose one of: loud, plain",
        ),
    )
    install: Recipe = Recipe(by_hand="pip install vllama-echo")

    def find(self, search_paths: SearchPaths) -> Installation:
        """Return this environment: the server is a part of this package.

        An adapter whose server is another package leaves this method out; `PackageServer` looks for
        `distributions` and `program` in all the usual places.
        """
        return Installation(engine=self.name, version="1.0", python=Path(sys.executable))

    def preference(self, platform: Platform) -> tuple[int, str]:
        """Return 0: it is used only where the user names it."""
        return 0, "it only repeats what it is told"

    def build_arguments(
        self, bundle: Bundle, settings: Settings, endpoint: Endpoint
    ) -> Sequence[object]:
        """Return what follows `python -P`."""
        return (SERVER, "--port", endpoint.port, "--model", bundle.path)

    def build_environment(self, settings: Settings, endpoint: Endpoint) -> Mapping[str, str]:
        """Pass the key in a variable: every user of the machine can read a command line."""
        return {"ECHO_API_KEY": endpoint.api_key or ""}

    def traits(self, bundle: Bundle, settings: Settings) -> Traits:
        """Declare what the server accepts: chats only, and no field that it does not know."""
        return Traits(
            context_length=settings.context_length,
            model_name="echo-1",
            parameters={"max_tokens": "most"},
            finish_body=lambda body: keep_fields(body, FIELDS),
            schema_style=SchemaStyle.NONE,
            stops=Stops.UNKNOWN,
            completes=False,
            takes_tools=False,
            takes_logprobs=False,
        )


ENGINE = Echo()
