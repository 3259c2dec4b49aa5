"""The size of an installation's download, by the real uv from an index of ours."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.engines.test_install import CPU, Painter, make_offer, wheels
from vllama.cli.engine_install import describe_offer
from vllama.engines.install import measure_offer
from vllama.engines.recipe import Recipe
from vllama.machine.environments.download import measure_download
from vllama.machine.environments.layout import Step

PYTHON = Path(sys.executable)


def make_wheel(name: str, needs: str, size: int) -> bytes:
    """Return a wheel of about `size` bytes, which needs another package or none."""
    file, info = io.BytesIO(), f"{name}-1.dist-info"
    meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", meta + (f"Requires-Dist: {needs}\n" if needs else ""))
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
        wheel.writestr(f"{name}/weights", b"\0" * size)
    return file.getvalue()


WHEELS = {
    "paint": make_wheel("paint", "torch", 1000),
    "torch": make_wheel("torch", "", 50_000),
}


class Index(BaseHTTPRequestHandler):
    """A package index (PEP 691) that tells sizes, but not those of names in `silent`."""

    silent: frozenset[str] = frozenset()

    def do_GET(self) -> None:
        name = self.path.strip("/").split("/")[-1].partition("-")[0]
        body, kind = WHEELS.get(name, b""), "application/octet-stream"
        if self.path.startswith("/simple/") and body:
            file = {"filename": f"{name}-1-py3-none-any.whl", "hashes": {}}
            file |= {"url": f"/files/{file['filename']}"}
            file |= {} if name in self.silent else {"size": len(body)}
            body = json.dumps({"meta": {"api-version": "1.0"}, "name": name, "files": [file]})
            body, kind = body.encode(), "application/vnd.pypi.simple.v1+json"
        self.send_response(200 if body else 404)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def environ(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    silent = getattr(request, "param", frozenset())
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("_", (Index,), {"silent": silent}))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/simple"
    yield {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "UV_CACHE_DIR": str(tmp_path / "cache"),
        "UV_DEFAULT_INDEX": url,
    }  # fmt: skip
    server.shutdown()
    server.server_close()


def test_the_index_in_use_tells_the_size(environ: dict[str, str]) -> None:
    steps = (Step(requirements=("torch",)), Step(requirements=("paint", "torch==1")))
    found = measure_download(steps, PYTHON, environ=environ, extra_env={})
    assert found is not None and not found.usual_torch
    assert found.packages == {name: len(wheel) for name, wheel in WHEELS.items()}
    alone = (Step(requirements=("paint",), extra_args=("--no-deps",)),)
    found = measure_download(alone, PYTHON, environ=environ, extra_env={})
    assert found is not None and found.size_bytes == len(WHEELS["paint"])


def test_torch_of_another_index_is_told(environ: dict[str, str]) -> None:
    shut = {"UV_TORCH_BACKEND": "cpu"}  # its index is PyTorch's own
    environ |= {"HTTPS_PROXY": "http://127.0.0.1:1", "NO_PROXY": "127.0.0.1"}
    steps = (Step(requirements=("paint",)),)
    found = measure_download(steps, PYTHON, environ=environ, extra_env=shut)
    assert found is not None and found.usual_torch and len(found.packages) == 2


@pytest.mark.parametrize("environ", [frozenset({"torch"})], indirect=True)
def test_a_size_that_is_missing_makes_no_sum(environ: dict[str, str]) -> None:
    assert measure_download(
        (Step(requirements=("paint",)),), PYTHON, environ=environ, extra_env={}
    ) is None  # fmt: skip
    nowhere = (Step(requirements=("nowhere",)),)
    assert measure_download(nowhere, PYTHON, environ=environ, extra_env={}) is None


def test_an_offer_says_the_true_size(tmp_path: Path, environ: dict[str, str]) -> None:
    painter = Painter(install=Recipe(wheels=(wheels("paint"),)))
    offer = make_offer(painter, CPU, tmp_path)
    assert "  download  about 10 B" in describe_offer(offer)
    told = measure_offer(offer, environ)
    assert "  download  52 KB" in describe_offer(told), describe_offer(told)
    size = told.wheels.download_bytes
    assert told.wheels.disk_bytes == 20 + 6 * (size - 10) // 5  # more than usual hardly shrinks
    larger = replace(offer, wheels=replace(offer.wheels, download_bytes=2 * size))
    assert measure_offer(larger, environ).wheels.disk_bytes == 10  # half the recipe's, as of both
    environ["UV_DEFAULT_INDEX"] = "http://127.0.0.1:1/simple"
    assert measure_offer(offer, environ) == offer
