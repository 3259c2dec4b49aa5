"""The scheduler in a whole server, with the fake engine behind it."""

import asyncio
import http.client
import json
import signal
import threading
from contextlib import ExitStack, suppress

import httpx
import psutil
import pytest

from tests.routes.test_ollama_chat import ENDLESS, WORDS, until, user
from tests.server_process import Server

pytestmark = pytest.mark.slow


def whole(server, model, text="hello", **more):
    return server.post("/api/chat", {"model": model, **user(text), "stream": False, **more})


def row(server, name):
    rows = server.get("/api/ps")["models"]
    return next((row for row in rows if row["name"].startswith(name)), None)


def together(server, count, body, path="/api/chat"):
    """Ask `count` times at once; return the answers."""

    async def ask_all():
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=240, limits=limits) as client:
            asks = [client.post(path, json=body) for _ in range(count)]
            return await asyncio.gather(*asks)

    return asyncio.run(ask_all())


# -- throughput ---------------------------------------------------------------------------------


def test_an_engine_with_n_slots_works_at_n_requests_at_once(tmp_path):
    """No lock, no queue of one: the engine itself counts how many it has at a time."""
    with Server(tmp_path) as server, ExitStack() as streams:
        name = server.model("wide", "--token-interval", "0.05")
        whole(server, name, "@tokens=1")
        for _ in range(80):
            body = json.dumps({"model": name, **user(f"@tokens={ENDLESS}")})
            connection = server.connect()
            streams.callback(connection.close)
            connection.request("POST", "/api/chat", body)
        # 64 is its limit: not one less, not one more; the others wait
        until(lambda: row(server, name)["queued"] == 16)
        until(lambda: server.stats(name)["active"] == 64)
        assert row(server, name)["requests"] == 64
        assert server.stats(name)["most"] == 64


def test_512_streams_at_once(tmp_path):
    with Server(tmp_path) as server:
        name = server.model("wide")
        whole(server, name)
        answers = together(server, 512, {"model": name, **user()})
        texts = {
            "".join(json.loads(line)["message"]["content"] for line in answer.text.splitlines())
            for answer in answers
        }
        assert {answer.status_code for answer in answers} == {200}
        assert texts == {WORDS}


def test_replicas_share_the_requests_of_a_serial_engine(tmp_path):
    with Server(tmp_path, "--replicas", "3") as server:
        name = server.model("serial", "--token-interval", "0.05")
        whole(server, name)
        until(lambda: row(server, name)["replicas"] == 3)
        assert row(server, name)["slots"] == 3
        endless = {"model": name, **user(f"@tokens={ENDLESS}")}
        with ExitStack() as streams:
            for _ in range(3):
                assert streams.enter_context(server.open("/api/chat", endless)).readline()
            assert row(server, name)["requests"] == 3
        commands = [words for words in server.commands().values() if "engine.py" in " ".join(words)]
        ports = {words[words.index("--port") + 1] for words in commands}
        assert len(ports) == 3
        engine = server.engine(name)
        engine.send_signal(signal.SIGKILL)
        engine.wait(timeout=240)
        assert whole(server, name)[0] == 200  # the others serve meanwhile
        until(lambda: row(server, name)["replicas"] == 3)
        assert "cause" not in row(server, name)


# -- queues -------------------------------------------------------------------------------------


def test_the_place_in_the_queue_is_told(tmp_path):
    with Server(tmp_path, "--max-queue", "1", "--debug") as server:
        name = server.model("slow", "--token-interval", "0.05")
        whole(server, name, "@tokens=1")
        with ExitStack() as streams:
            endless = {"model": name, **user(f"@tokens={ENDLESS}")}
            first = streams.enter_context(server.open("/api/chat", endless))
            assert "x-vllama-queue-position" not in first.headers
            first.readline()
            headers = {}

            def wait():
                body = {"model": name, **user("@tokens=1"), "stream": False}
                headers.update(server.request("POST", "/api/chat", body)[1])

            thread = threading.Thread(target=wait)
            thread.start()
            until(lambda: row(server, name)["queued"] == 1)
            body = {"model": name, **user()}
            status, refusal, data = server.request("POST", "/api/chat", body)
            assert status == 503
            assert int(refusal["retry-after"]) >= 1
            assert "server busy" in json.loads(data)["error"]
            # another model's queue is its own
            assert whole(server, server.model("other"))[0] == 200
            streams.close()  # the first leaves
            thread.join()
        assert headers["x-vllama-queue-position"] == "1"
        server.wait_for("from queue position 1")


def test_text_and_vectors_of_a_model_are_one_row(tmp_path):
    with Server(tmp_path) as server:
        name = server.model("both", "--token-interval", "0.05")
        with server.open("/api/chat", {"model": name, **user(f"@tokens={ENDLESS}")}) as answer:
            answer.readline()
            one = row(server, name)
            assert server.post("/api/embed", {"model": name, "input": "x"})[0] == 200
            (two,) = server.get("/api/ps")["models"]
            assert (one["requests"], two["requests"]) == (1, 1)
            assert (one["slots"], two["slots"]) == (1, 2)
            assert two["size"] > one["size"]


# -- health -------------------------------------------------------------------------------------


def test_an_engine_that_hangs_in_mid_stream(tmp_path):
    with Server(tmp_path, "--hang-timeout", "2s") as server:
        name = server.model("hangs", "--stall-after", "3", once=True)
        lines = server.lines("/api/chat", {"model": name, **user()})
        text = "".join(line.get("message", {}).get("content", "") for line in lines)
        assert text == "tok0 tok1 tok2 "
        assert "the engine hangs: no token" in lines[-1]["error"]
        status, reply = whole(server, name)
        assert (status, reply["message"]["content"]) == (200, WORDS)
        assert row(server, name)["restarts"] == 1
        output = server.wait_for(" access: .*no token for")
        told = [line for line in output.splitlines() if "no token for" in line]
        assert len([line for line in told if " access: " not in line]) == 1, told


