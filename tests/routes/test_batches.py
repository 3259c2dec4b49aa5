"""Batches as OpenAI's client uses them: in idle time only, each row once, and one's own only."""

from __future__ import annotations

import codecs
import gzip
import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial

import httpx
import openai
import psutil
import pytest

from tests.server_process import LIMIT_S, Server

pytestmark = pytest.mark.slow  # servers as processes of their own

NAME = "wide-counts"
ENDLESS = 1_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("batches")) as server:
        server.model(NAME)
        yield server


def connect(server, key="x") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


@contextmanager
def serve(home, *arguments, model=NAME, key="x", env=None):
    """Run a server with a model; give it, and a client of it."""
    with Server(home, *arguments, env=env) as server:
        server.model(model)
        with connect(server, key) as client:
            yield server, client


@pytest.fixture
def client(server):
    with connect(server) as client:
        yield client


def row(number, text="@tokens=2", url="/v1/chat/completions", **body):
    asked = {"messages": [{"role": "user", "content": f"row {number} {text}"}]}
    if url == "/v1/embeddings":
        asked = {"input": f"row {number}"}
    elif url == "/v1/completions":
        asked = {"prompt": f"row {number} {text}"}
    elif url == "/v1/responses":
        asked = {"input": f"row {number} {text}"}
    whole = {"model": NAME, **asked, **body}
    return {"custom_id": f"row-{number}", "method": "POST", "url": url, "body": whole}


def write(rows) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in rows)


