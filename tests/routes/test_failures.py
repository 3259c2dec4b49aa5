"""Engines that fail, and what a client is told; the next request works."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.routes.test_ollama_chat import WORDS, open_stream, sse, until, user
from tests.server_process import LIMIT_S, Server

# real processes, one after another: not for every save
pytestmark = pytest.mark.slow


def whole(server, model):
    return server.post("/api/chat", {"model": model, **user(), "stream": False})


def test_an_engine_that_dies_in_mid_stream(server):
    name = server.model("dies", "--die-after", "3", once=True)
    lines = server.lines("/api/chat", {"model": name, **user()})
    text = "".join(line.get("message", {}).get("content", "") for line in lines)
    assert text.startswith("tok0 ")
    assert set(lines[-1]) == {"error", "hint"}
    assert not any(line.get("done") for line in lines)
    status, reply = whole(server, name)
    assert (status, reply["message"]["content"]) == (200, WORDS)


LONG = user("@tokens=1000000 @delay=0.01")
CRASH = "the engine crashed: the color mauve is unknown; try again: the engine is restarting"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", LONG),
        ("/api/chat", {**LONG, "stream": False}),
        ("/v1/chat/completions", {**LONG, "stream": True}),
        ("/v1/messages", {**LONG, "max_tokens": 10**6}),
        ("/v1/responses", {"input": LONG["messages"][0]["content"], "stream": True}),
    ],
)
def test_an_engine_that_says_that_it_is_dead_is_restarted_and_its_log_tells_why(server, path, body):
    """Its process goes on, and would answer so for ever."""
    name = server.model(f"wide-dead{path.replace('/', '-')}-{len(body)}")
    assert whole(server, name)[0] == 200
    before = server.engine(name)
    with ThreadPoolExecutor(3) as pool:
        asks = [
            pool.submit(server.request, "POST", path, {"model": name, **body}) for _ in range(3)
        ]
        until(lambda: server.stats(name)["active"] == len(asks))
        server.ask_engine(name, "/__core_dies")
        for ask in asks:
            told = ask.result()[2].decode()
            assert CRASH in told and "see above" not in told
    # who asks now waits for the next one, and that one is right
    status, reply = whole(server, name)
    assert (status, reply["message"]["content"]) == (200, WORDS)
    assert not before.is_running()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/tokenize", {"text": "hello"}),
        ("/api/chat", {**user()}),
        ("/api/chat", {**user(), "stream": False}),
        ("/v1/embeddings", {"input": "hello"}),
        ("/v1/completions", {"prompt": "hello", "n": 2}),
    ],
)
def test_a_request_to_an_engine_that_has_died_already_waits_for_the_next_one(server, path, body):
    """Nobody has noticed yet: it is this request that finds out, and it is not to blame."""
    name = server.model(f"wide-unnoticed{path.replace('/', '-')}-{len(body)}")
    assert server.post(path, {"model": name, **body, "stream": False})[0] == 200
    before = server.engine(name)
    server.ask_engine(name, "/__core_dies")
    until(lambda: server.stats(name)["core_died"])
    status, _, told = server.request("POST", path, {"model": name, **body})
    assert status == 200 and b"error" not in told
    assert not before.is_running()


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_kills_its_engine_is_not_sent_again(server, stream):
    name = server.model(f"wide-killer-{int(stream)}")
    assert whole(server, name)[0] == 200
    body = {"model": name, **user("@core_dies"), "stream": stream}
    assert CRASH in server.request("POST", "/api/chat", body)[2].decode()
    assert whole(server, name)[0] == 200
    chats = [body for body in server.stats(name)["bodies"] if "messages" in body]
    assert len(chats) == 1  # the last one: the killer did not come back


def counted(server, route, status, reason):
    """Return how many answers are counted that ended with that error."""
    text = server.request("GET", "/metrics")[2].decode()
    wanted = (f'route="{route}"', f'status="{status}"', f'reason="{reason}"')
    rows = [row for row in text.splitlines() if row.startswith("vllama_request_errors_total{")]
    return sum(float(row.split()[-1]) for row in rows if all(part in row for part in wanted))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {**user()}),
        ("/api/generate", {"prompt": "hi"}),
        ("/v1/chat/completions", {**user(), "stream": True}),
        ("/v1/chat/completions", {**user(), "stream": True, "n": 2}),
        ("/v1/messages", {**user(), "stream": True, "max_tokens": 50}),
        ("/v1/responses", {"input": "hi", "stream": True}),
    ],
)
def test_a_stream_that_breaks_off_is_an_error_in_log_and_metrics(server, path, body):
    id_ = f"broken{path.replace('/', '-')}-{len(body)}"
    name = server.model(id_, "--die-after", "3", once=True)
    before = counted(server, path, 200, "connection_lost")
    status, _, data = server.request("POST", path, {"model": name, **body}, {"x-request-id": id_})
    assert status == 200 and b"error" in data
    line = server.wait_for(rf"POST {path} 200 \S+s .*, then an error: .*{id_}\]")
    assert "cannot continue: the connection to the engine was lost" in line
    until(lambda: counted(server, path, 200, "connection_lost") == before + 1)


def test_an_error_with_a_status_is_counted_and_its_cause_logged_once(server):
    before = counted(server, "/api/chat", 404, "model_not_found")
    headers = {"x-request-id": "not-there"}
    assert server.request("POST", "/api/chat", {"model": "nope"}, headers)[0] == 404
    text = server.wait_for(r"POST /api/chat 404 \S+s .*: .*not-there")
    assert text.count("[not-there]") == 1
    assert counted(server, "/api/chat", 404, "model_not_found") == before + 1


def test_an_engine_that_dies_under_a_whole_answer(server):
    name = server.model("dies-whole", "--die-after", "3", once=True)
    status, reply = whole(server, name)
    assert status == 500
    assert "engine" in reply["error"]
    assert whole(server, name)[0] == 200


def test_openai_gets_an_error_event_and_the_end(server):
    name = server.model("dies-openai", "--die-after", "3", once=True)
    events = sse(server, "/v1/chat/completions", {"model": name, **user(), "stream": True})
    assert "error" in events[-1]


def test_a_killed_engine_is_back_for_the_next_request(server):
    name = server.model("killed")
    assert whole(server, name)[0] == 200
    first = server.engine(name)
    for _ in range(3):
        process = server.engine(name)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=240)
        status, reply = whole(server, name)
        assert status == 200, reply
    assert server.engine(name).pid != first.pid


def test_a_reset_connection(server):
    name = server.model("resets", "--reset-after", "2", once=True)
    lines = server.lines("/api/chat", {"model": name, **user()})
    assert "error" in lines[-1]


def test_an_error_after_the_200_is_a_proper_status(server):
    name = server.model("late-error", "--error-after-200")
    status, reply = whole(server, name)
    assert status >= 500
    assert reply["error"]
    status, _, _ = server.request("POST", "/api/chat", {"model": name, **user()})
    assert status >= 500


def test_an_empty_answer_is_an_error(server):
    name = server.model("empty", "--empty-200")
    status, reply = whole(server, name)
    assert status >= 500
    assert "ended the stream early" in reply["error"]


def test_an_engine_that_does_not_start_names_the_cause(server):
    name = server.model(
        "no-start",
        "--exit-before-ready",
        "--exit-code",
        "3",
        "--print",
        "no such color: octarine",
        once=True,
    )
    status, reply = whole(server, name)
    assert status == 500
    assert "the color octarine is unknown" in reply["error"]
    assert "paint it" in reply["error"]
    assert whole(server, name)[0] == 200


def test_one_failure_is_one_line_of_the_log_beside_that_of_the_request(server):
    name = server.model("one-line", "--exit-before-ready", "--exit-code", "3")
    assert whole(server, name)[0] == 500
    ended = f"{name}:latest: it exited with"
    output = server.wait_for(f" access: .*{ended}")
    told = [line for line in output.splitlines() if ended in line]
    own = [line for line in told if " access: " not in line]
    assert len(own) == 1 and len(told) == 2, told
    assert " ERROR " in own[0] and f"vllama logs {name}:latest" in own[0]


def test_a_damaged_file_is_told_before_an_engine_starts(server):
    for name, data in (("text", b"hello world, this is no model"), ("nothing", b"")):
        (server.models / f"{name}.gguf").write_bytes(data)
    whole_file = (server.models / "plain.gguf").read_bytes()
    (server.models / "cut.gguf").write_bytes(whole_file[: len(whole_file) // 2])
    for name in ("text", "nothing", "cut"):
        status, reply = whole(server, name)
        assert status == 500, reply
        assert reply["error"]
        status, _ = server.post("/api/show", {"model": name})
        assert status == 500
    rows = {row["name"]: row for row in server.get("/api/tags")["models"]}
    assert "problem" not in rows["plain:latest"]
    for name in ("text", "nothing", "cut"):  # as the load says it
        assert rows[f"{name}:latest"]["problem"] in whole(server, name)[1]["error"]
    assert "truncated" in rows["cut:latest"]["problem"]
    for name in ("text", "nothing", "cut"):
        (server.models / f"{name}.gguf").unlink()


def test_the_queue_is_bounded(tmp_path):
    with Server(tmp_path, "--max-queue", "0") as server:
        server.model("m")
        status, headers, data = server.request("POST", "/api/chat", {"model": "m", **user()})
        assert status == 503
        assert "server busy" in json.loads(data)["error"]
        assert int(headers["retry-after"]) >= 1


def test_a_stop_waits_for_the_running_answer_and_refuses_new_ones(tmp_path):
    with Server(tmp_path, env={"VLLAMA_DRAIN_TIMEOUT": "600s"}) as server:
        server.model("slow", "--token-interval", "0.05")
        server.post("/api/chat", {"model": "slow"})
        with server.open("/api/chat", {"model": "slow", **user("@tokens=20")}) as answer:
            answer.readline()
            server.process.send_signal(signal.SIGTERM)
            lines = [json.loads(line) for line in answer.read().splitlines()]
        assert lines[-1]["done"]
        assert server.process.wait(timeout=240) == 0


def test_a_second_signal_does_not_wait(tmp_path):
    with Server(tmp_path, env={"VLLAMA_DRAIN_TIMEOUT": "600s"}) as server:
        server.model("slow", "--token-interval", "0.1")
        server.post("/api/chat", {"model": "slow"})
        with server.open("/api/chat", {"model": "slow", **user("@tokens=9000")}) as answer:
            answer.readline()
            server.process.send_signal(signal.SIGINT)
            until(lambda: not accepts(server))
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(timeout=240) == 0


@pytest.mark.parametrize("how", ["computing", "matching", "waiting"])
def test_a_third_signal_ends_a_server_whose_loop_is_stuck(tmp_path, how):
    with Server(tmp_path) as server:
        server.post("/api/chat", {"model": server.model("m")})
        name = server.model(f"stuck-{how}")
        client = open_stream(server, "/api/chat", {"model": name, **user()})
        until((server.models / f"{name}.stuck").exists)
        tree = server.tree()
        assert tree

        def ended():  # signals that come too fast are one
            server.process.send_signal(signal.SIGTERM)
            return server.process.poll() is not None

        until(ended)
        client.close()
        assert server.process.returncode == 128 + signal.SIGTERM
        _, alive = psutil.wait_procs(tree, timeout=LIMIT_S)
        assert not alive


def accepts(server):
    import socket

    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("when", ["loading", "serving"])
def test_sigkill_leaves_no_engine(tmp_path, when):
    with Server(tmp_path) as server:
        switches = ["--spawn-child", "--spawn-setsid", "--spawn-daemon", "--ignore-term"]
        if when == "loading":
            switches += ["--ready-after", "60"]
        server.model("m", *switches)
        client = open_stream(server, "/api/chat", {"model": "m", **user("@tokens=3")})
        if when == "serving":
            assert client.recv(65536)
        until(lambda: len(server.tree()) >= 5)
        tree = server.tree()
        server.process.kill()
        server.process.wait()
        _, alive = psutil.wait_procs(tree, timeout=240)
        client.close()
        assert not alive
