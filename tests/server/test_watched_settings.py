"""`--watch`: a changed file is taken over, or refused, as a whole; no signal is needed."""

from __future__ import annotations

import pytest

from tests.routes.test_ollama_chat import until, user
from tests.server.test_reload import Configured

pytestmark = pytest.mark.slow


def test_a_watched_file_is_taken_over_or_refused_as_a_whole(tmp_path) -> None:
    with Configured(tmp_path, "max_queue = 5\n", "--watch") as server:
        server.model("plain")

        def replace(text: str) -> None:
            new = tmp_path / "new.toml"
            new.write_text(text)
            new.replace(server.file)

        def show(key: str) -> str:
            rows = server.get("/api/config")["settings"]
            return next(row["text"] for row in rows if row["key"] == key)

        assert show("max_queue") == "5" and not server.get("/api/config")["refused"]
        replace('max_queue = 7\n[models.plain]\naliases = ["other"]\n')
        until(lambda: show("max_queue") == "7")
        status, reply = server.post("/api/chat", {"model": "other", **user(), "stream": False})
        assert status == 200 and reply["message"]["content"]

        replace("max_queue = 9\n[models.plain]\ncontxt = 1\n")
        until(lambda: server.get("/api/config")["refused"])
        refused = server.get("/api/config")["refused"]
        assert "line 3: no such field; did you mean context_length?" in refused
        assert show("max_queue") == "7"
        output = server.wait_for("the settings are unchanged")
        assert output.count("the settings are unchanged") == 1

        replace("max_queue = 9\n")
        until(lambda: show("max_queue") == "9")
        assert not server.get("/api/config")["refused"]
        body = {"model": "other", **user(), "stream": False}
        assert server.post("/api/chat", body)[0] == 404


def test_a_watched_file_that_is_emptied_or_removed_opens_no_server(tmp_path) -> None:
    with Configured(tmp_path, 'api_key = "k1"\n', "--watch") as server:

        def settings() -> dict:
            return server.ask("/api/config", "k1")[2]

        server.file.write_text("max_queue = 3\n")
        until(lambda: "api_key: needs a restart; the old value stays in effect" in server.output)
        assert server.ask("/api/tags")[0] == 401 and server.ask("/api/tags", "k1")[0] == 200
        server.file.unlink()
        until(lambda: settings()["refused"])
        server.wait_for("the settings are unchanged")
        assert server.ask("/api/tags")[0] == 401
