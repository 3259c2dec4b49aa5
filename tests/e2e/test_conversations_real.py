"""llama-server saves its slots and restores them: over an unload, a restart and a kill."""

import os
import signal

import pytest

from tests.chaos.conversations import MODEL, WORDS, ask, kill_all, kill_in_the_midst, unload
from tests.e2e.conftest import engine_at, weights
from tests.server_process import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TALK = [
    {"role": "user", "content": " ".join(WORDS[n % len(WORDS)] for n in range(700))},
    {"role": "assistant", "content": "A list of words."},
    {"role": "user", "content": "Which is the last one?"},
]


@pytest.fixture
def start(tmp_path):
    environ = {"VLLAMA_ENGINE_PATHS": f"llama-server={engine_at()}", "PATH": os.environ["PATH"]}
    arguments = ("--engine", "llama-server", "--context-length", "2048", "--cache-disk", "1GB")
    servers = []

    def make() -> Server:
        server = Server(tmp_path, *arguments, fake=False, env=environ)
        link = server.models / f"{MODEL}.gguf"
        if not link.exists():
            link.symlink_to(weights())
        server.start()
        servers.append(server)
        return server

    yield make
    servers[-1].process.send_signal(signal.SIGTERM)
    servers[-1].process.wait()


def test_a_conversation_is_not_read_again(start, tmp_path):
    server = start()
    cold = ask(server, TALK[:1])
    assert cold.cached < 100 and cold.prompt > 700
    unload(server)
    again = ask(server, TALK)
    assert again.cached > 700
    server.process.send_signal(signal.SIGTERM)
    server.process.wait()
    server = start()
    assert ask(server, TALK).cached > 700
    folder = tmp_path / "data" / "conversations"
    assert {file.stat().st_size > 10_000_000 for file in folder.glob("*.slot")} == {True}
    resumed = kill_in_the_midst(server, TALK, 0.05)
    assert resumed.prompt == again.prompt  # whole, whether the kill came in time or not
    kill_all(server)
    server = start()
    assert ask(server, TALK).cached > 700
    unload(server)
    for file in folder.glob("*.slot"):
        os.truncate(file, file.stat().st_size - 1)  # which would end the engine
    assert ask(server, TALK).cached < 100
    assert server.get("/api/ps")["models"][0]["restarts"] == 0
