"""Made-up machines, models, arguments and a server, which `checks` calls adapters with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

from vllama.engines.base import Engine, Installation, Mode, Settings
from vllama.machine.types import Accelerator, Platform, Vendor
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.supervise.spec import Endpoint, Fault, HttpProbe, LaunchSpec

GIB = 1024**3
KEY = "a-secret-key"
PORT = 43217
CONTEXT = 4096
USER_ARGUMENTS = ("--flag-of-the-user", "1")
USER_VARIABLES = {"PATH": "/bin", "HOME": "/home/u", "HOST": "0.0.0.0", "MY_PASSWORD": "hunter2"}
# lines that many programs print, and what they mean
COMMON_LINES = (
    ("OSError: [Errno 98] Address already in use", Fault.PORT),
    ("torch.OutOfMemoryError: CUDA out of memory.", Fault.MEMORY),
    ("OSError: [Errno 12] Cannot allocate memory", Fault.MEMORY),
)
LINUX = Platform(
    os="linux", arch="x86_64", cores=4, ram_total_bytes=16 * GIB, ram_available_bytes=12 * GIB
)
PLATFORMS = (
    LINUX,
    replace(LINUX, accelerators=(_gpu := Accelerator(
        vendor=Vendor.NVIDIA, index=0, name="NVIDIA H100", total_bytes=80 * GIB,
        free_bytes=79 * GIB,
    ),)),
    replace(LINUX, os="darwin", arch="arm64", accelerators=(
        replace(_gpu, vendor=Vendor.APPLE, name="Apple M3"),
    )),
)  # fmt: skip
MODEL = ModelInfo(
    architecture="llama", parameter_count=134_515_008, quant="Q4_1", context_length=8192,
    embedding_length=576, block_count=30, head_count=9, head_count_kv=(3,), key_length=64,
    value_length=64, vocab_size=49152, weights_bytes=96_570_000,
)  # fmt: skip


CHAT = {
    "model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True,
    "temperature": 0.8, "top_k": 40, "stop": ["x"], "seed": 7, "max_tokens": 9,
}  # fmt: skip


def make_settings(mode: Mode, *, extra_args: tuple[str, ...] = ()) -> Settings:
    return Settings(mode=mode, alias="m:latest", context_length=CONTEXT, extra_args=extra_args)


def make_bundle(format_: Format) -> Bundle:
    path = Path("/models/m.gguf" if format_ is Format.GGUF else "/models/m")
    return Bundle(
        name="m:latest", store="folder", format=format_, path=path, files=(path,),
        size_bytes=98_362_432, digest="0" * 64, modified_s=0.0, hub_id="org/m",
    )  # fmt: skip


def launch(
    engine: Engine, settings: Settings, endpoint: Endpoint, environ: Mapping[str, str]
) -> LaunchSpec:
    installation = Installation(
        engine=engine.name,
        version="1.0",
        python=Path("/env/bin/python"),
        executable=Path("/env/bin/program"),
    )
    return engine.launch(make_bundle(engine.formats[0]), settings, installation, endpoint, environ)


class ProbeServer(HTTPServer):
    """Answers the routes of `probe`; with a `key`, all but its `path` ask for that."""

    probe: HttpProbe
    key: str | None = None
    is_ready = True


class _Handler(BaseHTTPRequestHandler):
    server: ProbeServer

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Answer the probe."""
        server, probe = self.server, self.server.probe
        if self.path == probe.path:
            self._answer(min(probe.ready_statuses) if server.is_ready else 503)
        else:
            self._answer(200 if self.path == probe.verify_path and self._has_key() else 401)

    def do_POST(self) -> None:
        """Answer the first work."""
        self.rfile.read(int(self.headers["Content-Length"]))
        work = self.server.probe.first_work
        self._answer(200 if work and self.path == work.path and self._has_key() else 401)

    def _has_key(self) -> bool:
        key = self.server.key
        return key is None or self.headers["Authorization"] == f"Bearer {key}"

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serve_probes() -> Iterator[ProbeServer]:
    """Serve on a free port of loopback; set the server's `probe` before a request arrives."""
    with ProbeServer(("127.0.0.1", 0), _Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
