"""An engine in one file: `engine.py` beside it, found by entry point like any other.

Its switches come from files beside the model, one a line: `NAME.gguf` is started with those in
`NAME.args`, the first time with those in `NAME.once` too.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from vllama.base.errors import EngineStartFailed
from vllama.chat.engine.traits import SchemaStyle, Tokenizer, Traits, VectorStyle
from vllama.chat.grammar_schema import LLGUIDANCE
from vllama.engines.base import Engine, FailurePattern, Installation, Missing, Mode, Overhead
from vllama.engines.devices import GIB, Device, LoadReport
from vllama.engines.failures import compile_failures
from vllama.engines.llamacpp.llama_server import SLOTS as LLAMA_SLOTS
from vllama.engines.llamacpp.output import read_load
from vllama.engines.locate import find_package
from vllama.engines.recipe import Recipe, Wheels
from vllama.engines.vllm.lens import Lens
from vllama.machine.environments.layout import Step
from vllama.models.types import Format
from vllama.supervise.spec import SOCKET, Fault, Grace, HttpProbe, LaunchSpec

PROGRAM = Path(__file__).with_name("engine.py")
STUCK = {
    "computing": lambda: all(iter(lambda: True, False)),
    "matching": lambda: re.match("(a+)+b", "a" * 99),
    "waiting": lambda: time.sleep(1e6),
}
"""Ways of an adapter to keep the server's loop for ever, by the end of a model's name."""


# its files are not llama-server's
SLOTS = replace(LLAMA_SLOTS, fit=lambda path, slots: None)


@dataclass(frozen=True)
class FakeEngine(Engine):
    """Adapter of the fake engine."""

    name: str = "fake"
    title: str = "fake engine"
    formats: tuple = (Format.GGUF,)
    modes: tuple = (Mode.CHAT, Mode.EMBED)
    overhead: Overhead = Overhead(context_multiple=256)
    failures: tuple = (
        FailurePattern(
            pattern="no such color: (.+)", cause="the color {0} is unknown", hint="paint it"
        ),
        FailurePattern(
            pattern="failed to allocate", cause="no memory", hint="buy some", fault=Fault.MEMORY
        ),
        FailurePattern(
            pattern="no such shape", cause="the shape is unknown", fault=Fault.ARCHITECTURE
        ),
        FailurePattern(
            pattern=r"Failed to connect to (\S+)",
            cause="RPC server {0} does not respond",
            fault=Fault.REMOTE,
        ),
        FailurePattern(pattern="Remote RPC", cause="lost an RPC server", fault=Fault.REMOTE),
    )

    install: Recipe = Recipe(
        wheels=(
            Wheels(
                steps=(Step(requirements=("fake-server>=1",)),), download_bytes=10, disk_bytes=20
            ),
        )
    )

    def find(self, search_paths):
        """It is always here; another version is where the package `fake-server` is installed."""
        version = "1.0"
        if "fake" in search_paths.paths:
            found = find_package(search_paths, self.name, distributions=("fake-server",))
            if isinstance(found, Missing):
                return found
            version = found.version
        return Installation(engine=self.name, version=version, python=Path(sys.executable))

    def preference(self, platform):
        """Best everywhere: only tests install it."""
        return 1000, "this is a test"

    def launch(self, bundle, settings, installation, endpoint, environ):
        """Start `engine.py` with the model's switches, unless the name has the loop stuck."""
        if stick := STUCK.get(bundle.path.stem.rpartition("-")[2]):
            bundle.path.with_suffix(".stuck").touch()
            stick()
        more: list[str] = []
        for suffix in (".args", ".once"):
            switches = bundle.path.with_suffix(suffix)
            if switches.exists():
                more += switches.read_text().split("\n")
        bundle.path.with_suffix(".once").unlink(missing_ok=True)
        argv = (
            str(installation.python), str(PROGRAM), "--port", str(endpoint.port),
            "--api-key", str(endpoint.api_key), "--model", settings.alias,
            "--context", str(settings.context_length),
            *(word for server in settings.rpc for word in ("--rpc", server)),
            *(
                ("--slots", str(settings.slot_dir))
                if settings.keeps_conversations or "shares" in bundle.name
                else ()
            ),
            "--started-with", describe_start(settings, bundle.draft),
            *(part for part in more if part),
        )  # fmt: skip
        if "unix" in settings.alias:
            argv += ("--uds", SOCKET)
            endpoint = msgspec.structs.replace(endpoint, socket=SOCKET)
        return LaunchSpec(
            name=settings.alias,
            argv=argv,
            env={"PATH": environ.get("PATH", "")},
            endpoint=endpoint,
            probe=HttpProbe(path="/health", verify_path="/v1/models"),
            grace=Grace(term_s=0.3, second_term_s=0.3, kill_s=3.0),
            stall_timeout_s=settings.stall_timeout_s,
            diagnose=compile_failures(self.failures),
            silence=Fault.REMOTE if settings.rpc else None,
        )

    def list_remote(self, installation, server):
        """Return a device if something listens there."""
        host, _, port = server.rpartition(":")
        try:
            socket.create_connection((host, int(port))).close()
        except OSError:
            raise EngineStartFailed(f"RPC server {server} does not respond") from None
        return (Device("RPC0", server, 8 * GIB, 8 * GIB),)

    def read_load(self, lines, settings):
        """Return what it says of remote devices."""
        return (read_load(lines) or LoadReport()) if settings.rpc else None

    saves_slots: bool = True
    spare_bytes: int = 512 * 1024**2  # tests/chaos/trouble.py takes 400 MiB at a start

    def lacks_for_inspection(self, installation):
        """It has a lens unless it is an old one."""
        return "a lens" if installation.version == "0.9" else None

    def sleeps(self, settings):
        """One that dozes can sleep."""
        return "dozes" in settings.alias

    def sleep(self):
        """Name the request that puts it to sleep."""
        return "POST", "/sleep"

    def wake(self):
        """Name the request that wakes it."""
        return "POST", "/wake_up"

    def traits(self, bundle, settings):
        """Serial unless its name says otherwise."""
        limit = 64 if "wide" in bundle.name else 1
        bare = "bare" in bundle.name  # leaves tools and thinking to the front
        shifts = "shifts" in bundle.name
        names = ("temperature", "top_p", "top_k", "min_p", "seed", "stop", "max_tokens")
        return Traits(
            context_length=settings.context_length,
            max_concurrency=limit,
            shifts_context=shifts,
            takes_prompt_lists=shifts,
            parameters={name: name for name in names} | ({"num_keep": "n_keep"} if shifts else {}),
            usage_in_stream="counts" in bundle.name,
            parses_tools=not bare,
            splits_reasoning=not bare,
            fields_for_marks={"skip_special_tokens": False},
            formats_completions="chats-only" not in bundle.name,
            schema_compiler=LLGUIDANCE if "compiles" in bundle.name else None,
            schema_style=SchemaStyle.JSON_OBJECT if bare else SchemaStyle.OPENAI,
            vector_style=VectorStyle.PER_TOKEN,
            dead_words=() if "silent" in bundle.name else ("the core is dead",),
            dead_line="" if "silent" in bundle.name else "^core: ",
            takes_audio="hears" in bundle.name,
            request_id_header="x-request-id",
            inspector=Lens() if settings.inspect else None,
            replays="replays" in bundle.name,
            slots=SLOTS if settings.keeps_conversations or "shares" in bundle.name else None,
            salt_field="cache_salt" if "salts" in bundle.name else None,
            chats_by_completion="renders" in bundle.name
            or (settings.keeps_conversations and "replays" in bundle.name),
            metrics_path="/metrics" if "shows" in bundle.name else None,
            rerank_path="/v1/rerank" if "ranks" in bundle.name else None,
            transcription_path="/v1/audio/transcriptions" if "writes" in bundle.name else None,
            tokenizer=Tokenizer(
                tokenize_path="/extras/tokenize", detokenize_path="/extras/detokenize"
            ),
        )


def describe_start(settings, draft):
    """Return what it was started with, for tests to read."""
    return json.dumps(
        {
            "kv_cache_type": settings.kv_cache_type,
            "flash_attention": settings.flash_attention,
            "context_length": settings.context_length,
            "gpu_layers": settings.gpu_layers,
            "threads": settings.threads,
            "parallel": settings.parallel,
            "stall_timeout_s": settings.stall_timeout_s,
            "draft": draft and draft.stem,
            "rpc": settings.rpc,
            "devices": settings.devices,
            "slots": settings.keeps_conversations,
            **{word: True for word in settings.extra_args if word.startswith("--")},
        }
    )


ENGINE = FakeEngine()
