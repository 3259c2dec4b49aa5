"""Commands, requests and other programs change models; the next request sees it, and so does ps."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.server_process import LIMIT_S, Server
from tests.tiny import write_tiny_gguf

pytestmark = pytest.mark.slow

KEY = "k" * 20
ROUTES = {
    "/api/chat": {"messages": [{"role": "user", "content": "hi"}], "stream": False},
    "/api/generate": {"prompt": "hi", "stream": False},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
}
OLD, NEW, NONE = " ".join(["old"] * 8), " ".join(["new"] * 16), ""
"""System prompts, whose lengths tell them apart."""


class Place:
    """A server, and commands of the same data folder."""

    def __init__(self, server: Server, key: str) -> None:
        self.server, self.key = server, key
        self.counts: dict[int, str] = {}  # tokens of a prompt → its system prompt

    def begin(self) -> None:
        """Make the models that others are made of."""
        self.file("base")
        self.create("old", "base", OLD)
        self.create("new", "base", NEW)
        for name, system in (("base", NONE), ("old", OLD), ("new", NEW)):
            answer = self.ask("POST", "/api/chat", {"model": name, **ROUTES["/api/chat"]})[1]
            self.counts[answer["prompt_eval_count"]] = system
        assert len(self.counts) == 3

    def command(self, *args: str, stdin: str = "") -> str:
        env = self.server.env | {"OLLAMA_HOST": self.server.url, "OLLAMA_API_KEY": self.key}
        words = [self.server.python, "-m", "vllama", *args]
        done = subprocess.run(words, env=env, input=stdin, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, dict]:
        headers = {"authorization": f"Bearer {self.key}"}
        status, _, data = self.server.request(method, path, body, headers)
        return status, json.loads(data.splitlines()[-1]) if data else {}

    def chat(self, name: str) -> object:
        """Return the system prompt in use; the status of a refusal, which all routes give."""
        path = "/api/chat"
        status, told = self.ask("POST", path, {"model": name, **ROUTES[path]})
        if status == 200:
            return self.counts[told["prompt_eval_count"]]
        for path, body in ROUTES.items():
            assert self.ask("POST", path, {"model": name, **body})[0] == status, path
        return status

    def context(self, name: str) -> object:
        status, told = self.ask("POST", "/api/show", {"model": name})
        return told["model_info"]["llama.context_length"] if status == 200 else status

    def create(self, name: str, base: str, system: str) -> None:
        self.command("create", name, "-f", "-", stdin=f"FROM {base}\nSYSTEM {system}\n")

    def create_by_api(self, name: str, base: str, system: str) -> None:
        status, told = self.ask(
            "POST", "/api/create", {"model": name, "from": base, "system": system}
        )
        assert (status, told["status"]) == (200, "success")

    def file(self, name: str, context: int = 2048) -> Path:
        return write_tiny_gguf(self.server.models / f"{name}.gguf", n_ctx=context)

    def replace(self, name: str, context: int) -> None:
        self.file(f"new-{name}", context).rename(self.server.models / f"{name}.gguf")

    def edit(self, name: str, context: int) -> None:
        made = self.file(f"made-{name}", context)
        (self.server.models / f"{name}.gguf").write_bytes(made.read_bytes())
        made.unlink()

    def list_loaded(self) -> dict[str, dict]:
        """Return the rows of ps by each of their names."""
        rows = self.ask("GET", "/api/ps")[1]["models"]
        return {name: row for row in rows for name in (row["name"], *row.get("other_names", ()))}


@pytest.fixture(params=["", KEY], ids=["open", "keys"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    keys = ("--api-key", request.param) if request.param else ()
    with Server(tmp_path / "home", *keys) as server:
        yield Place(server, request.param)


class Order(NamedTuple):
    """How a model is made and changed, and what `read` returns before and after."""

    prepare: Callable[[Place, str], object]
    before: object
    change: Callable[[Place, str], object]
    after: object
    read: Callable[[Place, str], object] = Place.chat


def made(place: Place, name: str) -> None:
    place.create(name, "base", OLD)


def made_of_own(place: Place, name: str) -> None:
    place.file(f"{name}-own")
    place.create(name, f"{name}-own", OLD)


def shadowed(place: Place, name: str) -> None:
    place.file(name)
    place.create_by_api(name, name, OLD)


def delete(place: Place, name: str) -> None:
    assert place.ask("DELETE", "/api/delete", {"model": name})[0] == 200


def copy_over(place: Place, name: str) -> None:
    assert place.ask("POST", "/api/copy", {"source": "new", "destination": name})[0] == 200


ORDERS = {
    "create": Order(made, OLD, lambda place, name: place.create(name, "base", NEW), NEW),
    "api-create": Order(made, OLD, lambda place, name: place.create_by_api(name, "base", NEW), NEW),
    "create-other-base": Order(
        made_of_own, OLD, lambda place, name: place.create(name, "base", NEW), NEW
    ),
    "cp": Order(made, OLD, lambda place, name: place.command("cp", "new", name), NEW),
    "api-copy": Order(made, OLD, copy_over, NEW),
    "rm": Order(made, OLD, lambda place, name: place.command("rm", name), 404),
    "rm-own": Order(made_of_own, OLD, lambda place, name: place.command("rm", name), 404),
    "api-delete": Order(made, OLD, delete, 404),
    "create-over-file": Order(
        Place.file, NONE, lambda place, name: place.create(name, name, NEW), NEW
    ),
    "rm-over-file": Order(shadowed, OLD, lambda place, name: place.command("rm", name), NONE),
    "file-removed": Order(
        Place.file, NONE, lambda place, name: (place.server.models / f"{name}.gguf").unlink(), 404
    ),
    "file-edited": Order(
        Place.file, 2048, lambda place, name: place.edit(name, 512), 512, Place.context
    ),
    "file-replaced": Order(
        Place.file, 2048, lambda place, name: place.replace(name, 512), 512, Place.context
    ),
}


@pytest.mark.parametrize(
    ("place", "pause_s"), [("", 1), ("", 20), (KEY, 0), (KEY, 5)], indirect=["place"]
)
def test_the_next_request_sees_each_change(place: Place, pause_s: float) -> None:
    place.begin()
    names = {
        f"{title}-{state}": each for state in ("loaded", "cold") for title, each in ORDERS.items()
    }
    for name, order in names.items():
        order.prepare(place, name)
        assert place.context(name) == 2048
        if name.endswith("loaded"):
            assert place.chat(name) in (order.before, NONE)
    time.sleep(pause_s)
    seen = {}
    for name, order in names.items():
        order.change(place, name)
        seen[name] = order.read(place, name)
        loaded = place.list_loaded()
        assert (f"{name}:latest" in loaded) <= (order.after != 404), (name, sorted(loaded))
    assert seen == {name: order.after for name, order in names.items()}


def test_a_changed_file_is_loaded_again(place: Place) -> None:
    place.begin()
    place.file("m")
    assert place.chat("m") == NONE
    engine = place.list_loaded()["m:latest"]["pid"]
    assert place.chat("m") == NONE
    assert place.list_loaded()["m:latest"]["pid"] == engine
    place.replace("m", 512)
    assert place.chat("m") == NONE
    row = place.list_loaded()["m:latest"]
    assert row["pid"] != engine and row["context_length"] == 512


def test_a_removed_model_is_unloaded_and_a_shared_engine_is_left(place: Place) -> None:
    place.begin()
    for name in ("one", "two"):
        place.create(name, "base", OLD)
        assert place.chat(name) == OLD
    pid = place.list_loaded()["one:latest"]["pid"]
    engine = psutil.Process(pid)
    assert place.list_loaded()["two:latest"]["pid"] == pid
    place.command("rm", "two", "old", "new")  # the one that was used last, too
    assert place.list_loaded().keys() == {"base:latest", "one:latest"}
    assert place.chat("one") == OLD and place.list_loaded()["one:latest"]["pid"] == pid
    place.command("rm", "one")
    assert place.list_loaded().keys() == {"base:latest"}
    (place.server.models / "base.gguf").unlink()
    engine.wait(timeout=LIMIT_S)  # nobody asks: the server sees it by itself
    deadline = time.monotonic() + LIMIT_S
    while place.list_loaded():  # what is left of the instance
        assert time.monotonic() < deadline


def test_a_model_that_was_named_by_its_path_stays_loaded(place: Place) -> None:
    place.begin()
    place.command("stop", "base")
    path = write_tiny_gguf(place.server.home / "apart.gguf")
    assert place.chat(str(path)) == NONE
    time.sleep(2.5)  # longer than between two looks at the names
    (row,) = place.list_loaded().values()
    assert row["name"] == "apart:latest" and row["state"] == "ready"
    path.unlink()
    assert place.list_loaded() == {} or place.chat(str(path)) == 404
