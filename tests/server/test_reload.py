"""SIGHUP, keys, request ids and the log, of a whole server."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import psutil
import pytest

from tests.cli.terminal import Terminal
from tests.routes.test_ollama_chat import ENDLESS, user
from tests.server_process import LIMIT_S, Server

pytestmark = pytest.mark.slow
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


class Configured(Server):
    """A server with a file of settings."""

    def __init__(self, home: Path, text: str, *arguments: str, **env: str) -> None:
        self.file = home / "config.toml"
        super().__init__(home, *arguments, env={"VLLAMA_CONFIG": str(self.file), **env})
        self.write(text)

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def reload(self, text: str, told: str) -> None:
        """Write the file, send the signal, wait until the log tells, after what it told before."""
        told = rf"(?s)\A.{{{len(self.output)}}}.*{told}"
        self.write(text)
        assert self.process
        self.process.send_signal(signal.SIGHUP)
        self.wait_for(told)

    def ask(self, path: str, key: str = "", body=None, **headers: str):
        """Return status, headers and JSON of a request with a key."""
        headers |= {"authorization": f"Bearer {key}"} if key else {}
        method = "GET" if body is None else "POST"
        status, answered, data = self.request(method, path, body, headers)
        return status, answered, json.loads(data)


def test_a_reload_cuts_no_stream_and_takes_all_or_nothing(tmp_path):
    folders = f'folders = ["{tmp_path}/models", "{tmp_path}/more"]\n'
    with Configured(tmp_path, f'folders = ["{tmp_path}/models"]\n', VLLAMA_FOLDERS="") as server:
        server.model("slow", "--token-interval", "0.02")
        server.models = tmp_path / "more"
        server.models.mkdir()
        server.model("extra")
        extra = {"model": "extra", **CHAT, "stream": False}
        assert server.post("/api/chat", extra)[0] == 404
        many = {"model": "slow", "messages": [{"role": "user", "content": "@tokens=120"}]}
        with server.open("/api/chat", many) as answer:
            first = json.loads(answer.readline())
            assert first["message"]["content"]
            pid = server.engine("slow").pid
            server.reload(
                f"{folders}keep_alive = -1\nmax_queue = 7\nport = 9\n",
                r"settings reloaded: .*max_queue \(512 → 7\)",
            )
            assert "port (0 → 9)" not in server.output  # the flag wins over the file
            lines = [json.loads(line) for line in answer]
        assert lines[-1]["done"] and sum(bool(x["message"]["content"]) for x in lines) == 119
        assert server.engine("slow").pid == pid
        # kept for ever now: it had the default
        assert server.get("/api/ps")["models"][0]["expires_at"] > "2100"
        assert server.post("/api/chat", extra)[0] == 200

        server.reload("max_queue = many\n", r"the settings are unchanged: cannot read")
        server.reload('[aliases]\nmine = "slow"\n', r'cannot use the alias "mine"')
        server.reload("max_queue = -4\n", r'are unchanged: cannot use max_queue "-4"')
        server.reload('engine = "nonsuch"\n', r"are unchanged: .*nonsuch")
        assert server.post("/api/chat", extra)[0] == 200
        server.reload("host = '0.0.0.0'\n", r"host \(127.0.0.1 → 0.0.0.0\): needs a restart")
        assert server.post("/api/chat", extra)[0] == 404  # its folder is named no more


def test_keys_from_the_file_and_new_ones_at_once(tmp_path):
    with Configured(tmp_path, 'api_key = ["sk-one", "sk-two"]\n', OLLAMA_API_KEY="cloud") as server:
        server.model("plain")
        assert server.request("GET", "/")[0] == server.request("GET", "/health")[0] == 200
        status, headers, said = server.ask("/api/tags")
        assert (status, headers["www-authenticate"]) == (401, 'Bearer realm="vllama"')
        assert "unauthorized" in said["error"]
        status, _, said = server.ask("/v1/models", "sk-no")
        assert (status, said["error"]["code"]) == (401, "invalid_api_key")
        status, _, said = server.ask("/v1/messages", "sk-no", {"model": "plain"})
        assert (status, said["error"]["type"]) == (401, "authentication_error")
        asked = {"model": "plain", "max_tokens": 5, **CHAT}
        assert server.ask("/v1/messages", "", asked, **{"x-api-key": "sk-two"})[0] == 200
        assert (
            server.ask("/api/chat", "sk-one", {"model": "plain", **CHAT, "stream": False})[0] == 200
        )
        assert (
            server.request("OPTIONS", "/api/chat", None, {"origin": "http://localhost"})[0] == 204
        )

        def commanded(**env: str) -> subprocess.CompletedProcess[str]:
            clean = {
                k: v for k, v in server.env.items() if k not in ("VLLAMA_CONFIG", "OLLAMA_API_KEY")
            }
            return subprocess.run(
                [sys.executable, "-m", "vllama", "ps", "--json"],
                env={**clean, "OLLAMA_HOST": server.url, **env},
                capture_output=True, text=True, timeout=LIMIT_S,
            )  # fmt: skip

        assert "plain" in commanded(OLLAMA_API_KEY="sk-two").stdout
        assert "plain" in commanded(VLLAMA_API_KEY="sk-one").stdout
        refused = commanded()
        assert refused.returncode == 1 and "unauthorized" in refused.stderr

        server.reload('api_key = "sk-new"\n', "settings reloaded: api_key\n")
        assert server.ask("/api/tags", "sk-one")[0] == 401
        assert server.ask("/api/tags", "sk-new")[0] == 200
        server.reload("", "api_key: needs a restart; the old value stays in effect\n")
        assert server.ask("/api/tags")[0] == 401  # a reload never opens a server to all
        assert server.ask("/api/tags", "sk-new")[0] == 200
        assert "sk-" not in server.output


def test_ids_go_to_the_engine_and_all_of_the_log_is_json(tmp_path):
    with Configured(tmp_path, 'log_format = "json"\n') as server:
        server.model("wide", "--token-interval", "0.02")
        chat = {"model": "wide", **CHAT, "stream": False}
        assert (
            server.ask("/api/chat", "", chat, **{"x-request-id": "mine-1"})[1]["x-request-id"]
            == "mine-1"
        )
        assert "mine-1" in server.stats("wide")["ids"]
        # one that runs already with that id: the engine is not given it twice
        endless = {"model": "wide", **user(f"@tokens={ENDLESS}")}
        with server.open("/api/chat", endless) as answer:
            made = answer.headers["x-request-id"]
            answer.readline()
            assert (
                server.ask("/api/chat", "", chat, **{"x-request-id": made})[1]["x-request-id"]
                == made
            )
        ids = [one for one in server.stats("wide")["ids"] if one and one.startswith(made)]
        assert len(set(ids)) == len(ids) and len(ids) >= 2
        _, headers, _ = server.ask("/api/chat", "", chat, **{"x-request-id": "not a single word"})
        assert headers["x-request-id"] != "not a single word"
        server.ask("/api/chat", "", {"model": "none", **CHAT}, **{"x-request-id": "mine-2"})
        server.wait_for('POST /api/chat 404.*"mine-2"')
    told = [json.loads(line) for line in server.output.splitlines()]
    assert all({"ts", "level", "component", "msg"} <= set(line) for line in told)
    served = next(
        line for line in told if line.get("request_id") == "mine-1" and " 200 " in line["msg"]
    )
    assert served["model"].startswith("wide") and "POST /api/chat" in served["msg"]
    # the engine's life is not the request's that began it
    assert all("request_id" not in line for line in told if line["msg"].startswith("unload"))
    kept = (tmp_path / "data" / "logs" / "vllama.log").read_text().splitlines()
    assert [json.loads(line)["msg"] for line in kept] == [line["msg"] for line in told]


def test_a_failed_load_and_a_past_one_are_in_the_logs(tmp_path):
    with Server(tmp_path) as server:
        server.model(
            "broken", "--print", "Error: no such tensor", "--exit-before-ready", "--exit-code", "3"
        )
        assert server.post("/api/chat", {"model": "broken", **CHAT})[0] == 500
        server.model("plain")
        server.post("/api/chat", {"model": "plain", **CHAT, "stream": False})
        server.post("/api/chat", {"model": "plain", "messages": [], "keep_alive": 0})
        server.post("/api/chat", {"model": "plain", **CHAT, "stream": False})

        def logs(*args: str) -> str:
            command = [sys.executable, "-m", "vllama", "logs", *args]
            done = subprocess.run(
                command, env=server.env, capture_output=True, text=True, timeout=LIMIT_S
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        running = logs("plain")
    for shown in (running, logs("plain"), logs("plain", "--attempt", "1")):
        assert "serving on" in shown
    assert "Error: no such tensor" in logs("broken", "-n", "50")
    assert "listening on" in logs()


# -- what a hang-up means -----------------------------------------------------------------------


def ended(process: psutil.Process) -> bool:
    _, alive = psutil.wait_procs([process], timeout=LIMIT_S)
    return not alive


@pytest.fixture
def heeds_hang_ups():
    """Let servers heed SIGHUP though the tests may have been started by `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heeds_hang_ups")
def test_a_terminal_that_is_closed_ends_the_server(tmp_path):
    server = Server(tmp_path)
    terminal = Terminal(server.command[3:], server.env)
    terminal.expect("listening on")
    process = psutil.Process(terminal._process.pid)
    process.send_signal(signal.SIGHUP)  # by hand: the terminal is there
    terminal.expect("settings reloaded: no changes")
    os.close(terminal._master)
    terminal._master = os.open(os.devnull, os.O_RDONLY)
    assert ended(process) or not process.is_running()
    assert terminal._process.wait(LIMIT_S) == 0


def test_nohup_outlives_its_terminal_and_still_reloads(tmp_path):
    server = Server(tmp_path)
    out = tmp_path / "nohup.log"
    script = f'exec nohup "$@" >{out} 2>&1'
    command = ["/bin/sh", "-c", script, "sh", *server.command]
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=server.env, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(slave)
    server.process, server.log = process, out
    try:
        server.wait_for("listening on")
        os.close(master)  # the kernel sends the hang-up
        server.wait_for("settings reloaded: no changes")
        process.send_signal(signal.SIGHUP)
        server.wait_for("(?s)settings reloaded.*settings reloaded")
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(LIMIT_S) == 0


def test_keys_of_a_file_are_read_again(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-one\n")
    keys.chmod(0o600)
    settings = f'api_key_file = "{keys}"\n'
    with Configured(tmp_path, settings) as server:
        assert server.ask("/api/tags", "sk-one")[0] == 200
        keys.write_text("sk-two\n")
        server.reload(settings, "settings reloaded: api_key\n")
        assert [server.ask("/api/tags", key)[0] for key in ("sk-one", "sk-two")] == [401, 200]
        keys.write_text("")  # must not open the server to all
        server.reload(settings, "the settings are unchanged: .*it has no key")
        assert [server.ask("/api/tags", key)[0] for key in ("", "sk-two")] == [401, 200]


def test_fields_that_may_be_code_are_let_in_and_shut_out_again(tmp_path):
    keyed = 'api_key = "sk-1"\n'
    with Configured(tmp_path, keyed) as server:
        server.model("plain")
        body = {"model": "plain", **user(), "vllm_xargs": {}}
        for text, expected in ((keyed, 403), (keyed + "inspect_code = true\n", 200), (keyed, 403)):
            server.reload(text, "settings reloaded")
            assert server.ask("/v1/chat/completions", "sk-1", body)[0] == expected
