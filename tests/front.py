"""What tests of many modules share: a server with fake engines, and the official clients."""

import pytest

from tests.server_process import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Return a running server with fake engines."""
    with Server(tmp_path_factory.mktemp("gateway")) as running:
        running.model("plain")
        running.model("slow", "--token-interval", "0.02")
        running.model("counts")
        running.model("wide", "--token-interval", "0.005")
        running.model("shifts-and-counts")
        running.model("vectors", "--embed-per-token")
        yield running


@pytest.fixture(scope="session")
def official_clients():
    """Import the clients of OpenAI and Anthropic, which takes seconds, in one worker only."""
    import anthropic
    import openai

    return anthropic, openai