def start(client, rows, endpoint="/v1/chat/completions", **more):
    content = rows if isinstance(rows, bytes) else write(rows)
    file = client.files.create(file=("rows.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more
    )


def wait(client, batch, *states, limit_s=LIMIT_S):
    deadline_s = time.monotonic() + limit_s
    while True:
        now = client.batches.retrieve(batch.id)
        if now.status in (states or ("completed", "failed", "cancelled", "expired")):
            return now
        assert time.monotonic() < deadline_s, now
        time.sleep(0.05)


def until_active(server, name, key="") -> None:
    """Wait until the engine of a model answers."""
    deadline_s = time.monotonic() + LIMIT_S
    headers = {"authorization": f"Bearer {key}"} if key else {}
    while True:
        rows = json.loads(server.request("GET", "/api/ps", None, headers)[2])["models"]
        ready = [row["pid"] for row in rows if row["state"] == "ready"]
        if ready and server.ask_process(psutil.Process(ready[0]), "/__stats")["active"]:
            return
        assert time.monotonic() < deadline_s, f"{name} does not answer"
        time.sleep(0.02)


def read(client, file_id):
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def test_the_documented_example(client) -> None:
    batch = start(client, [row(n) for n in range(20)], metadata={"why": "a test"})
    assert (batch.object, batch.status, batch.metadata) == (
        "batch",
        "validating",
        {"why": "a test"},
    )
    ended = wait(client, batch)
    counts = ended.request_counts
    assert (ended.status, counts.total, counts.completed, counts.failed) == ("completed", 20, 20, 0)
    assert ended.error_file_id is None and ended.in_progress_at <= ended.completed_at
    lines = read(client, ended.output_file_id)
    assert sorted(line["custom_id"] for line in lines) == sorted(f"row-{n}" for n in range(20))
    for line in lines:
        assert line["id"].startswith("batch_req_") and line["error"] is None
        assert line["response"]["status_code"] == 200 and line["response"]["request_id"]
        body = line["response"]["body"]
        assert body["choices"][0]["message"]["content"] == "tok0 tok1 "
        assert body["usage"]["completion_tokens"] == 2
    assert batch.id in [each.id for each in client.batches.list()]
    file = client.files.retrieve(ended.output_file_id)
    assert (file.purpose, file.status) == ("batch_output", "processed")
    assert file.id in [each.id for each in client.files.list(purpose="batch_output")]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(file.id)


@pytest.mark.parametrize(
    ("url", "find"),
    [
        ("/v1/completions", lambda body: body["choices"][0]["text"]),
        ("/v1/responses", lambda body: body["output"][0]["content"][0]["text"]),
        ("/v1/embeddings", lambda body: len(body["data"][0]["embedding"]) and "tok0 tok1 "),
    ],
)
def test_all_endpoints(client, url, find) -> None:
    ended = wait(client, start(client, [row(1, url=url)], url))
    (line,) = read(client, ended.output_file_id)
    assert find(line["response"]["body"]) == "tok0 tok1 "


def test_a_file_with_a_byte_order_mark(client) -> None:
    ended = wait(client, start(client, codecs.BOM_UTF8 + write([row(1), row(2)])))
    assert (ended.status, ended.request_counts.completed) == ("completed", 2)


def test_errors_are_in_a_file_of_their_own(client) -> None:
    rows = [row(1), row(2, model="nobody"), row(3, temperature="hot")]
    ended = wait(client, start(client, rows))
    counts = ended.request_counts
    assert (ended.status, counts.completed, counts.failed) == ("completed", 1, 2)
    assert [line["custom_id"] for line in read(client, ended.output_file_id)] == ["row-1"]
    errors = {x["custom_id"]: x["response"] for x in read(client, ended.error_file_id)}
    assert errors["row-2"]["status_code"] == 404 and errors["row-3"]["status_code"] == 400
    assert "nobody" in errors["row-2"]["body"]["error"]["message"]


WRONG = {
    "no JSON": (b'{"a"\n', "invalid_json_line", None),
    "empty": (b"\n\n", "empty_file", None),
    "no id": (write([{"method": "POST", "url": "/v1/chat/completions", "body": {}}]), "custom_id",
              None),
    "method": (write([row(1) | {"method": "GET"}]), "invalid_method", "method"),
    "url": (write([row(1, url="/v1/embeddings")]), "mismatched_url", "url"),
    "no model": (write([row(1, model=None)]), "invalid_model", "body.model"),
    "stream": (write([row(1, stream=True)]), "invalid_request", "body.stream"),
    "twice": (write([row(1), row(1)]), "duplicate_custom_id", "custom_id"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_are_refused_with_line_and_field(client, case) -> None:
    content, word, param = WRONG[case]
    failed = wait(client, start(client, content))
    assert failed.status == "failed" and failed.output_file_id is None
    (error,) = failed.errors.data
    assert word in (error.code, *error.message.split("`"))
    assert error.param == param
    if case != "empty":
        assert error.line == (2 if case == "twice" else 1)


def test_wrong_requests(client, server) -> None:
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("a", b"x"), purpose="assistants")
    file = client.files.create(file=("a", b"x"), purpose="batch")
    for changes in (
        {"endpoint": "/v1/moderations"},
        {"completion_window": "1h"},
        {"metadata": "x"},
    ):
        asked = {
            "input_file_id": file.id,
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        }
        assert httpx.post(f"{server.url}/v1/batches", json=asked | changes).status_code == 400
    for path in ("files/file-1", "files/file-1/content", "batches/batch_1", "files/x"):
        assert httpx.get(f"{server.url}/v1/{path}").status_code == 404
    form = httpx.post(f"{server.url}/v1/files", data={"purpose": "batch"})
    assert form.status_code == 400


def test_a_compressed_form_is_read(client, server) -> None:
    content = b'{"a": 1}\n' * 1000
    whole = httpx.Request(
        "POST", server.url, files={"file": ("a", content)}, data={"purpose": "batch"}
    )
    headers = {"content-type": whole.headers["content-type"], "content-encoding": "gzip"}
    sent = httpx.post(
        f"{server.url}/v1/files", content=gzip.compress(whole.read()), headers=headers
    )
    assert sent.status_code == 200
    assert client.files.content(sent.json()["id"]).content == content


def test_a_batch_is_cancelled(client) -> None:
    batch = start(client, [row(n, "@tokens=20 @delay=0.05") for n in range(100)])
    wait(client, batch, "in_progress")
    time.sleep(1.5)
    assert client.batches.cancel(batch.id).status == "cancelling"
    ended = wait(client, batch)
    assert ended.status == "cancelled" and ended.request_counts.completed < 100
    with pytest.raises(openai.ConflictError, match="it has already finished"):
        client.batches.cancel(batch.id)
    assert client.batches.retrieve(batch.id) == ended
    if ended.request_counts.completed:
        assert len(read(client, ended.output_file_id)) == ended.request_counts.completed


def test_rows_give_way_at_once_and_go_on(tmp_path) -> None:
    with serve(tmp_path, model="serial-counts") as (server, client):
        rows = [row(n, "@tokens=50 @delay=0.05", model="serial-counts") for n in range(2)]
        batch = start(client, rows)
        until_active(server, "serial-counts")
        for _ in range(3):
            begun_s = time.monotonic()
            body = {"model": "serial-counts", "prompt": "live @tokens=2", "stream": False}
            assert server.post("/api/generate", body)[0] == 200
            assert time.monotonic() - begun_s < 2.0  # a row takes 2.5 s
            time.sleep(0.2)
        stats = server.stats("serial-counts")
        # the engine takes a while to notice that a row is gone
        assert stats["gone"] >= 1 and stats["most"] <= 1 + stats["gone"]
        ended = wait(client, batch)
        assert ended.request_counts.completed == 2


def test_a_row_goes_on_from_its_text(tmp_path) -> None:
    """Requests come between its tokens; each time it is asked for what is still missing."""
    name = "serial-replays-renders-counts"
    with serve(tmp_path, model=name) as (server, client):

        def list_sent() -> list[dict]:
            bodies = server.stats(name)["bodies"]
            return [x for x in bodies if "@tokens=40" in x.get("prompt", "") and x["max_tokens"]]

        long = row(1, "@tokens=40 @delay=0.05", model=name, max_tokens=40)
        batch = start(client, [long])
        until_active(server, name)
        for times in range(1, 4):
            while len(list_sent()) < times:
                time.sleep(0.02)
            time.sleep(0.3)
            body = {"model": name, "prompt": "live @tokens=2", "stream": False}
            lives = [threading.Thread(target=server.post, args=("/api/generate", body))
                     for _ in range(2)]  # fmt: skip
            for live in lives:
                live.start()
            for live in lives:
                live.join()
        ended = wait(client, batch)
        (line,) = read(client, ended.output_file_id)
        answer = line["response"]["body"]
        text = answer["choices"][0]["message"]["content"]
        assert text.count("tok") == answer["usage"]["completion_tokens"] == 40
        sent = list_sent()
        asked = [x["max_tokens"] for x in sent]
        assert asked[0] == 40 and asked == sorted(set(asked), reverse=True) and len(asked) == 4
        assert text.startswith(sent[-1]["prompt"].removeprefix(sent[0]["prompt"]))


def test_a_row_that_goes_on_keeps_what_stages_add(tmp_path) -> None:
    """The salt of its key, without which others could share what the engine has read of it."""
    name = "serial-replays-renders-counts-salts"
    more = ("--cache-disk", "1GB", "--api-key", "secret")
    with serve(tmp_path, *more, model=name, key="secret") as (server, client):
        batch = start(client, [row(1, "@tokens=40 @delay=0.05", model=name, max_tokens=40)])
        wait(client, batch, "in_progress")
        time.sleep(0.5)
        client.completions.create(model=name, prompt="live @tokens=2")
        assert wait(client, batch).request_counts.completed == 1
        engine = next(one for one, words in server.commands().items() if "--model" in words)
        bodies = server.ask_process(engine, "/__stats")["bodies"]
        calls = [body for body in bodies if "@tokens=40" in body.get("prompt", "")]
        assert len(calls) >= 3 and 0 in [body["max_tokens"] for body in calls]
        assert len({body["cache_salt"] for body in calls}) == 1


SERIAL = "serial-replays-renders-counts"


def ask(server, model=SERIAL) -> None:
    body = {"model": model, "prompt": "live @tokens=2", "stream": False}
    assert server.post("/api/generate", body)[0] == 200


def list_prompts(server) -> list[str]:
    """Return what the engine was asked for the long row."""
    bodies = server.stats(SERIAL)["bodies"]
    texts = [x.get("prompt") or str(x.get("messages")) for x in bodies]
    return [text for text in texts if "long" in text]


KEEPS = {
    "its text": ({}, True),
    "a schema": ({"response_format": {"type": "json_object"}}, False),
    "log probabilities": ({"logprobs": True}, False),
    "n": ({"n": 2}, False),
}


@pytest.mark.parametrize("case", KEEPS)
def test_a_long_row_blocks_no_short_ones(tmp_path, case) -> None:
    """Questions come all the time, so it never ends between two of them."""
    more, goes_on = KEEPS[case]
    with serve(tmp_path, model=SERIAL) as (server, client):
        long = row(0, "@tokens=70 @delay=0.05 long", model=SERIAL, max_tokens=70, **more)
        short = [row(n, model=SERIAL, max_tokens=9) for n in range(1, 41)]
        batch = start(client, [long, *short])
        until_active(server, SERIAL)
        asked = 0
        while (now := client.batches.retrieve(batch.id)).status != "completed":
            ask(server)
            asked += now.request_counts.completed < 30
            time.sleep(2.0)
        assert asked <= 22 and now.request_counts.completed == 41
        lines = read(client, now.output_file_id)
        places = [line["custom_id"] for line in lines]
        assert sorted(places) == sorted(f"row-{n}" for n in range(41))
        assert places.index("row-0") >= 30
        sent = list_prompts(server)
        if goes_on:  # each time from all that it had before
            assert all(b.startswith(a) for a, b in itertools.pairwise(sent))
        elif case != "n":  # whose first choice goes on from its text
            assert len(sent) <= 3
        answer = lines[places.index("row-0")]["response"]["body"]
        for choice in answer["choices"]:
            assert choice["message"]["content"].count("tok") == 70


@pytest.mark.parametrize("trouble", ["a question", "a crash", "both"])
def test_a_row_that_is_read_again_loses_nothing(tmp_path, trouble) -> None:
    with serve(tmp_path, "--strict", model=SERIAL) as (server, client):
        text = "@tokens=40 @delay=0.05 @reads=1 long"
        batch = start(client, [row(0, text, model=SERIAL, max_tokens=40)])
        until_active(server, SERIAL)
        time.sleep(0.5)
        for _ in range(2):
            if trouble != "a crash":
                ask(server)
            if trouble == "a question":
                before = len(list_prompts(server))
                while len(list_prompts(server)) == before:  # it is being read
                    time.sleep(0.02)
            else:
                until_active(server, SERIAL)
                server.engine(SERIAL).kill()
                server.wait_for(r"restarting (.*\n)*.*restarting" if _ else "restarting")
        if trouble == "a question":
            ask(server)
        ended = wait(client, batch)
        (line,) = read(client, ended.output_file_id)
        answer = line["response"]["body"]
        assert answer["choices"][0]["message"]["content"].count("tok") == 40
        assert answer["usage"]["completion_tokens"] == 40
        sent = list_prompts(server)
        assert trouble == "a crash" or "tok5 " in sent[0] or "tok5 " in sent[1]


def test_rows_give_way_to_other_models_and_to_an_unload(tmp_path) -> None:
    env = {"OLLAMA_MAX_LOADED_MODELS": "1"}
    with serve(tmp_path, model="serial-counts", env=env) as (server, client):
        server.model("plain")
        slow = row(1, "@tokens=600 @delay=0.2", model="serial-counts")
        batch = start(client, [slow])
        until_active(server, "serial-counts")
        unload = {"model": "serial-counts", "keep_alive": 0}
        assert server.post("/api/generate", unload)[0] == 200  # the row takes two minutes
        deadline_s = time.monotonic() + LIMIT_S
        while server.get("/api/ps")["models"]:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        time.sleep(0.5)
        assert not server.get("/api/ps")["models"]  # no row has loaded it again
        live = {"model": "serial-counts", "prompt": "@tokens=2", "stream": False}
        assert server.post("/api/generate", live)[0] == 200
        until_active(server, "serial-counts")
        body = {"model": "plain", "prompt": "live", "stream": False}
        assert server.post("/api/generate", body)[0] == 200
        names = [each["name"] for each in server.get("/api/ps")["models"]]
        assert names == ["plain:latest"]
        client.batches.cancel(batch.id)
        assert wait(client, batch).request_counts.completed == 0


def test_lists_are_in_pages(tmp_path) -> None:
    with serve(tmp_path) as (_, client):
        made = {wait(client, start(client, [row(n)])).id for n in range(5)}
        page = client.batches.list(limit=2)
        assert page.has_more and len(page.data) == 2
        listed = [each.id for each in client.batches.list(limit=2)]
        assert len(listed) == 5 and set(listed) == made
        assert len(list(client.files.list(limit=3))) == 10
        for wrong in (0, 101):
            with pytest.raises(openai.BadRequestError):
                client.batches.list(limit=wrong)
        with pytest.raises(openai.NotFoundError):
            client.batches.list(after="batch_1")


def kill(server: Server) -> None:
    """Kill a server, and wait for the end of its engines."""
    engines = server.tree()
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    for engine in engines:
        engine.wait(LIMIT_S)
    server.process = None


def test_each_row_once_over_kills(tmp_path) -> None:
    done, batch = Counter(), None
    for attempt in range(4):
        with serve(tmp_path) as (server, client):
            if batch is None:
                batch = start(client, [row(n, "@tokens=2 @delay=0.05") for n in range(400)])
            if attempt == 3:
                ended = wait(client, batch, limit_s=60)
                assert ended.request_counts.completed == 400
                done = Counter(line["custom_id"] for line in read(client, ended.output_file_id))
                break
            before = client.batches.retrieve(batch.id).request_counts.completed
            deadline_s = time.monotonic() + LIMIT_S
            while client.batches.retrieve(batch.id).request_counts.completed < before + 40:
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
            kill(server)
    assert done == {f"row-{n}": 1 for n in range(400)}


def add_key(base: Server, name: str, *limits: str) -> str:
    made = subprocess.run(
        [sys.executable, "-m", "vllama", "keys", "add", name, *limits, "--json"],
        env=base.env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(made.stdout)["key"]


def test_only_its_own_and_counted_for_its_key(tmp_path) -> None:
    keys = {name: add_key(Server(tmp_path), name) for name in ("alice", "bob")}
    with (
        serve(tmp_path, key=keys["alice"]) as (server, alice),
        connect(server, keys["bob"]) as bob,
    ):
        ended = wait(alice, start(alice, [row(1)]))
        assert ended.request_counts.completed == 1
        new = {"endpoint": "/v1/completions", "completion_window": "24h"}
        for ask in (
            lambda: bob.files.content(ended.output_file_id),
            lambda: bob.files.delete(ended.input_file_id),
            lambda: bob.batches.retrieve(ended.id),
            lambda: bob.batches.cancel(ended.id),
            lambda: bob.batches.create(input_file_id=ended.input_file_id, **new),
        ):
            with pytest.raises(openai.NotFoundError):
                ask()
        assert not list(bob.files.list()) and not list(bob.batches.list())
        assert len(list(alice.files.list())) == 2
        headers = {"Authorization": f"Bearer {keys['alice']}"}
        usage = json.loads(server.request("GET", "/api/usage?by=key", None, headers)[2])["usage"]
        assert [(row["key"], row["requests"]) for row in usage] == [("alice", 1)]


def test_rows_that_a_limit_refuses_rest(tmp_path) -> None:
    key = add_key(Server(tmp_path), "slow", "--rate", "2/min")
    with serve(tmp_path, key=key) as (server, client):
        batch = start(client, [row(n) for n in range(8)])
        server.wait_for("/v1/chat/completions 429")
        time.sleep(3.0)  # in which they were asked for some 7,000 times
        client.batches.cancel(batch.id)
        assert wait(client, batch).request_counts.completed == 2
        assert server.output.count("/v1/chat/completions 429") < 40


def test_rows_take_no_place_of_their_key(tmp_path) -> None:
    key = add_key(Server(tmp_path), "one", "--concurrent", "1")
    with serve(tmp_path, key=key) as (server, client):
        batch = start(client, [row(n, f"@tokens={ENDLESS} @delay=0.2") for n in range(3)])
        until_active(server, NAME, key)
        message = {"role": "user", "content": "hi"}
        client.chat.completions.create(model=NAME, messages=[message])
        client.batches.cancel(batch.id)
        assert wait(client, batch).status == "cancelled"


def test_a_row_that_gives_way_gives_back_its_tokens(tmp_path) -> None:
    key = add_key(Server(tmp_path), "few", "--tokens", "700/day")
    name = "wide-replays-renders-counts"  # its rows are suspended
    with serve(tmp_path, model=name, key=key) as (server, client):
        long = row(1, f"@tokens={ENDLESS} @delay=0.2", model=name, max_tokens=600)
        batch = start(client, [long])
        until_active(server, name, key)
        message = {"role": "user", "content": "@tokens=3"}
        client.chat.completions.create(model=name, messages=[message], max_tokens=500)
        client.batches.cancel(batch.id)
        assert wait(client, batch).status == "cancelled"


def test_a_key_that_may_only_read_runs_nothing(tmp_path) -> None:
    key = add_key(Server(tmp_path), "reader", "--scope", "read")
    with serve(tmp_path, key=key) as (_, client):
        with pytest.raises(openai.PermissionDeniedError, match="it needs the scope 'infer'"):
            client.files.create(file=("rows.jsonl", write([row(1)])), purpose="batch")
        with pytest.raises(openai.PermissionDeniedError, match="it needs the scope 'infer'"):
            client.batches.create(
                input_file_id="file-x", endpoint="/v1/completions", completion_window="24h"
            )
        assert not list(client.files.list())


def test_one_server_of_a_folder_has_its_batches(tmp_path) -> None:
    """The other one serves everything else, and has them when the first was killed."""
    data = {"VLLAMA_DATA_DIR": str(tmp_path / "data")}
    first, second = (Server(tmp_path / name, env=data) for name in ("a", "b"))
    routes = (
        ("GET", "/v1/batches"), ("POST", "/v1/batches"), ("GET", "/v1/batches/batch_1"),
        ("POST", "/v1/batches/batch_1/cancel"), ("GET", "/v1/files"), ("POST", "/v1/files"),
        ("GET", "/v1/files/file-1"), ("GET", "/v1/files/file-1/content"),
        ("DELETE", "/v1/files/file-1"),
    )  # fmt: skip
    with first, second:
        first.model(NAME)
        second.model(NAME)
        with connect(first) as client:
            batch = start(client, [row(n, "@tokens=40 @delay=0.05") for n in range(40)])
            until_active(first, NAME)
            for method, path in routes:
                status, headers, body = second.request(method, path, {})
                assert status == 503 and int(headers["retry-after"]) > 0, path
                assert (
                    "another server uses this data folder" in json.loads(body)["error"]["message"]
                )
            done = run_command(second)
            assert done.returncode == 1 and "another server uses this data folder" in done.stderr
            live = {"model": NAME, "prompt": "@tokens=2", "stream": False}
            assert second.post("/api/generate", live)[0] == 200
        assert "(503): another server uses this data folder" in second.output
        kill(first)
        deadline_s = time.monotonic() + LIMIT_S
        while second.request("GET", "/v1/batches")[0] == 503:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        with connect(second) as client:
            ended = wait(client, batch, limit_s=90)
            assert (ended.status, ended.request_counts.completed) == ("completed", 40)
            ids = [line["custom_id"] for line in read(client, ended.output_file_id)]
            assert sorted(ids) == sorted(f"row-{n}" for n in range(40))


def test_rows_beside_one_that_kills_the_engine_are_run_again(tmp_path) -> None:
    rows = [row(n, "@tokens=6 @delay=0.05", model="wide-mortal") for n in range(12)]
    rows[5] = row(5, "@dies=3", model="wide-mortal")
    with serve(tmp_path, "--num-parallel", "4", model="wide-mortal") as (_, client):
        ended = wait(client, start(client, rows))
        counts = ended.request_counts
        assert (counts.completed, counts.failed) == (11, 1), ended
        (wrong,) = read(client, ended.error_file_id)
        assert wrong["custom_id"] == "row-5" and wrong["response"]["status_code"] >= 500


def test_how_long_files_are_kept_and_what_is_no_file(client, server) -> None:
    expiry = {"anchor": "created_at", "seconds": 3600}
    content = ("rows.jsonl", write([row(1)]))
    file = client.files.create(file=content, purpose="batch", expires_after=expiry)
    assert file.expires_at - file.created_at == 3600
    batch = start(client, [row(1)], extra_body={"output_expires_after": expiry})
    output = client.files.retrieve(wait(client, batch).output_file_id)
    assert output.expires_at - output.created_at == 3600
    with pytest.raises(openai.BadRequestError, match=r"'expires_after.seconds': .* >= 3600"):
        client.files.create(file=content, purpose="batch", expires_after=expiry | {"seconds": 5})
    with pytest.raises(openai.BadRequestError, match="the file's purpose is not batch"):
        client.batches.create(
            input_file_id=output.id, endpoint="/v1/completions", completion_window="24h"
        )
    for metadata in ({"a": "x" * 513}, {str(n): "" for n in range(17)}, {"a": 1}):
        with pytest.raises(openai.BadRequestError, match="'metadata"):
            start(client, [row(1)], metadata=metadata)
    form = httpx.post(
        f"{server.url}/v1/files",
        files=[("file", ("a", b"{}")), ("file", ("b", b"{}"))],
        data={"purpose": "batch"},
    )
    assert (form.status_code, "expected one file" in form.text) == (400, True)
    made = [start(client, [row(1)]).id for _ in range(4)]
    assert [each.id for each in client.batches.list(limit=4).data] == made[::-1]


def test_a_stop_does_not_wait_and_a_removed_input_is_told(tmp_path) -> None:
    with serve(tmp_path) as (server, client):
        batch = start(client, [row(n, "@tokens=100 @delay=0.2") for n in range(3)])
        wait(client, batch, "in_progress")
        while not any(x["state"] == "ready" for x in server.get("/api/ps")["models"]):
            time.sleep(0.02)
        with pytest.raises(openai.ConflictError, match=f"{batch.id} is using it"):
            client.files.delete(batch.input_file_id)
        (server.home / "data" / "batches" / f"{batch.input_file_id}.data").unlink()
        begun_s = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(LIMIT_S)
        assert time.monotonic() - begun_s < 8.0  # answers may take 10 s
        server.start()
        with connect(server) as client:
            ended = wait(client, batch)
            assert (ended.status, ended.errors.data[0].code) == ("failed", "file_not_found")


def run_command(server: Server, *arguments: str, given: str = ""):
    """Run `vllama batch`."""
    command = [sys.executable, "-m", "vllama", "batch", *arguments]
    env = server.env | {"OLLAMA_HOST": server.url}
    return subprocess.run(command, env=env, input=given, capture_output=True, text=True)


def test_the_command(server, tmp_path) -> None:
    file, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    file.write_bytes(write([row(1), row(2, model="else"), row(3, temperature="hot")]))
    run = partial(run_command, server, str(file))
    done = run("-o", str(out), "--model", NAME)
    assert done.returncode == 1 and "completed: responses 2, errors 1" in done.stderr
    assert len(out.read_text().splitlines()) == 2
    assert "row-3" in (tmp_path / "out.errors.jsonl").read_text()
    file.write_bytes(write([row(1)]))
    done = run()
    assert done.returncode == 0 and json.loads(done.stdout)["custom_id"] == "row-1"
    file.write_bytes(write([row(1), row(1)]))
    done = run()
    assert done.returncode == 1 and "line 2: the custom_id 'row-1' is a duplicate" in done.stderr
    file.write_bytes(b"\xef\xbb\xbf" + write([row(1)]))  # as a Windows editor writes it
    done = run("-o", str(out), "--model", NAME)
    assert done.returncode == 0 and not (tmp_path / "out.errors.jsonl").exists()
    file.write_bytes(write([row(1, temperature="hot")]))
    done = run("-o", str(out))  # answers of an earlier run would seem to be this one's
    assert done.returncode == 1 and not out.exists()
    assert "would overwrite the requests" in run("-o", str(file)).stderr
    for place, reason in ((tmp_path, "it is a folder"), (tmp_path / "no" / "x", "does not exist")):
        refused = run("-o", str(place))  # before anything is sent
        assert refused.returncode == 2 and reason in refused.stderr, refused.stderr
        assert "completed" not in refused.stderr
    file.write_bytes(write([row(1)]) + b"\n{nothing}\n")
    assert "line 3 is not a batch request" in run().stderr
    file.write_text("\n")
    assert "it has no requests" in run().stderr


def test_the_command_lists_batches_and_goes_on_with_one(server, client, tmp_path) -> None:
    run = partial(run_command, server)
    long = start(client, [row(n, "@tokens=200 @delay=0.2") for n in range(3)])
    listed = json.loads(run("--json").stdout)
    before = {each["id"] for each in listed}
    assert long.id in before and before == {each.id for each in client.batches.list()}
    assert long.id in run().stdout
    ended = run(long.id, "--cancel")
    assert ended.returncode == 1 and "cancelled: responses 0, errors 0" in ended.stderr
    done = run("-", given=write([row(1)]).decode())
    assert done.returncode == 0 and json.loads(done.stdout)["custom_id"] == "row-1"
    (newest,) = {each.id for each in client.batches.list()} - before
    again = run(newest, "-o", str(tmp_path / "again.jsonl"))
    assert again.returncode == 0 and (tmp_path / "again.jsonl").read_text() == done.stdout
    done_again = run(newest, "-o", str(tmp_path / "again.jsonl"))  # the file is there already
    assert done_again.returncode == 0, done_again.stderr
    assert "--json only applies to the list" in run(newest, "--json").stderr
    assert "No such batch" in run("batch_1").stderr
    assert "it is not a batch" in run("rows.jsonl", "--cancel").stderr
    alone = run("--cancel")
    assert alone.returncode == 2 and "cannot use --cancel: it requires a file" in alone.stderr


def test_the_command_waits_for_a_server_that_is_started_again(tmp_path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(write([row(n, "@tokens=10 @delay=0.1") for n in range(3)]))
    with Server(tmp_path / "home") as server:
        server.model(NAME)
        listens = ("--port", str(server.port))
        command = [sys.executable, "-m", "vllama", "batch", str(file)]
        env = server.env | {"OLLAMA_HOST": server.url}
        waiting = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        until_active(server, NAME)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        time.sleep(1.0)  # it asks more often than that
        server.arguments = listens
        server.start()
        out, told = waiting.communicate(timeout=LIMIT_S)
        rows = [json.loads(line)["custom_id"] for line in out.splitlines()]
        assert (waiting.returncode, sorted(rows)) == (0, ["row-0", "row-1", "row-2"]), told


def test_what_is_too_large_and_a_server_that_is_read_only(tmp_path) -> None:
    env = {"VLLAMA_BATCH_FILES": "1000"}
    with serve(tmp_path / "small", env=env) as (server, client):
        client.files.create(file=("a", b"x" * 500), purpose="batch")
        with pytest.raises(openai.APIStatusError, match="the storage limit is reached"):
            client.files.create(file=("a", b"x" * 600), purpose="batch")
        assert len(list(client.files.list())) == 1
        folder = server.home / "data" / "batches"
        assert not list(folder.glob("new-*"))
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    with (
        serve(tmp_path / "read", "--read-only") as (_, client),
        pytest.raises(openai.PermissionDeniedError, match="read-only"),
    ):
        client.files.create(file=("a", b"x"), purpose="batch")


def test_many_uploads_at_once(client) -> None:
    found = []

    def play(number: int) -> None:
        found.append(wait(client, start(client, [row(number)])))

    threads = [threading.Thread(target=play, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.status for each in found] == ["completed"] * 8