def test_an_engine_that_is_frozen(tmp_path):
    with Server(tmp_path, "--hang-timeout", "2s") as server:
        name = server.model("freezes", "--token-interval", "0.02")
        with server.open("/api/chat", {"model": name, **user(f"@tokens={ENDLESS}")}) as answer:
            answer.readline()
            engine = server.engine(name)
            engine.send_signal(signal.SIGSTOP)
            lines = [json.loads(line) for line in answer.read().splitlines()]
        assert "the engine hangs" in lines[-1]["error"]
        assert whole(server, name, "@tokens=8")[0] == 200
        assert not engine.is_running()


def test_a_frozen_engine_is_found_before_anybody_asks(tmp_path):
    with Server(tmp_path, "--hang-timeout", "2s") as server:
        name = server.model("m")
        whole(server, name)
        engine = server.engine(name)
        engine.send_signal(signal.SIGSTOP)
        until(lambda: not engine.is_running())
        assert whole(server, name)[0] == 200


def test_a_slow_client_does_not_make_its_engine_hang(tmp_path):
    with Server(tmp_path, "--hang-timeout", "2s") as server:
        name = server.model("wide-long")
        whole(server, name)
        pid = server.engine(name).pid
        with server.open("/api/chat", {"model": name, **user("@tokens=200000")}) as answer:
            answer.readline()
            threading.Event().wait(5.0)  # nobody reads; that is what is tried here
            assert server.engine(name).pid == pid
            answer.close()
        assert whole(server, name)[0] == 200
        assert server.engine(name).pid == pid


def test_one_that_used_up_its_restarts_has_failed_until_it_is_stopped(tmp_path):
    with Server(tmp_path) as server:
        name = server.model("dying", "--exit-code", "3")
        whole(server, name)
        refusals = []

        def is_refused():
            """End its engine whenever it is ready, until requests are refused for it."""
            told = server.get("/api/ps")
            if "failed" in told:
                answer = server.request("POST", "/api/chat", {"model": name, **user()})
                refusals.append((told["failed"], *answer))
                return answer[0] == 503  # not if the pause after the failure is over
            for one in told["models"]:
                if one["state"] == "ready":
                    with suppress(OSError, ValueError, http.client.HTTPException, psutil.Error):
                        server.ask_process(psutil.Process(one["pid"]), "/__exit")
            return False

        until(is_refused)
        (failed,), _, headers, data = refusals[-1]
        assert failed["name"] == "dying:latest"
        assert "exited with code 3" in failed["cause"]
        assert failed["retry_after"] > 0
        assert "exited with code 3" in json.loads(data)["error"]
        assert int(headers["retry-after"]) >= 1
        server.model(name)  # mended
        server.post("/api/generate", {"model": name, "keep_alive": 0})
        assert "failed" not in server.get("/api/ps")
        assert whole(server, name)[0] == 200


# -- memory, sleep ------------------------------------------------------------------------------


def test_memory_is_measured_and_remembered(tmp_path):
    with Server(tmp_path) as server:
        name = server.model("large", "--hold", "200")
        whole(server, name)
        until(lambda: row(server, name)["size"] > 200 * 1024**2)
        server.post("/api/generate", {"model": name, "keep_alive": 0})
        until(lambda: row(server, name) is None)
        noted = json.loads((server.home / "data" / "memory.json").read_text())
        ((held,),) = noted.values()
        assert held["ram"] > 200 * 1024**2


def test_it_sleeps_before_it_is_unloaded(tmp_path):
    with Server(tmp_path) as server:
        name = server.model("dozes")
        whole(server, name, keep_alive="300ms")
        until(lambda: row(server, name)["state"] == "sleeping")
        pid = server.engine(name).pid
        until(lambda: server.stats(name)["sleeps"] == 1)
        status, reply = whole(server, name, keep_alive="5m")
        assert (status, reply["message"]["content"]) == (200, WORDS)
        assert server.engine(name).pid == pid
        assert row(server, name)["state"] == "ready"


def test_one_that_does_not_wake_up_is_restarted(tmp_path):
    with Server(tmp_path) as server:
        name = server.model("dozes-deeply", "--no-wake")
        whole(server, name, keep_alive="300ms")
        until(lambda: row(server, name)["state"] == "sleeping")
        pid = server.engine(name).pid
        assert whole(server, name, keep_alive="5m")[0] == 200
        assert server.engine(name).pid != pid


# -- two servers --------------------------------------------------------------------------------


def test_two_servers_of_one_user_leave_each_other_alone(tmp_path):
    with Server(tmp_path) as one:
        name = one.model("m")
        whole(one, name)
        engine = one.engine(name)
        with Server(tmp_path, env={"PYTHONUNBUFFERED": "1"}) as two:
            assert whole(two, name)[0] == 200
            assert two.engine(name).pid != engine.pid
            other = two.engine(name)
            two.process.kill()
            two.process.wait()
            psutil.wait_procs([other], timeout=240)
            assert not other.is_running()
        assert engine.is_running()
        with Server(tmp_path) as three:  # sweeps what the second left, and nothing else
            assert whole(three, name)[0] == 200
            assert engine.is_running()
        assert whole(one, name)[0] == 200
        assert one.engine(name).pid == engine.pid
