"""Which node of a cluster answers, and a head with real nodes of the fake engine."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from tests.cable import Cable
from tests.loops import in_loop
from tests.ports import free_port
from tests.routes.test_metrics import Scrape
from tests.server.test_tls import Pair, TlsServer
from tests.server_process import FAKE, LIMIT_S, Server
from vllama.base.errors import BadRequest, ConfigError
from vllama.config import Config
from vllama.net.upstream.pool import Upstreams
from vllama.routes.inference.demand import complete_name, read_json
from vllama.server.preflight import check_nodes
from vllama.targets.nodes.choose import NodeView, choose_node
from vllama.targets.nodes.node import make_nodes
from vllama.targets.nodes.watch import Nodes

GB = 10**9
UPSTREAMS = Upstreams()


def node(name, **fields) -> NodeView:
    return NodeView(name=name, **fields)


LOADED = node("loaded", loaded=True, slots=2, requests=1, size_bytes=GB)
FULL = node("full", loaded=True, slots=1, requests=1, size_bytes=GB)
BUSY = node("busy", loaded=True, slots=4, requests=3, size_bytes=GB)
CROWDED = node("crowded", loaded=True, slots=1, requests=5, size_bytes=GB)
GPU = node("gpu", size_bytes=GB, free=(2 * GB, 9 * GB))
RAM = node("ram", size_bytes=GB, free=(0, 99 * GB))
SMALL = node("small", size_bytes=GB, free=(0, GB))
EMPTY = node("empty", free=(99 * GB, 99 * GB))


@pytest.mark.parametrize(
    ("nodes", "known", "chosen", "reason"),
    [
        ([LOADED, GPU], None, "loaded", "loaded"),
        ([FULL, GPU, RAM], None, "gpu", "fits"),
        ([FULL, RAM, SMALL], None, "ram", "fits"),
        ([FULL, CROWDED, SMALL], None, "full", "queue"),
        ([SMALL, EMPTY], None, "small", "after unloading"),
        ([EMPTY], None, None, ""),
        ([], None, None, ""),
        ([LOADED, FULL], "full", "full", "conversation"),  # one more is worth its cache
        ([LOADED, BUSY], "busy", "busy", "conversation"),  # it has a free slot
        ([LOADED, CROWDED], "crowded", "loaded", "loaded"),
        ([LOADED, GPU], "gpu", "loaded", "loaded"),  # it has been unloaded there
        ([LOADED], "gone", "loaded", "loaded"),
        ([node("b", loaded=True), node("a", loaded=True)], None, "a", "loaded"),
        ([replace(LOADED, fails=True), SMALL], None, "small", "after unloading"),
        ([replace(LOADED, fails=True), EMPTY], "loaded", "loaded", "conversation"),
    ],
)  # fmt: skip
def test_the_choice_and_its_reason(nodes, known, chosen, reason) -> None:
    for order in (nodes, nodes[::-1]):
        found = choose_node(order, known)
        assert (found.name if found else None) == chosen
        assert found is None or reason in found.reason


def test_names() -> None:
    assert complete_name("hf.co/Org/M") == "hf.co/org/m:latest"
    for given in ("M ", "library/M", "registry.ollama.ai/library/m:latest"):
        assert complete_name(given) == "m:latest"
    assert complete_name("") == ""
    urls = ("http://10.0.0.5:11434", "https://box/", "http://10.0.0.5:1")
    named = [(one.name, one.endpoint.url) for one in make_nodes(dict.fromkeys(urls, ""), "k")]
    assert named == [
        ("10.0.0.5:11434", "http://10.0.0.5:11434"),
        ("box", "https://box:443"),
        ("10.0.0.5:1", "http://10.0.0.5:1"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","name":5}',
        b'{"Model":"m"}',
        b'{"model":"m"} more',
        b'{"model":"m","prompt":"\\ud83d"}',
        b'{"model":"m","prompt":"\xff"}',
    ],
)
def test_what_decides_is_read_as_the_dialects_read_it(body) -> None:
    assert read_json(body).model == "m"


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'{"a":' * 5000 + b"1" + b"}" * 5000])
def test_what_no_dialect_can_read_is_a_bad_request(body) -> None:
    with pytest.raises(BadRequest):
        read_json(body)


@in_loop
async def test_a_node_is_followed_as_long_as_it_is_one() -> None:
    nodes = Nodes(UPSTREAMS, local=None, key="k", file=Path("/none"))

    async def list_followed() -> set[str]:
        for _ in range(3):
            await asyncio.sleep(0)
        names = {task.get_name() for task in asyncio.all_tasks()}
        return {name for name in names if name.startswith("node ")}

    running = asyncio.create_task(nodes.run())
    nodes.use(["http://box:1", "http://other:1"])
    box = nodes.nodes["box"]
    assert await list_followed() == {"node box", "node other"}
    with box.counts("m"):
        nodes.use(["http://other:1"])
        assert [*nodes.nodes] == ["other"]
        assert await list_followed() == {"node box", "node other"}
    nodes.use(["http://other:1", "http://third:1"])
    assert await list_followed() == {"node other", "node third"}
    running.cancel()


def test_a_node_keeps_no_name_that_it_would_not_be_given_now() -> None:
    nodes = Nodes(UPSTREAMS, local=None, key="k", file=Path("/none"))
    nodes.use(["http://box:1"])
    first = nodes.nodes["box"]
    nodes.use(["http://box:1", "http://other:1"])
    assert nodes.nodes["box"] is first
    nodes.use(["http://box:1", "http://box:2"])
    assert [*nodes.nodes] == ["box:1", "box:2"]


def test_a_file_without_certificates_is_refused(tmp_path) -> None:
    file = tmp_path / "nodes.pem"
    with pytest.raises(ConfigError, match="No such file"):
        check_nodes(Config(node_certs=file))
    file.write_text("nothing")
    with pytest.raises(ConfigError, match="it has no certificate"):
        check_nodes(Config(node_certs=file))


@pytest.mark.slow
def test_a_server_with_a_wrong_file_of_certificates_says_so(tmp_path) -> None:
    file = tmp_path / "nodes.pem"
    file.write_text("nothing")
    flags = ["--node", "https://127.0.0.1:1", "--node-certs", str(file), "--port", "0"]
    env = {"HOME": str(tmp_path), "PYTHONPATH": str(FAKE), "PATH": "/usr/bin"}
    command = [sys.executable, "-m", "vllama", "serve", *flags]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "it has no certificate" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_only_the_pinned_certificate_is_accepted(tmp_path) -> None:
    ours, other = (Pair(tmp_path / name) for name in ("ours", "other"))
    key = tmp_path / "node.key"
    key.write_text("sk-between-the-servers\n")
    own = ("--node-key-file", str(key))
    with TlsServer(tmp_path / "a", ours.authority, *own, *ours.flags) as node:
        given = (*own, "--no-local", "--node", f"https://127.0.0.1:{node.port}", "--node-certs")
        for pinned, state in ((ours, "up"), (other, "lost")):
            with Server(tmp_path / f"head-{state}", *given, str(pinned.chain)) as head:
                row = wait_for_answer(head)
                assert row["state"] == state
        assert "certificate" in row["trouble"].lower()


def wait_for_answer(head: Server) -> dict[str, str]:
    """Return the row of a head's only node once it was asked."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        (row,) = head.get("/api/nodes")["nodes"]
        if "no response yet" not in row["trouble"]:
            return row
        assert time.monotonic() < deadline_s, head.output
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("words", "public"),
    [
        ({"nodes": ("http://9.9.9.9:11434",)}, True),
        ({"nodes": ("https://9.9.9.9:11434", "http://10.0.0.5", "http://box")}, False),
        ({"node_key_file": Path("k"), "host": "9.9.9.9"}, True),
        ({"node_key_file": Path("k"), "host": "9.9.9.9", "tls_cert": Path("c")}, False),
        ({"node_key_file": Path("k"), "host": "10.0.0.5"}, False),
        ({"host": "9.9.9.9"}, False),
    ],
)
def test_the_key_does_not_cross_the_internet_unencrypted(words, public) -> None:
    config = Config(**words)
    if not public:
        check_nodes(config)
        return
    with pytest.raises(ConfigError, match="would be sent unencrypted"):
        check_nodes(config)


