"""What a server may be told to refuse: changes, registries, large files; and what it lets out."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hostile.rogue import Reply, Rogue, rogue
from tests.ports import free_port
from tests.registry import OllamaModel, StandInRegistry
from tests.server.test_reload import Configured
from tests.server_process import Server
from tests.tiny import write_tiny_gguf
from vllama.base.errors import Forbidden, VllamaError
from vllama.models.library import open_library
from vllama.models.settings import ModelsSettings
from vllama.routes.route import RouteKind
from vllama.routes.route_table import ROUTES

pytestmark = pytest.mark.slow

BLOB = b"b" * 1000
DIGEST = f"sha256:{hashlib.sha256(BLOB).hexdigest()}"
CHAT = {"model": "sea", "messages": [{"role": "user", "content": "hi"}], "stream": False}

# -- read-only --------------------------------------------------------------------------------

KINDS = {
    (method, re.sub(r"{\w+}", "x", path)): route.kind
    for route in ROUTES
    for path in route.paths
    for method in route.methods
}
CHANGING = [
    place for place, kind in KINDS.items() if kind is RouteKind.WRITES and place[0] != "HEAD"
]
SETTING = [place for place, kind in KINDS.items() if kind is RouteKind.SETS]
HARMLESS = {  # they ask models, or are answered as by a signed-out Ollama
    *("/api/plan", "/api/show", "/api/tokenize", "/api/detokenize"),
    *("/tokenize", "/detokenize", "/pooling", "/classify", "/engine/x"),
    *("/rerank", "/reranking", "/v1/rerank", "/v1/reranking", "/v2/rerank", "/score", "/v1/score"),
    *("/api/chat", "/api/generate", "/api/embed", "/api/embeddings"),
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"),
    *("/v1/messages", "/v1/messages/count_tokens", "/v1/responses/x", "/v1/responses/x/cancel"),
    *("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech"),
    *("/v1/images/generations", "/v1/images/edits"),
    *("/api/me", "/api/signout", "/api/user/keys/x"),
    *(
        "/api/changes",
        "/api/commands",
    ),  # refuse by themselves, see tests/server/test_{changes,commands}.py
    "/api/requests/x",  # ends a request, whoever has asked: keys are the only guard
    *("/api/experimental/web_search", "/api/experimental/web_fetch"),
    *("/api/web_search", "/api/web_fetch", "/v1/decisions", "/v1/systemone"),
    # of one's own; a server that is read-only refuses them by itself
    *("/v1/files", "/v1/files/x", "/v1/batches", "/v1/batches/x/cancel"),
    *("/api/nodes/x/drain", "/api/nodes/x/undrain"),  # the models stay where they are
}


def test_each_route_that_is_no_question_is_known_to_change_something_or_not() -> None:
    acting = {path for method, path in KINDS if method not in ("GET", "HEAD")}
    assert acting == {path for _, path in (*CHANGING, *SETTING)} | HARMLESS


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("reader"), "--read-only") as running:
        running.model("sea")
        yield running


def files(server: Server) -> list[Path]:
    """Return what lies in the stores of models; logs and measurements come when they like."""
    stores = ("models", "data/models", "data/blobs", ".ollama", "hf")
    return sorted(path for store in stores for path in (server.home / store).rglob("*"))


@pytest.mark.parametrize(("method", "path"), [*CHANGING, *SETTING])
def test_a_read_only_server_changes_nothing(reader: Server, method: str, path: str) -> None:
    before = files(reader)
    body = {"model": "sea", "source": "sea", "destination": "two", "from": "sea", "stream": True}
    status, _, answer = reader.request(method, path, body)
    error = json.loads(answer)["error"]
    assert status == 403 and f"cannot serve {method} {path}: this server is read-only" in error
    assert ("without --read-only" in error) is ((method, path) in CHANGING)
    assert files(reader) == before


def test_a_read_only_server_answers_all_else(reader: Server) -> None:
    assert reader.post("/api/chat", CHAT)[0] == 200
    assert reader.post("/api/show", {"model": "sea"})[0] == 200
    assert "sea:latest" in [row["name"] for row in reader.get("/api/tags")["models"]]
    assert reader.request("HEAD", f"/api/blobs/{DIGEST}")[0] == 404
    assert reader.post("/api/chat", CHAT | {"model": "hf.co/org/model"})[0] == 404


def test_read_only_from_one_moment_on(tmp_path: Path) -> None:
    with Configured(tmp_path, "") as server:
        server.model("sea")
        copy = {"source": "sea", "destination": "two"}
        assert server.post("/api/copy", copy)[0] == 200
        server.reload("read_only = true\n", r"read_only \(false → true\)")
        assert server.post("/api/copy", copy)[0] == 403
        server.reload("", r"read_only \(true → false\)")
        assert server.post("/api/copy", copy)[0] == 200


# -- large files ------------------------------------------------------------------------------


def test_an_upload_that_is_too_large(tmp_path: Path) -> None:
    path, larger = f"/api/blobs/{DIGEST}", BLOB + b"b"
    blobs = tmp_path / "data/blobs"
    with Server(tmp_path, "--max-blob-size", str(len(BLOB))) as server:
        for body in (larger, iter([BLOB, b"b"])):  # the second has no length, it comes in chunks
            connection = server.connect()
            connection.request("POST", path, body)
            answer = connection.getresponse()
            assert answer.status == 413 and b"larger --max-blob-size" in answer.read()
            connection.close()
            assert not blobs.exists() or not list(blobs.iterdir())
        assert server.request("POST", path, BLOB)[0] == 201


@pytest.mark.usefixtures("hub_library")
def test_a_pull_that_is_too_large(settings: ModelsSettings, tmp_path: Path) -> None:
    weights = write_tiny_gguf(tmp_path / "m.gguf", n_layer=1)
    size = weights.stat().st_size
    with StandInRegistry() as registry:
        registry.add("library/m:latest", OllamaModel([("model", weights)]))

        def pull(most_bytes: int) -> object:
            limits = {"max_blob_size_bytes": most_bytes, "ollama_registry": registry.url}
            return open_library(replace(settings, **limits)).remote.pull("m")

        with pytest.raises(Forbidden, match=r"the limit is "):
            pull(size - 1)
        assert not [entry for entry in registry.log if "/blobs/" in str(entry)]
        assert pull(size)


# -- registries -------------------------------------------------------------------------------


def allowing(settings: ModelsSettings, *hosts: str) -> Callable[[str], object]:
    return open_library(replace(settings, allow_registry=hosts)).remote.pull


@pytest.mark.parametrize("name", ["org/model", "hf.co/org/model", "qwen3:0.6b", "{host}/lib/model"])
def test_registries_that_are_not_allowed_are_not_asked(
    server: Rogue,
    settings: ModelsSettings,
    name: str,
) -> None:
    name = name.format(host=server.host)
    told: list[object] = []
    with pytest.raises(Forbidden, match=r"cannot pull from .* other.example only"):
        allowing(settings, "other.example")(name, progress=told.append)
    assert not server.asked and not told
    with pytest.raises(VllamaError) as caught:
        allowing(settings, "other.example", server.host)(name)
    assert server.asked and not isinstance(caught.value, Forbidden)


def test_an_allowed_registry_leads_to_no_other(settings: ModelsSettings) -> None:
    with rogue() as inside, rogue() as allowed:
        elsewhere = {"Location": f"{inside.url}/v2/library/model/manifests/latest"}
        allowed.answer = lambda path: Reply(status=307, headers=elsewhere)
        with pytest.raises(Forbidden):
            allowing(settings, allowed.host)(f"{allowed.host}/library/model")
        assert allowed.asked and not inside.asked


def test_an_allowed_hub_leads_to_no_other(settings: ModelsSettings) -> None:
    with rogue() as inside, rogue() as allowed:

        def lead(to: Rogue) -> Callable[[str], Reply]:
            where = {"Location": f"{to.url}/api/models/org/other"}
            return lambda path: Reply(status=307, headers=where)

        hub = replace(settings, hf_endpoint=allowed.url)
        allowed.answer = lead(inside)
        with pytest.raises(Forbidden):
            allowing(hub, allowed.host)("org/model")
        assert len(allowed.asked) == 1 and not inside.asked
        with pytest.raises(VllamaError):
            allowing(hub)("org/model")
        assert inside.asked and not any("authorization" in headers for _, headers in inside.asked)
        assert all("authorization" in headers for _, headers in allowed.asked)
        allowed.answer, allowed.asked[:] = lead(allowed), []
        with pytest.raises(VllamaError, match="redirects endlessly"):
            allowing(hub, allowed.host)("org/model")
        assert len(allowed.asked) == 10


def test_names_of_the_defaults(settings: ModelsSettings) -> None:
    usual = replace(settings, hf_endpoint=None, hf_offline=True)
    for hosts, name, allowed in (
        (("huggingface.co",), "org/model", True),
        (("hf.co",), "org/model", True),
        (("registry.ollama.ai",), "org/model", False),
        (("huggingface.co",), "ollama://model", False),
        (("huggingface.co:8443",), "org/model", False),
        (("huggingface.co:443",), "org/model", True),
    ):
        with pytest.raises(VllamaError) as caught:
            allowing(usual, *hosts)(name)
        assert isinstance(caught.value, Forbidden) is not allowed, (hosts, name)


# -- a server that others can reach -----------------------------------------------------------


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # an address of the loopback that does not look like one
    home = tmp_path_factory.mktemp("open")
    with Server(home, "--host", "127.1", "--allow-registry", "127.0.0.1:1") as running:
        yield running


def test_it_warns_once(open_server: Server) -> None:
    output = open_server.wait_for("(?m)^ready: ")
    warnings = [line for line in output.splitlines() if "is open: anyone" in line]
    assert len(warnings) == 1 and warnings[0].startswith("Warning: ")
    assert "--api-key-file" in warnings[0] and "behind a proxy or firewall" in warnings[0]


@pytest.mark.parametrize("arguments", [(), ("--host", "127.1", "--api-key", "k")])
def test_others_do_not(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with Server(tmp_path, *arguments) as server:
        assert "is open: anyone" not in server.output


def test_what_is_not_allowed_is_a_status(open_server: Server) -> None:
    for name in ("org/model", "evil.example/library/model"):
        for stream in (True, False):
            status, reply = open_server.post("/api/pull", {"model": name, "stream": stream})
            assert status == 403 and "--allow-registry" in reply["error"]
    made = {"model": "new", "from": "org/model"}
    assert open_server.post("/api/create", made)[0] == 403


def test_a_pull_does_not_tell_who_listens(tmp_path: Path) -> None:
    with Server(tmp_path, "--host", "127.1") as server, rogue() as running:
        running.answer = lambda path: Reply(status=int(path.split("/")[2]), body=[b"{}"])
        port = int(running.url.rpartition(":")[2])
        targets = [(free_port(), 200), *((port, status) for status in (200, 401, 404, 418))]
        told = set()
        for port, status in targets:
            name = f"http://127.0.0.1:{port}/{status}/model"
            ask = {"model": name, "insecure": True, "stream": False}
            answered, reply = server.post("/api/pull", ask)
            line = server.lines("/api/pull", ask | {"stream": True})[-1]
            assert line["error"] == reply["error"]
            told.add((answered, reply["error"].replace(name, "NAME")))
        assert len(told) == 1, told
        server.wait_for(r"WARNING.*pull of .* failed: cannot reach .*[Cc]onnection refused")
