"""What is known of the models of servers that run already. Answers recorded where that is said."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import write_tiny_gguf
from vllama.cli.model_view import make_rows
from vllama.models.headers.info import build_model_info
from vllama.models.library import Library, open_library
from vllama.models.names.ref import ModelRef
from vllama.models.settings import (
    ModelSettings,
    ModelsSettings,
    ModelTables,
    UpstreamSettings,
    UpstreamTraits,
)
from vllama.models.stores.upstream import UpstreamStore
from vllama.models.stores.upstream_server import ANYTHING, UpstreamServer
from vllama.models.types import Capability

EMBEDS = frozenset({Capability.EMBEDDING})
# llama-server (xllamacpp 0.2.7), cut to what is read
LLAMA_ROW = {
    "id": "smollm2",
    "object": "model",
    "created": 1795383939,
    "owned_by": "llamacpp",
    "meta": {"n_ctx": 1024, "n_ctx_train": 8192, "n_embd": 576, "n_params": 134515008,
             "size": 96576768},
}  # fmt: skip
PROPS = {
    "default_generation_settings": {"n_ctx": 1024},
    "total_slots": 2,
    "modalities": {"vision": False, "video": False, "audio": False},
    "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
}
NO_EMBEDDINGS = (501, {"error": {"code": 501, "message": "Start it with `--embeddings`"}})
BAD_POOLING = (
    400,
    {"error": {"code": 400, "message": "Pooling type 'none' is not OAI compatible"}},
)
# the fields that vLLM 0.32 has in its list
VLLM_ROW = {"id": "org/big", "owned_by": "vllm", "root": "/models/big", "max_model_len": 32768}

Answer = tuple[int, Any]


@contextmanager
def serving(*rows: Mapping[str, Any], **routes: Answer) -> Iterator[str]:
    """Serve `/v1/models` with `rows`, and routes by `METHOD_path` with "__" for "/"."""
    answers = {"GET /v1/models": (200, {"object": "list", "data": list(rows)})}
    answers |= {name.replace("_", " ", 1).replace("__", "/"): a for name, a in routes.items()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            status, value = answers.get(f"{self.command} {self.path}", (404, {"error": "none"}))
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.002,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def make_store(*urls: str) -> UpstreamStore:
    return UpstreamStore([UpstreamSettings(url=url) for url in urls], ModelTables())


def only(url: str, **traits: Any) -> Any:
    """Return the only model of a server, with the traits of the server."""
    server = UpstreamSettings(url=url, traits=UpstreamTraits(**traits))
    (bundle,) = UpstreamStore([server], ModelTables()).list()
    return bundle


def test_a_server_that_tells_nothing_is_refused_nothing() -> None:
    with serving({"id": "big", "owned_by": "me"}) as url:
        bundle = only(url)
    assert bundle.info.capabilities == ANYTHING
    assert bundle.upstream.servers == (url,)
    assert bundle.upstream.tool_calls_in_text is None
    assert bundle.upstream.thinking_in_text is None
    assert build_model_info(bundle.info) == {
        "general.architecture": "me",
        "general.basename": "big",
    }


def test_the_context_is_in_the_model_info_under_the_architecture() -> None:
    with serving(VLLM_ROW) as url:
        shown = build_model_info(only(url).info)
    assert shown["general.architecture"] == "vllm"
    assert shown["vllm.context_length"] == 32768


def test_llama_server_tells_its_slots_context_and_template() -> None:
    with serving(LLAMA_ROW, GET___props=(200, PROPS), POST___v1__embeddings=NO_EMBEDDINGS) as url:
        info = only(url).info
    assert info.capabilities == {Capability.COMPLETION}
    assert (info.context_length, info.embedding_length) == (1024, 576)
    thinking = PROPS | {
        "chat_template": "{% if tools %}{{ tools }}{% endif %}{{ '<think>' }}{{ '</think>' }}",
        "modalities": {"vision": True, "audio": True},
    }
    with serving(
        LLAMA_ROW, GET___props=(200, thinking), POST___v1__embeddings=NO_EMBEDDINGS
    ) as url:
        found = only(url).info.capabilities
    assert found == set(Capability) - {Capability.INSERT, Capability.EMBEDDING}


def test_a_llama_server_started_for_embeddings_has_an_embedding_model() -> None:
    with serving(LLAMA_ROW, GET___props=(200, PROPS), POST___v1__embeddings=BAD_POOLING) as url:
        assert only(url).info.capabilities == EMBEDS


def test_a_server_without_a_chat_route_has_embedding_models() -> None:
    refused = (405, {"detail": "Method Not Allowed"})
    with serving(VLLM_ROW, GET___v1__embeddings=refused) as url:
        assert only(url).info.capabilities == EMBEDS
    with serving(
        VLLM_ROW, GET___v1__embeddings=refused, GET___v1__chat__completions=refused
    ) as url:
        assert only(url).info.capabilities == ANYTHING


@pytest.mark.parametrize(
    "name",
    ["text-embedding-3-small", "nomic-embed-text", "Qwen/Qwen3-Embedding-0.6B", "BAAI/bge-m3",
     "intfloat/e5-large", "thenlper/gte-base", "all-minilm", "embeddinggemma"],
)  # fmt: skip
def test_an_embedding_model_is_known_by_its_name(name: str) -> None:
    with serving({"id": name, "owned_by": "organization_owner"}) as url:
        assert only(url).info.capabilities == EMBEDS


@pytest.mark.parametrize("name", ["qwen3", "phage5-chat", "Imbed", "the-bigger-one"])
def test_other_names_are_of_chat_models(name: str) -> None:
    with serving({"id": name, "owned_by": "organization_owner"}) as url:
        assert only(url).info.capabilities == ANYTHING


def test_sglang_names_its_parsers() -> None:
    told = {"model_path": "q", "context_length": 4096, "tool_call_parser": "qwen25"}
    row = {"id": "q", "owned_by": "sglang"}
    with serving(row, GET___server_info=(200, told | {"reasoning_parser": None})) as url:
        bundle = only(url)
    assert bundle.info.context_length == 4096
    assert bundle.upstream.tool_calls_in_text is False
    assert bundle.upstream.thinking_in_text is True
    with serving(row, GET___get_server_info=(200, told | {"is_embedding": True})) as url:
        assert only(url).info.capabilities == EMBEDS


def test_ollama_describes_each_model() -> None:
    shown = {
        "details": {"family": "qwen3", "quantization_level": "Q4_K_M"},
        "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40960},
        "capabilities": ["completion", "tools", "thinking", "something new"],
    }
    with serving(
        {"id": "qwen3:8b", "owned_by": "library"},
        GET___api__version=(200, {"version": "0.40.0"}),
        POST___api__show=(200, shown),
    ) as url:
        info = only(url).info
    assert (info.architecture, info.quant, info.context_length) == ("qwen3", "Q4_K_M", 40960)
    assert info.capabilities == {Capability.COMPLETION, Capability.TOOLS, Capability.THINKING}
    assert build_model_info(info)["qwen3.context_length"] == 40960


def test_of_many_models_only_the_first_and_those_asked_for_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def show(server: UpstreamServer, name: str) -> Mapping[str, Any]:
        asked.append(name)
        return {"details": {"family": "qwen3"}}

    monkeypatch.setattr(UpstreamServer, "show", show)
    monkeypatch.setattr("vllama.models.stores.upstream.MOST_SHOWN", 2)
    ollama: dict[str, Answer] = {"GET___api__version": (200, {"version": "0.40.0"})}
    with serving(*({"id": f"m{number}", "owned_by": "me"} for number in range(5)), **ollama) as url:
        store = make_store(url)
        families = [bundle.info.architecture for bundle in store.list()]
        assert (families, asked) == (["qwen3", "qwen3", "me", "me", "me"], ["m0", "m1"])
        found = store.find(ModelRef.parse("m4"))
        assert found is not None and found.info.architecture == "qwen3"
        assert found.upstream is not None and found.upstream.servers == (url,)
        assert store.find(ModelRef.parse("m4")) and asked == ["m0", "m1", "m4"]
    monkeypatch.setattr("vllama.models.stores.upstream.SHOWING_S", 0.0)
    with serving({"id": "late", "owned_by": "me"}, **ollama) as url:
        assert only(url).info.architecture == "me" and "late" not in asked


def test_what_the_user_says_comes_first() -> None:
    with serving(VLLM_ROW) as url:
        bundle = only(url, tool_calls="text", thinking="none", context_length=8192, images=False)
        assert only(url, embeddings=True).info.capabilities == EMBEDS
    assert bundle.info.context_length == 8192
    assert bundle.info.capabilities == {Capability.COMPLETION, Capability.TOOLS}
    assert bundle.upstream.tool_calls_in_text is True
    assert bundle.upstream.thinking_in_text is False
    with serving({"id": "my-embedder", "owned_by": "me"}) as url:
        assert only(url, embeddings=False).info.capabilities == ANYTHING


def test_what_is_said_of_a_model_comes_before_what_is_said_of_its_server() -> None:
    with serving(VLLM_ROW, {"id": "small", "owned_by": "vllm"}) as url:
        traits = UpstreamTraits(context_length=1000, tool_calls="text")
        servers = [UpstreamSettings(url=f"{url}/v1/", name="one", traits=traits)]
        tables = [("SMALL", 2000), ("one:hidden", 3000), (f"{url}#lost", 4000)]
        store = UpstreamStore(
            servers,
            ModelTables(
                tuple(
                    (n, ModelSettings(traits=UpstreamTraits(context_length=c))) for n, c in tables
                )
            ),
        )
        big, small = store.list()
        links = [store.find_link(link) for link in ("one:hidden", f"{url}#lost", "one:small")]
    assert (big.info.context_length, small.info.context_length) == (1000, 2000)
    assert big.upstream.tool_calls_in_text and small.upstream.tool_calls_in_text
    assert [link.info.context_length for link in links] == [3000, 4000, 1000]


def test_a_model_is_only_on_the_servers_that_list_it() -> None:
    with serving({"id": "a"}, {"id": "both"}) as one, serving({"id": "b"}, {"id": "both"}) as two:
        away = "http://127.0.0.1:9"  # may have any of them, when it comes back
        store = make_store(one, two, away)
        found = {bundle.hub_id: bundle.upstream for bundle in store.list()}
    urls = {name: model.servers for name, model in found.items() if model is not None}
    assert urls == {"a": (one, away), "both": (one, two, away), "b": (two, away)}


@pytest.mark.parametrize("created", [1e999, -1e999, -5, 10**30, "x", True])
def test_a_time_that_cannot_be_is_as_good_as_none(created: Any) -> None:
    with serving({"id": "odd", "created": created}) as url:
        assert only(url).modified_s == 0.0


def test_an_answer_of_the_wrong_kind_is_as_good_as_none() -> None:
    page = (200, ["a", "page"])
    with serving(
        {"id": "odd", "owned_by": 7, "max_model_len": True, "meta": "x", "created": "now"},
        GET___props=page,
        GET___server_info=page,
        GET___api__version=(200, {"version": 3}),
    ) as url:
        info = only(url).info
    assert (info.context_length, info.capabilities) == (None, ANYTHING)


def test_one_thread_waits_for_a_server_that_has_fallen_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "vllama.models.stores.upstream.KEEP_S", -1.0
    )  # a list is kept for some more milliseconds
    monkeypatch.setattr("vllama.models.stores.upstream_server.TIMEOUT_S", 60.0)
    with serving({"id": "m"}) as url:
        store = make_store(url)
        assert [bundle.name for bundle in store.list()] == ["m:latest"]
    with socket.create_server(("127.0.0.1", int(url.rpartition(":")[2]))) as silent:
        asking = threading.Thread(target=store.list)
        asking.start()
        connection, _ = silent.accept()
        assert [bundle.name for bundle in store.list()] == ["m:latest"]
        assert store.find(ModelRef.parse("m")) and store.find_link(f"{url}#m")
        assert asking.is_alive()
        connection.close()
    asking.join()


def test_names_are_found_in_any_case() -> None:
    with serving(VLLM_ROW) as url:
        store = make_store(url)
        for name in ("org/big", "ORG/Big", "org/big:latest"):
            found = store.find(ModelRef.parse(name))
            assert found is not None and found.hub_id == "org/big"


def test_a_model_on_this_disk_comes_before_one_of_a_named_server(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "same.gguf")

    def make_library(server: UpstreamSettings) -> Library:
        return open_library(
            ModelsSettings(
                hf_cache_dir=tmp_path / "hf",
                data_dir=tmp_path / "data",
                folders=(tmp_path,),
                package_dirs=(),
                upstreams=(server,),
            )
        )

    def where(library: Library, name: str) -> str:
        (listed,) = (each.store for each in library.list() if each.name == "same:latest")
        found = library.find(name).bundle
        assert name != "same" or found.store == listed
        return found.store

    with serving({"id": "same"}, {"id": "other"}) as url:
        named = make_library(UpstreamSettings(url=url, name="bee"))
        assert where(named, "same") == "folder"
        assert where(named, "bee:same") == where(named, "other") == "upstream"
        assert where(make_library(UpstreamSettings(url=url)), "same") == "upstream"
    # it answers no more; who named its models need not ask it
    for server in (
        UpstreamSettings(url=url),
        UpstreamSettings(url=url, name="bee"),
        UpstreamSettings(url=url, name="bee", models={"same": "same"}),
    ):
        assert where(make_library(server), "same") == "folder"


def test_models_on_this_disk_are_told_from_those_of_upstreams(tmp_path: Path) -> None:
    with serving({"id": "big"}) as url:
        settings = ModelsSettings(
            hf_cache_dir=tmp_path / "hf",
            data_dir=tmp_path / "data",
            folders=(tmp_path,),
            package_dirs=(),
            upstreams=(UpstreamSettings(url=url),),
        )
        library = open_library(settings)
        assert library.list() and not library.has_models_here()
    write_tiny_gguf(tmp_path / "own.gguf")
    assert open_library(settings).has_models_here()


def test_the_date_of_a_model_is_shown_if_its_server_told_it() -> None:
    details = {"details": {"format": "remote"}}
    rows = make_rows(
        [
            {"name": "a:1", "modified_at": "1970-01-01T00:00:00Z", **details},
            {"name": "b:1", "modified_at": "2020-01-01T00:00:00Z", **details},
        ]
    )
    assert rows[0][3] == "-" and rows[1][3].endswith("years ago")
