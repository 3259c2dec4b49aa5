"""A path is a model only if the catalogue says so; which files exist is told to nobody."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.server_process import Server
from tests.tiny import write_tiny_gguf
from vllama.base.clock import RealClock
from vllama.base.errors import BadModelFile, InvalidModelRef, VllamaError
from vllama.config import Config
from vllama.models.library import open_library
from vllama.models.settings import ModelsSettings
from vllama.routes.catalog import Catalog
from vllama.routes.in_use import InUse, Setup


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with one listed model, and files that nobody has listed."""
    (tmp_path / "listed").mkdir()
    (tmp_path / "private").mkdir()
    write_tiny_gguf(tmp_path / "listed/mine.gguf", n_layer=1)
    shutil.copy(tmp_path / "listed/mine.gguf", tmp_path / "private/other.gguf")
    shutil.copy(tmp_path / "listed/mine.gguf", tmp_path / "private/blob")
    (tmp_path / "private/config.json").write_text("{}")
    (tmp_path / "private/secret.txt").write_text("secret")
    (tmp_path / "private/lies.gguf").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "private")
    return tmp_path


def catalog(place: Path, *, paths: bool) -> Catalog:
    settings = ModelsSettings(
        hf_cache_dir=place / "hub",
        package_dirs=(),
        folders=(place / "listed",),
        data_dir=place / "data",
    )
    config = Config(host="127.0.0.1" if paths else "0.0.0.0")
    return Catalog(InUse(Setup(config=config, library=open_library(settings))), RealClock())


def answer(asked: Catalog, name: str) -> tuple[object, ...]:
    """Return all that a client could learn, without the name that it sent itself."""
    told: list[object] = []
    for ask in (asked.find, asked.bundle):
        try:
            told.append(asyncio.run(ask(name)))
        except VllamaError as error:
            text = f"{error.message} {error.hint}".replace(name, "NAME")
            told.append((type(error), text))
    return tuple(told)


EXISTING = (
    ("{}/private/other.gguf", "{}/private/absent.gguf"),
    ("{}/private/lies.gguf", "{}/private/absent.gguf"),
    ("{}/private/blob", "{}/private/absent"),
    ("{}/private/secret.txt", "{}/private/absent.txt"),
    ("{}/private", "{}/absent"),
    ("{}/link/other.gguf", "{}/absent/other.gguf"),
    ("file://{}/private/other.gguf", "file://{}/private/absent.gguf"),
    ("./private/other.gguf", "./private/absent.gguf"),
    ("listed/../private/other.gguf", "listed/../private/absent.gguf"),
    ("other.gguf", "absent.gguf"),
    ("file://~root/x.gguf", "file://~nobody-of-this-name/x.gguf"),
    ("/etc/passwd", "/etc/absent"),
    ("/dev/zero", "/dev/absent"),
)


@pytest.mark.parametrize(("there", "absent"), EXISTING)
def test_from_afar_nothing_tells_a_file_from_none(
    place: Path, monkeypatch: pytest.MonkeyPatch, there: str, absent: str
) -> None:
    monkeypatch.chdir(place / "private" if "/" not in there else place)
    afar = catalog(place, paths=False)
    told = answer(afar, there.format(place))
    expected = answer(afar, absent.format(place))
    assert told == expected
    assert all(isinstance(one, tuple) for one in told)  # refused, both times


def test_a_listed_model_has_its_path_for_a_name(place: Path) -> None:
    afar = catalog(place, paths=False)
    for name in ("{}/listed/mine.gguf", "{}/listed/../listed/mine.gguf"):
        assert asyncio.run(afar.bundle(name.format(place))).name == "mine:latest"


def test_a_path_is_not_the_name_of_a_model_that_was_created_from_it(place: Path) -> None:
    for path, name in (("listed/mine.gguf", "mine:latest"), ("private/other.gguf", "other:latest")):
        here = catalog(place, paths=True)
        base = asyncio.run(here.bundle(f"{place}/{path}"))
        here.library.local.write(replace(base, name="made:latest", system="be rude", base=name))
        found = asyncio.run(here.bundle(f"{place}/{path}"))
        assert (found.name, found.system) == (name, None)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("{}/private/blob", InvalidModelRef),
        ("{}/private/secret.txt", InvalidModelRef),
        ("{}/private/lies.gguf", BadModelFile),
        ("./private/other.gguf", InvalidModelRef),
        ("/dev/zero", InvalidModelRef),
    ],
)
def test_on_this_machine_a_path_must_be_that_of_a_model(
    place: Path, name: str, error: type[VllamaError]
) -> None:
    here = catalog(place, paths=True)
    with pytest.raises(error):
        asyncio.run(here.bundle(name.format(place)))
    assert asyncio.run(here.bundle(f"{place}/private/other.gguf")).name == "other:latest"


# -- over HTTP: every route that takes a model ---------------------------------------------------

USER = {"messages": [{"role": "user", "content": "x"}]}
ROUTES = {
    "/api/show": {},
    "/api/chat": USER,
    "/api/generate": {"prompt": "x"},
    "/api/embed": {"input": "x"},
    "/api/embeddings": {"prompt": "x"},
    "/api/pull": {"stream": False},
    "/api/push": {"stream": False},
    "/v1/chat/completions": USER,
    "/v1/completions": {"prompt": "x"},
    "/v1/embeddings": {"input": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {**USER, "max_tokens": 1},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("paths")) as running:
        running.model("mine")
        yield running


def requests(name: str) -> list[tuple[str, str, dict[str, object]]]:
    asked = [("POST", route, {"model": name, **body}) for route, body in ROUTES.items()]
    return [
        *asked,
        ("POST", "/api/copy", {"source": name, "destination": "probe"}),
        ("POST", "/api/create", {"model": "probe", "from": name, "stream": False}),
        ("DELETE", "/api/delete", {"model": name}),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("there", "absent"),
    [
        ("{}/secret.txt", "{}/absent.txt"),
        ("{}/blob", "{}/blobb"),
        ("/etc/passwd", "/etc/passwdd"),
        ("../paths/secret.txt", "../paths/absent.txt"),
        ("/dev/zero", "/dev/zeroo"),
    ],
)
def test_no_route_tells_a_file_from_none(server: Server, there: str, absent: str) -> None:
    write_tiny_gguf(server.home / "blob", n_layer=1)
    (server.home / "secret.txt").write_text("secret")
    names = [there.format(server.home), absent.format(server.home)]
    for first, second in zip(*map(requests, names), strict=True):
        answers = []
        for (method, route, body), name in zip((first, second), names, strict=True):
            status, _, data = server.request(method, route, body)
            text = re.sub(r"req_\w+", "ID", data.decode().replace(name, "NAME"))
            answers.append((route, status, text))
        assert answers[0] == answers[1]
        assert answers[0][1] >= 400
    listed = {row["name"] for row in server.get("/api/tags")["models"]}
    assert not listed & {"probe", "probe:latest"}
