"""A llama-server with several slots shrinks when it is idle, and keeps its conversations."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.chaos.conversations import MODEL, WORDS
from tests.e2e.conftest import engine_at, weights
from tests.routes.test_ollama_chat import until
from tests.server_process import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def begin(number):
    """Return a conversation that begins like no other one."""
    text = " ".join(WORDS[number * (n + 7) % len(WORDS)] for n in range(100))
    return [{"role": "user", "content": text}]


def test_conversations_survive_growing_and_shrinking(tmp_path):
    environ = {"VLLAMA_ENGINE_PATHS": f"llama-server={engine_at()}", "PATH": os.environ["PATH"]}
    arguments = ("--engine", "llama-server", "--keep-alive", "1h")
    with Server(tmp_path, *arguments, fake=False, env=environ) as server:
        (server.models / f"{MODEL}.gguf").symlink_to(weights())

        def ask(messages, **options):
            options = {"num_predict": 8, "temperature": 0, **options}
            body = {"model": MODEL, "messages": messages, "stream": False, "options": options}
            status, told = server.post("/api/chat", body)
            assert status == 200, told
            read = told["prompt_eval_count"] - told["prompt_eval_cached_count"]
            return read, [*messages, told["message"], {"role": "user", "content": "Go on."}]

        def find_size():
            (row,) = server.get("/api/ps")["models"]
            return row["state"], row["slots"], row["context_length"]

        cold, talk = ask(begin(1))
        raised, _ = ask(talk, num_ctx=8192)
        assert (find_size(), cold > 100, raised < cold / 2) == (("ready", 1, 8192), True, True)
        with ThreadPoolExecutor(4) as pool:
            talks = [talk for _, talk in pool.map(ask, map(begin, (1, 2, 3, 5)))]
            list(pool.map(ask, talks))
        assert find_size() == ("ready", 4, 8192)
        until(lambda: find_size() == ("ready", 1, 4096), limit_s=600)
        assert [read for read, _ in map(ask, talks) if read > cold / 2] == []
        assert list((tmp_path / "data" / "run" / "slots").iterdir()) == []
        assert "idle: reloading with 1 slot of 4096 tokens" in server.log.read_text()
