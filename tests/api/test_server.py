"""`vllama.Server`: a server of a Python program's own, with real processes and a fake engine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

import vllama
from tests.server_process import Server as OwnHome
from vllama.base.errors import ConfigError, ServeFailed

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples" / "python"


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a home with models for the fake engine."""
    home = OwnHome(tmp_path_factory.mktemp("api"))
    home.model("plain")
    home.model("fails", "--exit-before-ready", "--exit-code", "3")
    return {**home.env, "VLLAMA_LOAD_TIMEOUT": "60s"}


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def ask(url: str, model: str = "plain") -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "@tokens=3 x"}]}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60.0)
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def test_a_model_is_ready_and_nothing_is_left(environ: dict[str, str]) -> None:
    before = children()
    lines: list[str] = []
    with vllama.Server("plain", environ=environ, on_line=lines.append) as server:
        assert server.url.startswith("http://127.0.0.1:")
        rows = httpx.get(f"{server.url}/api/ps").json()["models"]
        assert [row["name"] for row in rows] == ["plain:latest"]
        assert ask(server.url) == "tok0 tok1 tok2 "
    assert children() <= before
    assert any(line.startswith("listening on ") for line in lines)


def test_the_same_with_async_with(environ: dict[str, str]) -> None:
    async def use() -> str:
        async with vllama.serve(environ=environ) as server:
            return await asyncio.to_thread(ask, server.url)

    before = children()
    assert asyncio.run(use()) == "tok0 tok1 tok2 "
    assert children() <= before


def test_a_start_that_is_cancelled_leaves_nothing(environ: dict[str, str]) -> None:
    async def cancelled() -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        server = vllama.Server(
            "plain", environ=environ, on_line=lambda line: loop.call_soon_threadsafe(begun.set)
        )

        async def enter() -> None:
            async with server:
                await asyncio.sleep(3600)

        task = asyncio.create_task(enter())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = children()
    asyncio.run(cancelled())
    assert children() <= before


def test_settings_are_those_of_serve(environ: dict[str, str]) -> None:
    with vllama.Server("plain", environ=environ, context_length=2048, keep_alive=60) as server:
        row = httpx.get(f"{server.url}/api/ps").json()["models"][0]
        assert row["context_length"] == 2048
    with pytest.raises(ConfigError, match="'contextlength' is not a setting"):
        vllama.Server("plain", contextlength=2048)
    for wrong in ("contxt", "ctx", "num_ctx", "context", "max_model_len", "context_lenght"):
        with pytest.raises(ConfigError) as error:
            vllama.Server("plain", **{wrong: 1})
        assert error.value.hint == "did you mean context_length?"
    assert {"Server", "serve"} <= set(dir(vllama))


def test_a_server_that_cannot_start_says_why(environ: dict[str, str]) -> None:
    with pytest.raises(ServeFailed) as caught, vllama.Server("no-such-model", environ=environ):
        pass
    assert caught.value.message.startswith("cannot serve 'no-such-model': ")
    assert "no known repository on the hub" in caught.value.message
    with pytest.raises(ServeFailed) as caught, vllama.Server("fails", environ=environ, strict=True):
        pass
    assert "exited with code 3" in caught.value.message


PROGRAM = """
import sys, vllama
server = vllama.Server("plain")
server.start()
print(server.url, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["returns", "is killed"])
def test_a_program_that_ends_without_leaving_the_context(
    environ: dict[str, str], end: str, tmp_path: Path
) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert program.stdin and program.stdout
    url = program.stdout.readline().decode().strip()
    tree = psutil.Process(program.pid).children(recursive=True)
    assert ask(url) and tree
    if end == "returns":
        program.stdin.close()
    else:
        os.kill(program.pid, signal.SIGKILL)
    assert program.wait(60) == (0 if end == "returns" else -signal.SIGKILL)
    _, alive = psutil.wait_procs(tree, timeout=60)
    assert not alive, [(p.pid, p.cmdline()) for p in alive]
    program.stdout.close()
    if not program.stdin.closed:
        program.stdin.close()


@pytest.mark.parametrize(
    ("example", "says"), [("chat.py", "tok0 tok1"), ("plan.py", "plain:latest: on this disk")]
)
def test_the_examples(environ: dict[str, str], example: str, says: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example), "plain"],
        env=environ | {"VLLAMA_ENGINE": "fake"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