class Cluster:
    """Two nodes behind cables, and a head that only forwards."""

    def __init__(self, folder, *arguments: str, fullest: str = "") -> None:
        """`fullest` is the node that has less free memory for models than the other."""
        self.key = folder / "node.key"
        self.key.write_text("sk-between-the-servers\n")
        self.key.chmod(0o600)
        self.folder, self.arguments, self.fullest = folder, arguments, fullest

    def __enter__(self) -> Cluster:
        self._stack = ExitStack()
        own = ("--node-key-file", str(self.key))
        kept = {"OLLAMA_GPU_OVERHEAD": str(psutil.virtual_memory().available // 2)}
        self.nodes = [
            self._stack.enter_context(
                Server(self.folder / name, *own, env=kept if name == self.fullest else {})
            )
            for name in ("a", "b")
        ]
        self.cables = [self._stack.enter_context(Cable(one.port)) for one in self.nodes]
        given = [part for cable in self.cables for part in ("--node", cable.url)]
        self.head = self._stack.enter_context(
            Server(self.folder / "head", *own, *given, "--no-local", *self.arguments)
        )
        for cable in self.cables:
            self.wait_for(partial(self.is_up, self.name(cable)))
        return self

    def __exit__(self, *ended: object) -> None:
        self._stack.close()

    @staticmethod
    def name(cable: Cable) -> str:
        return f"127.0.0.1:{cable.port}"

    def is_up(self, name: str) -> bool:
        return self.row(name)["state"] == "up"

    def row(self, name: str):
        return next(row for row in self.head.get("/api/nodes")["nodes"] if row["name"] == name)

    def wait_for(self, holds) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < deadline, self.head.output
            time.sleep(0.05)

    def add(self, *names: str) -> None:
        """Give both nodes models, and wait until the head knows."""
        for name in names:
            for one in self.nodes:
                one.model(name)
        self.wait_for(
            lambda: all(
                {f"{name}:latest" for name in names} <= set(row["models"])
                for row in self.head.get("/api/nodes")["nodes"]
            )
        )

    def ask(self, model: str, text: str = "hi", path: str = "/api/chat", **fields):
        body = {"model": model, "messages": [{"role": "user", "content": text}], **fields}
        status, _, data = self.head.request("POST", path, body)
        return status, json.loads(data)


@pytest.fixture
def cluster(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with Cluster(tmp_path) as made:
        yield made


@pytest.mark.slow
def test_a_busy_model_of_a_node_is_unloaded_some_day_and_a_pinned_one_never(cluster) -> None:
    cluster.nodes[0].model("busy")
    cluster.nodes[1].model("pinned")
    cluster.wait_for(lambda: len(cluster.head.get("/api/tags")["models"]) >= 2)
    cluster.wait_for(lambda: cluster.ask("pinned", stream=False, keep_alive=-1)[0] == 200)
    body = {"model": "busy", "messages": [{"role": "user", "content": "@tokens=1000000"}]}

    def read_rows():
        return {row["name"]: row for row in cluster.head.get("/api/ps")["models"]}

    with cluster.head.open("/api/chat", body) as stream:
        stream.readline()
        cluster.wait_for(lambda: read_rows().get("busy:latest", {}).get("requests") == 1)
        cluster.wait_for(lambda: "pinned:latest" in read_rows())
        never = {name: row["expires_at"] > "2200" for name, row in read_rows().items()}
        assert never == {"busy:latest": False, "pinned:latest": True}


@pytest.mark.slow
def test_one_address_has_the_models_of_all_nodes(cluster) -> None:
    first, second = cluster.nodes
    first.model("one")
    second.model("two")
    cluster.wait_for(
        lambda: (
            {"one:latest", "two:latest"}
            <= {row["name"] for row in cluster.head.get("/api/tags")["models"]}
        )
    )
    for model in ("one", "two:latest", "ONE"):
        status, answer = cluster.ask(model, stream=False)
        assert status == 200
        assert answer["message"]["content"].startswith("tok0 tok1")
    cluster.wait_for(lambda: len(cluster.head.get("/api/ps")["models"]) == 2)
    where = {row["name"]: row["node"] for row in cluster.head.get("/api/ps")["models"]}
    assert where == {
        "one:latest": cluster.name(cluster.cables[0]),
        "two:latest": cluster.name(cluster.cables[1]),
    }
    rows = cluster.head.get("/api/ps")["models"]
    assert all(row["node_reason"] for row in rows)
    status, _, data = cluster.head.request("POST", "/api/plan", {"model": "one"})
    assert status == 200 and json.loads(data)["loaded"]  # the plan of the node that has it
    assert cluster.ask("three")[0] == 404
    status, _, data = cluster.head.request("POST", "/api/show", {"model": "two"})
    assert (status, data) == second.request("POST", "/api/show", {"model": "two"}, KEY)[::2]
    choice = cluster.head.get("/api/nodes?model=two")["choice"]
    assert choice["name"] == where["two:latest"]
    assert choice["reason"].startswith("the model is loaded there")
    assert {"one:latest", "two:latest"} <= {
        row["id"] for row in cluster.head.get("/v1/models")["data"]
    }
    described = cluster.head.get("/v1/models/two")
    assert (described["id"], described["state"]) == ("two", "loaded")
    assert described["loaded_context_length"] == described["max_model_len"] > 0
    assert cluster.head.request("GET", "/v1/models/three")[0] == 404
    scrape = Scrape(cluster.head)
    for node in where.values():
        assert scrape.sum("vllama_node_up", node=node) == 1
        assert scrape.sum("vllama_node_models_loaded", node=node) == 1
        assert scrape.sum("vllama_node_memory_free_bytes", node=node, pool="ram") > 0
    assert scrape.sum("vllama_node_errors_total") == 0
    usage = cluster.head.get("/api/usage")["usage"]
    assert {row["model"]: row["generated_tokens"] for row in usage} == {
        "one:latest": 16, "two:latest": 8,
    }  # fmt: skip


KEY = {"authorization": "Bearer sk-between-the-servers"}


@pytest.mark.slow
def test_a_node_wants_the_key_and_gives_it_no_more_than_it_needs(cluster) -> None:
    node = cluster.nodes[0]
    for path in ("/api/tags", "/api/events", "/api/ps", "/v1/models"):
        assert node.request("GET", path)[0] == 401
    assert node.request("GET", "/api/tags", headers=KEY)[0] == 200
    assert node.request("GET", "/metrics", headers=KEY)[0] == 200
    for path in ("/api/config", "/api/keys"):
        patch = node.request("PATCH" if "config" in path else "POST", path, {}, KEY)
        assert patch[0] == 403
    assert cluster.head.request("GET", "/api/tags")[0] == 200  # its clients need none


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "ending"),
    [
        ("/api/chat", rb'\{"error":"cannot continue: [^\n]*\}\n$'),
        (
            "/v1/chat/completions",
            rb'data: \{"error":\{"message":"cannot continue[^\n]*\n\ndata: \[DONE\]\n\n$',
        ),
        ("/v1/messages", rb'event: error\ndata: \{"type":"error"[^\n]*\n\n$'),
        ("/v1/responses", rb'event: error\ndata: \{"type":"error"[^\n]*\n\n$'),
    ],
)
def test_an_answer_whose_node_dies_ends_with_an_error_of_its_dialect(cluster, path, ending) -> None:
    cluster.nodes[0].model("only")
    cluster.wait_for(
        lambda: "only:latest" in cluster.row(cluster.name(cluster.cables[0]))["models"]
    )
    text = "@tokens=100000 @delay=0.01"
    body = {
        "model": "only", "stream": True, "max_tokens": 100000, "input": text,
        "messages": [{"role": "user", "content": text}],
    }  # fmt: skip
    with cluster.head.open(path, body) as answer:
        assert answer.status == 200
        begun = answer.readline()
        assert cluster.nodes[0].process
        cluster.nodes[0].process.send_signal(signal.SIGKILL)
        assert re.search(ending, begun + answer.read())
    cluster.wait_for(lambda: cluster.row(cluster.name(cluster.cables[0]))["state"] == "lost")


@pytest.mark.slow
def test_a_recording_goes_to_the_node_with_the_model(cluster) -> None:
    cluster.nodes[1].model("writes")
    name = cluster.name(cluster.cables[1])
    cluster.wait_for(lambda: "writes:latest" in cluster.row(name)["models"])
    url = f"{cluster.head.url}/v1/audio/transcriptions"
    sound = {"file": ("a.wav", b"RIFF----WAVEfmt ")}
    answer = httpx.post(url, data={"model": "writes"}, files=sound, timeout=LIMIT_S)
    assert answer.status_code == 200, answer.text
    assert json.loads(answer.json()["text"])["file"] == "16 bytes"
    refused = httpx.post(url, content=b"--x", headers={"content-type": "multipart/form-data"})
    assert refused.status_code == 400


@pytest.mark.slow
def test_a_head_counts_what_its_nodes_count(cluster) -> None:
    cluster.add("both")
    cluster.nodes[0].model("dies", "--die-after", "2")
    cluster.wait_for(lambda: "dies:latest" in str(cluster.head.get("/api/tags")))
    text, turns = "@tokens=5", [{"role": "user", "content": "@tokens=5"}]
    body = {"messages": turns, "prompt": text, "input": text, "max_tokens": 20}
    paths = ("/api/chat", "/api/generate", "/v1/chat/completions", "/v1/completions",
             "/v1/messages", "/v1/responses", "/api/embed", "/v1/embeddings")  # fmt: skip
    for model in ("both", "dies"):
        for path in paths:
            for stream in (False, True):
                cluster.head.request("POST", path, body | {"model": model, "stream": stream})
    counted = ("requests", "prompt_tokens", "cached_tokens", "generated_tokens")

    def sum_usage(server: Server, headers: dict[str, str]) -> dict[str, Counter[str]]:
        rows = json.loads(server.request("GET", "/api/usage", None, headers)[2])["usage"]
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for row in rows:
            found[row["model"]].update({name: row[name] for name in counted})
        return found

    there = [sum_usage(node, KEY) for node in cluster.nodes]
    here = sum_usage(cluster.head, {})
    assert here == {
        model: there[0].get(model, Counter()) + there[1].get(model, Counter()) for model in here
    }
    assert here["both:latest"]["generated_tokens"] == 60
    scrape = Scrape(cluster.head)
    by_outcome = [
        scrape.sum("vllama_requests_total", model="dies:latest", outcome=outcome)
        for outcome in ("ok", "error")
    ]
    assert by_outcome == [4, 12]  # vectors do not die


@pytest.mark.slow
def test_what_is_no_stream_gets_no_signs_of_life(tmp_path) -> None:
    with (
        Server(tmp_path / "node") as node,
        Server(tmp_path / "head", "--no-local", "--node", node.url, "--early-head", "0.1s") as head,
    ):
        node.model("slow", "--ready-after", "1")
        head.wait_for("is up")
        deadline_s = time.monotonic() + LIMIT_S
        while "slow:latest" not in str(head.get("/api/tags")):
            assert time.monotonic() < deadline_s, head.output
        status, answer = head.post("/api/embed", {"model": "slow", "input": "a"})
        assert (status, len(answer["embeddings"])) == (200, 1)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_a_stored_response_goes_on_where_it_is(cluster, stream) -> None:
    cluster.add("both")
    body = {"model": "both", "input": "hello", "stream": stream}
    packed, gzipped = gzip.compress(json.dumps(body).encode()), {"content-encoding": "gzip"}
    data = httpx.post(f"{cluster.head.url}/v1/responses", content=packed, headers=gzipped).content
    found = re.search(rb'"id": ?"(resp_[^"]+)"', data)
    assert found
    cluster.wait_for(lambda: cluster.head.get("/api/ps")["models"])
    name = cluster.head.get("/api/ps")["models"][0]["node"]
    assert cluster.head.request("POST", f"/api/nodes/{name}/drain", {})[0] == 200
    for _ in range(3):
        again = {"model": "both", "input": "on", "previous_response_id": found[1].decode()}
        assert cluster.head.request("POST", "/v1/responses", again)[0] == 200
    path = f"/v1/responses/{found[1].decode()}"
    assert cluster.head.get(path)["id"] == found[1].decode()
    assert cluster.head.get(f"{path}/input_items")["data"]
    assert cluster.head.request("DELETE", path)[0] == 200
    assert cluster.head.request("GET", path)[0] == 404
    unknown = {"model": "both", "input": "on", "previous_response_id": "resp_unknown"}
    assert cluster.head.request("POST", "/v1/responses", unknown)[0] == 404


@pytest.mark.slow
def test_a_node_knows_the_clients_of_the_head_apart(cluster) -> None:
    cluster.add("both")

    def make_key(name: str) -> dict[str, str]:
        made = subprocess.run(
            [sys.executable, "-m", "vllama", "keys", "add", name, "--json"],
            env=cluster.head.env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        found = re.search(r"sk-[\w-]+", made.stdout)
        assert found
        return {"authorization": f"Bearer {found[0]}"}

    def ask(key: dict[str, str], **more: str):
        body = {"model": "both", "input": "hello", **more}
        status, _, data = cluster.head.request("POST", "/v1/responses", body, key)
        return status, json.loads(data).get("id")

    alice, bob = make_key("alice"), make_key("bob")
    status, mine = ask(alice)
    assert status == 200
    assert ask(alice, previous_response_id=mine)[0] == 200
    assert ask(bob, previous_response_id=mine)[0] == 404
    disguised = bob | {"x-vllama-key": "1 alice"}  # the head alone says who asks
    assert ask(disguised, previous_response_id=mine)[0] == 404
    logged = "".join(one.output for one in cluster.nodes)
    assert "Traceback" not in logged


@pytest.mark.slow
def test_a_request_that_has_no_byte_goes_to_another_node(cluster) -> None:
    cluster.add("both")
    assert cluster.ask("both", "@delay=0", stream=False)[0] == 200
    cluster.wait_for(lambda: cluster.head.get("/api/ps")["models"])
    where = cluster.head.get("/api/ps")["models"][0]["node"]
    first = next(i for i, cable in enumerate(cluster.cables) if cluster.name(cable) == where)
    process = cluster.nodes[first].process
    assert process
    process.send_signal(signal.SIGKILL)
    status, answer = cluster.ask("both", stream=False)
    assert status == 200
    assert answer["message"]["content"].startswith("tok0")


@pytest.mark.slow
def test_a_model_of_a_lost_or_drained_node_is_not_unknown(cluster) -> None:
    cluster.nodes[0].model("only")
    name = cluster.name(cluster.cables[0])
    cluster.wait_for(lambda: "only:latest" in cluster.row(name)["models"])
    assert cluster.head.request("POST", f"/api/nodes/{name}/drain", {})[0] == 200
    status, answer = cluster.ask("only", stream=False)
    assert status == 503
    assert f"only node '{name}' has it, and it is drained" in answer["error"]
    assert cluster.head.request("POST", f"/api/nodes/{name}/undrain", {})[0] == 200
    assert cluster.ask("only", stream=False)[0] == 200
    cluster.nodes[0].process.send_signal(signal.SIGKILL)
    cluster.wait_for(lambda: not cluster.is_up(name))
    for path in ("/api/chat", "/v1/chat/completions", "/api/show"):
        body = {"model": "only", "messages": [{"role": "user", "content": "hi"}]}
        status, headers, data = cluster.head.request("POST", path, body)
        assert (status, int(headers["retry-after"]) >= 1) == (503, True), data
        assert f"only node '{name}' has it".encode() in data
    assert cluster.ask("unknown")[0] == 404


@pytest.mark.slow
def test_a_cut_cable_ends_an_answer_within_the_limit(cluster) -> None:
    cluster.nodes[0].model("only")
    name = cluster.name(cluster.cables[0])
    cluster.wait_for(lambda: "only:latest" in cluster.row(name)["models"])
    body = {
        "model": "only",
        "messages": [{"role": "user", "content": "@tokens=100000 @delay=0.05"}],
        "options": {"num_predict": 100000},
    }
    with cluster.head.open("/api/chat", body) as answer:
        answer.readline()
        cluster.cables[0].cut()
        assert b"is lost" in answer.read()  # it was not the hang limit
    assert "no response from" in cluster.row(name)["trouble"]
    cluster.cables[0].mend()
    cluster.wait_for(lambda: cluster.row(name)["state"] == "up")
    assert cluster.ask("only", stream=False)[0] == 200


@pytest.mark.slow
def test_a_drained_node_gets_no_requests_and_conversations_stay(cluster) -> None:
    cluster.add("both")
    for turn in range(3):
        assert cluster.ask("both", f"hello {turn}", stream=False)[0] == 200
    cluster.wait_for(lambda: cluster.head.get("/api/ps")["models"])
    loaded = cluster.head.get("/api/ps")["models"]
    assert len(loaded) == 1
    name = loaded[0]["node"]
    status, _, data = cluster.head.request("POST", f"/api/nodes/{name}/drain", {})
    assert (status, json.loads(data)["state"]) == (200, "draining")
    assert cluster.ask("both", "again", stream=False)[0] == 200
    cluster.wait_for(lambda: len(cluster.head.get("/api/ps")["models"]) == 2)
    assert cluster.head.request("POST", "/api/nodes/nobody/drain", {})[0] == 404
    assert cluster.head.request("POST", f"/api/nodes/{name}/undrain", {})[0] == 200


@pytest.mark.slow
def test_a_model_is_answered_by_the_nodes_that_the_settings_name(cluster) -> None:
    cluster.add("both")
    names = [cluster.name(cable) for cable in cluster.cables]
    file = Path(cluster.head.env["HOME"]) / ".config" / "vllama" / "config.toml"
    file.parent.mkdir(parents=True)
    urls = json.dumps([cable.url for cable in cluster.cables])
    assert cluster.head.process
    for name in names[::-1]:
        file.write_text(f"nodes = {urls}\n[models.both]\nnodes = [{json.dumps(name)}]\n")
        cluster.head.process.send_signal(signal.SIGHUP)
        cluster.wait_for(
            lambda name=name: cluster.head.get("/api/nodes?model=both")["choice"]["name"] == name
        )
        assert cluster.ask("both", stream=False)[0] == 200
        cluster.wait_for(
            lambda name=name: name in {row["node"] for row in cluster.head.get("/api/ps")["models"]}
        )
    file.write_text(f'nodes = {urls}\n[models.both]\nnodes = ["nobody"]\n')
    cluster.head.process.send_signal(signal.SIGHUP)
    cluster.wait_for(lambda: cluster.ask("both", stream=False)[0] == 404)


@pytest.mark.slow
def test_the_models_of_all_nodes_are_listed(tmp_path) -> None:
    with Server(tmp_path / "a") as node, Server(tmp_path / "head", "--node", node.url) as head:
        for server, names in ((node, ("both", "there")), (head, ("both", "mine"))):
            for name in names:
                server.model(name)
        command = [sys.executable, "-m", "vllama", "list", "--nodes", "--json"]
        env = head.env | {"OLLAMA_HOST": head.url}
        deadline_s = time.monotonic() + LIMIT_S
        seen: dict[str, list[str]] = {}
        away = "127.0.0.1"
        wanted = {"mine:latest": ["here"], "there:latest": [away], "both:latest": ["here", away]}
        while wanted != {name: seen.get(name) for name in wanted}:
            assert time.monotonic() < deadline_s, seen
            done = subprocess.run(command, env=env, capture_output=True, check=True)
            seen = {row["name"]: row["nodes"] for row in json.loads(done.stdout)["models"]}


@pytest.mark.slow
def test_the_nodes_are_read_again_with_the_settings(tmp_path) -> None:
    key = tmp_path / "node.key"
    key.write_text("sk-between-the-servers\n")
    own = ("--node-key-file", str(key))
    file = tmp_path / "head" / ".config" / "vllama" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('nodes = ["http://127.0.0.1:1"]\n')
    with Server(tmp_path / "a", *own) as node, Server(tmp_path / "head", *own) as head:
        node.model("only")
        assert head.process
        for urls, status in ((f'["{node.url}"]', 200), ("[]", 404)):
            file.write_text(f"nodes = {urls}\n")
            head.process.send_signal(signal.SIGHUP)
            body = {"model": "only", "messages": [], "stream": False}
            deadline_s = time.monotonic() + LIMIT_S
            while head.request("POST", "/api/chat", body)[0] != status:
                assert time.monotonic() < deadline_s, head.output
                time.sleep(0.05)


@pytest.mark.slow
def test_a_node_that_is_no_longer_listed_finishes_its_responses(tmp_path) -> None:
    file = tmp_path / "head" / ".config" / "vllama" / "config.toml"
    file.parent.mkdir(parents=True)
    with Server(tmp_path / "a") as node:
        node.model("only")
        file.write_text(f"nodes = {json.dumps([node.url])}\n")
        with Server(tmp_path / "head") as head:
            head.wait_for("is up")
            talk = [{"role": "user", "content": "@tokens=200 @delay=0.01"}]
            with head.open("/api/chat", {"model": "only", "messages": talk}) as stream:
                stream.readline()
                file.write_text("nodes = []\n")
                head.process.send_signal(signal.SIGHUP)
                head.wait_for("gets no new requests")
                *_, last = stream
            assert json.loads(last)["eval_count"] == 200
            assert head.get("/api/nodes")["nodes"] == []


@pytest.mark.slow
def test_the_plans_of_all_nodes_are_shown_beside_each_other(cluster) -> None:
    cluster.nodes[0].model("only")
    names = [cluster.name(cable) for cable in cluster.cables]
    cluster.wait_for(lambda: "only:latest" in cluster.row(names[0])["models"])

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = cluster.head.env | {"OLLAMA_HOST": cluster.head.url}
        command = [sys.executable, "-m", "vllama", "plan", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    told = json.loads(run("only", "--nodes", "--json").stdout)
    assert told["choice"]["name"] == names[0]
    assert told["plans"][names[0]]["engine"] == "fake"
    assert "cannot find" in told["plans"][names[1]]["error"]
    shown = run("only", "--nodes")
    assert re.search(rf"{names[0]} +fake .* fits", shown.stdout), shown.stdout
    assert f"the next request goes to {names[0]}" in shown.stdout + shown.stderr
    unknown = run("nobody", "--nodes")
    assert unknown.returncode == 0
    assert "the next request is rejected: model 'nobody' not found" in unknown.stderr
    refused = run("only", "both", "--nodes")
    assert refused.returncode == 2
    assert "specify one model" in refused.stderr


@pytest.mark.slow
def test_a_head_that_is_its_own_node_answers(tmp_path) -> None:
    port = free_port()
    given = ("--port", str(port), "--node", f"http://127.0.0.1:{port}", "--node")
    with Server(tmp_path / "a") as other, Server(tmp_path / "head", *given, other.url) as head:
        head.model("mine")
        other.model("theirs")
        wait_until(lambda: {"mine:latest", "theirs:latest"} <= listed(head))
        wait_until(lambda: {"up"} == {row["state"] for row in head.get("/api/nodes")["nodes"]})
        for model, status in (("mine", 200), ("theirs", 200), ("nobody", 404)):
            body = {"model": model, "messages": [], "stream": False}
            assert head.request("POST", "/api/chat", body)[0] == status
            assert head.request("POST", "/api/show", {"model": model})[0] == status


@pytest.mark.slow
def test_heads_that_name_each_other_do_not_send_a_request_round(tmp_path) -> None:
    port = free_port()
    with (
        Server(tmp_path / "a") as a,
        Server(tmp_path / "one", "--node", f"http://127.0.0.1:{port}") as one,
    ):
        given = ("--port", str(port), "--node", one.url, "--node", a.url)
        with Server(tmp_path / "two", *given) as two:
            for server, model in ((a, "deep"), (one, "first"), (two, "second")):
                server.model(model)
            wait_until(lambda: "first:latest" in listed(two) and "deep:latest" in listed(two))
            wait_until(lambda: "second:latest" in listed(one))
            assert "deep:latest" not in listed(one)  # only what its node has itself
            for head, model, status in (
                (one, "second", 200), (two, "first", 200), (two, "deep", 200), (one, "deep", 404),
            ):  # fmt: skip
                body = {"model": model, "messages": [], "stream": False}
                assert head.request("POST", "/api/chat", body)[0] == status


def listed(server: Server) -> set[str]:
    return {row["name"] for row in server.get("/api/tags")["models"]}


def wait_until(holds) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.slow
def test_what_only_a_lost_node_could_answer_is_refused_at_once(cluster) -> None:
    cluster.nodes[0].model("only")
    name = cluster.name(cluster.cables[0])
    cluster.wait_for(lambda: "only:latest" in cluster.row(name)["models"])
    body = {"model": "only", "input": "hi", "store": True}
    status, _, data = cluster.head.request("POST", "/v1/responses", body)
    assert status == 200
    stored = json.loads(data)["id"]
    cluster.cables[0].cut()
    cluster.wait_for(lambda: cluster.row(name)["state"] == "lost")
    for method, path, asked in (
        ("GET", f"/v1/responses/{stored}", None),
        ("POST", "/v1/responses", body | {"previous_response_id": stored}),
        ("POST", f"/api/show?node={name}", {"model": "only"}),
        ("POST", f"/api/plan?node={name}", {"model": "only"}),
        ("DELETE", f"/api/delete?node={name}", {"model": "only"}),
        ("DELETE", "/api/delete", {"model": "only"}),
        ("GET", "/api/nodes?model=only", None),
    ):
        status, headers, data = cluster.head.request(method, path, asked)
        assert (status, name in data.decode()) == (503, True), (path, data)
        assert int(headers["retry-after"]) >= 1


@pytest.mark.slow
def test_a_model_that_fails_on_one_node_is_answered_by_another(tmp_path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with Cluster(tmp_path, fullest="b") as cluster:
        first, second = cluster.nodes
        first.model("bad", "--exit-before-ready")
        second.model("bad")
        name = cluster.name(cluster.cables[0])
        for cable in cluster.cables:
            cluster.wait_for(
                lambda cable=cable: "bad:latest" in cluster.row(cluster.name(cable))["models"]
            )
        cluster.wait_for(lambda: cluster.head.get("/api/nodes?model=bad")["choice"]["name"] == name)
        for _ in range(3):
            assert cluster.ask("bad", stream=False)[0] == 200
        cluster.wait_for(lambda: cluster.head.get("/api/nodes?model=bad")["choice"]["name"] != name)
        cluster.wait_for(lambda: "bad:latest" not in cluster.row(name)["loaded"])


@pytest.mark.slow
def test_the_answer_of_a_node_that_refuses_is_passed_on_if_the_other_is_lost(cluster) -> None:
    for node in cluster.nodes:
        node.model("late", "--ready-after", "40", "--exit-before-ready")
    names = [cluster.name(cable) for cable in cluster.cables]
    cluster.wait_for(lambda: all("late:latest" in cluster.row(name)["models"] for name in names))
    answers: list[tuple[int, dict]] = []
    asking = threading.Thread(target=lambda: answers.append(cluster.ask("late", stream=False)))
    asking.start()
    cluster.wait_for(lambda: cluster.head.get("/api/ps")["models"])
    (loading,) = (row["node"] for row in cluster.head.get("/api/ps")["models"])
    other = 1 - names.index(loading)
    cluster.cables[other].cut()
    cluster.wait_for(lambda: cluster.row(names[other])["state"] == "lost")
    assert not answers, "the first node has answered before the other was lost"
    asking.join()
    ((status, answer),) = answers
    assert status == 500 and "cannot start late:latest" in answer["error"], answer


@pytest.mark.slow
def test_a_node_that_is_stopped_finishes_its_answers(cluster) -> None:
    cluster.nodes[0].model("only")
    name = cluster.name(cluster.cables[0])
    cluster.wait_for(lambda: "only:latest" in cluster.row(name)["models"])
    text = "@tokens=60 @delay=0.05"
    body = {"model": "only", "messages": [{"role": "user", "content": text}]}
    with cluster.head.open("/api/chat", body) as answer:
        answer.readline()
        cluster.nodes[0].process.send_signal(signal.SIGTERM)
        cluster.wait_for(lambda: cluster.row(name)["state"] == "lost")
        assert b'"done":true' in answer.read().splitlines()[-1]


@pytest.mark.slow
def test_a_model_is_unloaded_on_all_nodes(cluster) -> None:
    cluster.add("both")
    for node in cluster.nodes:
        chat = {"model": "both", "messages": [{"role": "user", "content": "hi"}]}
        assert node.request("POST", "/api/chat", chat, KEY)[0] == 200
    cluster.wait_for(lambda: len(cluster.head.get("/api/ps")["models"]) == 2)
    unload = {"model": "both", "keep_alive": 0}

    def add_key(name: str, *limits: str) -> dict[str, str]:
        command = [sys.executable, "-m", "vllama", "keys", "add", name, *limits, "--json"]
        made = subprocess.run(command, env=cluster.head.env, capture_output=True, check=True)
        return {"authorization": f"Bearer {json.loads(made.stdout)['key']}"}

    def ask(key: dict[str, str]) -> int:
        return cluster.head.request("POST", "/api/generate", unload, key)[0]

    def list_engines() -> list[int]:
        rows = (
            json.loads(node.request("GET", "/api/ps", headers=KEY)[2]) for node in cluster.nodes
        )
        return [row["pid"] for found in rows for row in found["models"]]

    limited, other = add_key("bob", "--models", "x*"), add_key("ann")
    cluster.wait_for(lambda: cluster.head.request("GET", "/api/tags")[0] == 401)
    before = list_engines()
    assert ask(limited) == 403
    for node in cluster.nodes:  # one that is being unloaded would be loaded anew
        assert node.request("POST", "/api/chat", chat, KEY)[0] == 200
    assert list_engines() == before and len(before) == 2
    assert ask(other) == 200
    cluster.wait_for(lambda: list_engines() == [])


@pytest.mark.slow
def test_a_head_that_only_forwards_serves_no_model_of_its_own(cluster) -> None:
    cluster.head.model("mine")
    cluster.nodes[0].model("only")
    cluster.wait_for(lambda: "only:latest" in listed(cluster.head))
    assert "mine:latest" not in listed(cluster.head)
    assert cluster.ask("mine")[0] == 404
    body = {"model": "mine", "messages": [{"role": "user", "content": "hi"}]}
    marked = {"x-vllama-forwarded": "1"}
    assert cluster.head.request("POST", "/api/chat", body, marked)[0] == 404


@pytest.mark.slow
def test_rm_asks_which_node(cluster) -> None:
    cluster.add("both")
    status, _, data = cluster.head.request("DELETE", "/api/delete", {"model": "both"})
    assert status == 400
    assert b"several nodes have it" in data
    name = cluster.name(cluster.cables[1])
    path = f"/api/delete?node={name}"
    status, _, data = cluster.head.request("DELETE", path, {"model": "both"})
    assert status == 400
    assert b"vllama did not download" in data  # the node has been asked
    assert cluster.head.request("DELETE", "/api/delete?node=x", {"model": "both"})[0] == 404


@pytest.mark.slow
def test_another_server_or_key_is_told(tmp_path) -> None:
    with Server(tmp_path / "node", "--api-key", "another-secret") as other:
        head = Server(tmp_path / "head", "--no-local", "--node", other.url)
        with head:
            head.wait_for("is lost|listening")
            deadline = time.monotonic() + LIMIT_S
            while "rejected the key" not in head.get("/api/nodes")["nodes"][0]["trouble"]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            status, _, data = head.request("GET", "/readyz")  # nothing else could answer
            assert status == 503
            assert b"rejected the key" in data


@pytest.mark.slow
def test_without_nodes_nothing_of_it_is_imported() -> None:
    code = "import sys, vllama.server.daemon, vllama.routes.route_table; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "vllama.routes.nodes" not in found.stdout.split()
    assert not [name for name in found.stdout.split() if name.startswith("vllama.targets.nodes")]
