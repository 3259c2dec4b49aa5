"""A beginning that several requests have in common, read once by llama-server."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.chaos.conversations import MODEL, WORDS
from tests.e2e.conftest import engine_at, weights
from tests.server_process import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PREFIX = " ".join(WORDS[n % len(WORDS)] for n in range(1000))
"""So long that the engine reads it while three other requests come."""


def test_a_burst_reads_its_beginning_once(tmp_path):
    environ = {"VLLAMA_ENGINE_PATHS": f"llama-server={engine_at()}", "PATH": os.environ["PATH"]}
    arguments = ("--engine", "llama-server", "--context-length", "2048", "--num-parallel", "4")
    with Server(tmp_path, *arguments, fake=False, env=environ) as server:
        (server.models / f"{MODEL}.gguf").symlink_to(weights())
        server.post("/api/generate", {"model": MODEL})

        def ask(word):
            talk = [{"role": "system", "content": PREFIX}, {"role": "user", "content": word}]
            options = {"num_predict": 4, "temperature": 0}
            body = {"model": MODEL, "messages": talk, "stream": False, "options": options}
            status, told = server.post("/api/chat", body)
            assert status == 200, told
            return told["prompt_eval_count"], told.get("prompt_eval_cached_count")

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(ask, ("one", "two", "three", "four")))
        read = [prompt - cached for prompt, cached in found]
        # as many tokens as one prompt has, and what the others end with
        assert sum(read) < 1.5 * max(read), found
        assert ask("one")[1] > 900  # and their slots keep it
        assert list((tmp_path / "data" / "run" / "slots").iterdir()) == []
