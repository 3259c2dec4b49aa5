"""The memory before the library: a change on the disk, by whomever, is seen by the next look-up."""

from __future__ import annotations

import asyncio
import json
import operator
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.facts import facts
from tests.manual_clock import ManualClock
from tests.models.stores.test_stores import COMMIT, OLDER, put
from tests.registry import OllamaModel, store
from tests.tiny import make_weights, write_tiny_gguf
from vllama.base.errors import ModelNotFound, VllamaError
from vllama.config import Config
from vllama.models.create import NewModel, copy, create
from vllama.models.library import Library, open_library
from vllama.models.lookup import FRESH_NS, MAX_PATHS, Entry, Watch, rest_on
from vllama.models.names.ref import ModelRef
from vllama.models.settings import ModelsSettings
from vllama.routes.catalog import Catalog
from vllama.routes.in_use import InUse, Setup

LIBRARY = "registry.ollama.ai/library/"
GONE = "gone"


class Place:
    """Stores of every kind below one folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(exist_ok=True)
        self.own, self.hub, self.studio = home / "own", home / "hub", home / "studio"
        self.ollama = home / "ollama"
        for folder in (self.own, self.hub, self.studio, self.ollama):
            folder.mkdir()
        self.library = self.open()

    def open(self) -> Library:
        """Return a library that has read nothing yet."""
        return open_library(
            ModelsSettings(
                folders=(self.own,),
                hf_cache_dir=self.hub,
                data_dir=self.home / "data",
                lmstudio_dirs=(self.studio,),
                ollama_dirs=(self.ollama,),
                package_dirs=(),
                hf_offline=True,
            )
        )

    def gguf(self, path: str, *, context: int = 2048) -> Path:
        (self.home / path).parent.mkdir(parents=True, exist_ok=True)
        return write_tiny_gguf(self.home / path, n_ctx=context)

    def create(self, name: str, base: str, system: str) -> None:
        recipe = NewModel(name=name, base=self.library.find(base).bundle, system=system)
        create(self.library, recipe)

    def put_hub(self, name: str, context: int, commit: str = COMMIT, quant: str = "Q8_0") -> None:
        content = self.gguf("work.gguf", context=context).read_bytes()
        put(self.hub, name, {f"m-{quant}.gguf": content[:1] + content[1:]}, commit)

    def put_ollama(self, name: str, system: str) -> Path:
        made = OllamaModel([("model", self.gguf("work.gguf")), ("system", system.encode())])
        return store(self.ollama, LIBRARY + name, made)


def link(place: Place, commit: str, context: int, name: str) -> None:
    """Put a model of the hub under a blob name that does not depend on its first bytes."""
    content = place.gguf("work.gguf", context=context).read_bytes()
    from vllama.models.hub_cache import HubRepo

    repo = HubRepo(place.hub, name)
    repo.prepare()
    repo.blob(f"{commit[0]}{context}").write_bytes(content)
    repo.link(commit, "m-Q8_0.gguf", f"{commit[0]}{context}")
    repo.write_ref("main", commit)


class Order(NamedTuple):
    """`prepare`, a look-up of `name`, `change`, and what the next look-up sees."""

    name: str
    prepare: Callable[[Place], object]
    before: object
    change: Callable[[Place], object]
    after: object


def in_folder(name: str) -> Callable[[Place], object]:
    return lambda place: place.gguf(f"own/{name}.gguf")


def edit(path: Path, context: int) -> None:
    """Write other content into the same file."""
    made = write_tiny_gguf(path.with_suffix(".made"), n_ctx=context)
    path.write_bytes(made.read_bytes())
    made.unlink()


def made_from(base: str, name: str, system: str) -> Callable[[Place], object]:
    def prepare(place: Place) -> None:
        place.gguf(f"own/{base}.gguf")
        place.create(name, base, system)

    return prepare


def write_folder(place: Place, name: str) -> Path:
    folder = place.own / name
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "model.safetensors").write_bytes(make_weights(2, 2))
    return folder


def switch_link(place: Place) -> None:
    link_path = place.own / "linked.gguf"
    link_path.unlink()
    link_path.symlink_to(place.gguf("elsewhere/two.gguf", context=512))


ORDERS = {
    "create over": Order(
        *("over", made_from("b1", "over", "old"), "old"),
        *(lambda place: place.create("over", "b1", "new"), "new"),
    ),
    "cp over": Order(
        *("target", made_from("b2", "target", "old"), "old"),
        lambda place: (
            place.create("source", "b2", "new"),
            copy(place.library, place.library.find("source").bundle, "target"),
        ),
        "new",
    ),
    "rm": Order(
        *("removed", made_from("b3", "removed", "old"), "old"),
        *(lambda place: place.library.remove("removed"), GONE),
    ),
    "create in the place of a file": Order(
        *("shadowed", in_folder("shadowed"), None),
        *(lambda place: place.create("shadowed", "shadowed", "new"), "new"),
    ),
    "the base's file is edited": Order(
        *("on-edited", made_from("b4", "on-edited", "s"), 2048),
        *(lambda place: edit(place.own / "b4.gguf", 1024), 1024),
    ),
    "a file is edited": Order(
        *("edited", in_folder("edited"), 2048),
        *(lambda place: edit(place.own / "edited.gguf", 512), 512),
    ),
    "a file is replaced": Order(
        *("replaced", in_folder("replaced"), 2048),
        lambda place: place.gguf("other/x.gguf", context=512).replace(place.own / "replaced.gguf"),
        512,
    ),
    "a file is removed": Order(
        *("deleted", in_folder("deleted"), 2048),
        *(lambda place: (place.own / "deleted.gguf").unlink(), GONE),
    ),
    "a folder is removed": Order(
        *("inner", lambda place: place.gguf("own/deep/inner.gguf"), 2048),
        *(lambda place: shutil.rmtree(place.own / "deep"), GONE),
    ),
    "a link leads elsewhere": Order(
        "linked",
        lambda place: (place.own / "linked.gguf").symlink_to(place.gguf("elsewhere/one.gguf")),
        *(2048, switch_link, 512),
    ),
    "a file comes into the folder of a model": Order(
        *("weights", lambda place: write_folder(place, "weights"), 2),
        *(lambda place: (place.own / "weights" / "chat_template.jinja").write_text("x"), 3),
    ),
    "a pull of another revision": Order(
        *("o/moved", lambda place: link(place, OLDER, 2048, "o/moved"), 2048),
        *(lambda place: link(place, COMMIT, 512, "o/moved"), 512),
    ),
    "a pull of the preferred quantization": Order(
        *("o/better", lambda place: place.put_hub("o/better", 2048), "Q8_0"),
        *(lambda place: place.put_hub("o/better", 2048, quant="Q4_K_M"), "Q4_K_M"),
    ),
    "rm of a hub model": Order(
        *("o/away", lambda place: place.put_hub("o/away", 2048), 2048),
        *(lambda place: shutil.rmtree(place.hub / "models--o--away"), GONE),
    ),
    "LM Studio's file goes": Order(
        *("p/lms", lambda place: place.gguf("studio/p/lms/m-Q8_0.gguf"), 2048),
        *(lambda place: (place.studio / "p/lms/m-Q8_0.gguf").unlink(), GONE),
    ),
    "the hub's model comes before LM Studio's": Order(
        *("p/both", lambda place: place.gguf("studio/p/both/m-Q8_0.gguf", context=512), 512),
        *(lambda place: place.put_hub("p/both", 2048), 2048),
    ),
    "ollama create": Order(
        *("olla", lambda place: place.put_ollama("olla:latest", "old"), "old"),
        *(lambda place: place.put_ollama("olla:latest", "new"), "new"),
    ),
    "ollama rm": Order(
        *("ollb", lambda place: place.put_ollama("ollb:latest", "old"), "old"),
        *(lambda place: (place.ollama / "manifests" / LIBRARY / "ollb/latest").unlink(), GONE),
    ),
    "Ollama's model comes before a file": Order(
        *("late", in_folder("late"), None),
        *(lambda place: place.put_ollama("LATE:latest", "new"), "new"),
    ),
    "a name is noted for another model": Order(
        "noted",
        lambda place: (
            *(place.put_hub("o/n1", 2048), place.put_hub("o/n2", 512)),
            place.library.names.note(
                ModelRef.parse("noted"), place.library.find("hf.co/o/n1:Q8_0").bundle
            ),
        ),
        2048,
        lambda place: place.library.names.note(
            ModelRef.parse("noted"), place.library.find("hf.co/o/n2:Q8_0").bundle
        ),
        512,
    ),
}


def read(entry: Entry, kind: object) -> object:
    """Return what the order compares: a context, a quantization, how many files, or a system."""
    bundle = entry.bundle
    if isinstance(kind, int):
        return len(bundle.files) if kind < 9 else entry.info.context_length
    return bundle.quant if str(kind).startswith("Q") else bundle.system


async def look_up(catalog: Catalog, name: str, kind: object) -> object:
    try:
        return read(await catalog.find(name), kind)
    except ModelNotFound:
        return GONE


def open_catalog(library: Library) -> Catalog:
    return Catalog(InUse(Setup(config=Config(), library=library, facts=facts())), ManualClock())


def settle() -> None:
    """Wait until nothing has changed so lately that another change would look the same."""
    time.sleep(FRESH_NS / 1e9 + 0.1)


def test_the_next_look_up_sees_each_change(tmp_path: Path) -> None:
    # each has stores of its own: what one changes must not help another
    places = {title: Place(tmp_path / str(n)) for n, title in enumerate(ORDERS)}
    for title, order in ORDERS.items():
        order.prepare(places[title])
    settle()

    async def run(title: str, order: Order) -> None:
        catalog = open_catalog(places[title].library)
        assert await look_up(catalog, order.name, order.before) == order.before, title
        entry = await catalog.find(order.name)
        assert entry.watch.holds(), title
        assert entry is await catalog.find(order.name), title  # none is made for nothing
        order.change(places[title])
        assert await look_up(catalog, order.name, order.after) == order.after, title

    for title, order in ORDERS.items():
        asyncio.run(run(title, order))


class Missing:
    """A file that is away when the models are listed first, and comes later."""

    def __init__(self, folder: Callable[[Place], Path], prepare: Callable[[Place], object]) -> None:
        self.folder, self.prepare = folder, prepare

    def hide(self, place: Place) -> None:
        self.prepare(place)
        files = [path for path in self.folder(place).rglob("*") if path.is_file()]
        self.path = max(files, key=lambda path: path.lstat().st_size)
        self.path.rename(place.home / "away")

    def show(self, place: Place) -> None:
        (place.home / "away").rename(self.path)


MISSING = {
    "a blob of Ollama's": Missing(
        lambda place: place.ollama / "blobs", lambda place: place.put_ollama("x:latest", "s")
    ),
    "a blob of the hub's": Missing(
        lambda place: place.hub / "models--o--x/blobs", lambda place: place.put_hub("o/x", 2048)
    ),
    "the base of a created model": Missing(lambda place: place.own, made_from("b", "x", "s")),
    "the weights of a folder": Missing(
        lambda place: place.own / "x", lambda place: write_folder(place, "x")
    ),
}


def split_folder(place: Place) -> None:
    """Write a model in two shards, of whose index nothing is there yet."""
    folder = write_folder(place, "shards")
    for number in (1, 2):
        shutil.copy(folder / "model.safetensors", folder / f"part-{number}.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text("{}")


def write_index(place: Place) -> None:
    names = {f"x{number}": f"part-{number}.safetensors" for number in (1, 2)}
    text = json.dumps({"weight_map": names})
    (place.own / "shards" / "model.safetensors.index.json").write_text(text)


def link_to_drive(path: str, name: str) -> Callable[[Place], object]:
    def prepare(place: Place) -> None:
        (place.home / path).parent.mkdir(parents=True, exist_ok=True)
        (place.home / path).symlink_to(place.home / "drive" / name)

    return prepare


LATER = {
    "the drive of a file": (
        link_to_drive("own/x.gguf", "y.gguf"),
        lambda place: place.gguf("drive/y.gguf"),
    ),
    "the drive of a folder": (
        link_to_drive("own/inner", "inner"),
        lambda place: shutil.copytree(write_folder(place, "made"), place.home / "drive/inner"),
    ),
    "the drive of LM Studio's publisher": (
        link_to_drive("studio/p", "p"),
        lambda place: place.gguf("drive/p/r/m-Q8_0.gguf"),
    ),
    "an index is written in place": (split_folder, write_index),
}


def describe(library: Library) -> object:
    """Return all that a list tells, and what it leaves out."""
    return library.list(), library.list_skipped()


def test_the_next_list_sees_each_change(tmp_path: Path) -> None:
    orders = {title: (order.prepare, order.change) for title, order in ORDERS.items()}
    orders |= LATER | {title: (missing.hide, missing.show) for title, missing in MISSING.items()}
    places = {title: Place(tmp_path / str(n)) for n, title in enumerate(orders)}
    for title, (prepare, _) in orders.items():
        prepare(places[title])
    settle()
    for title, (_, change) in orders.items():
        library = places[title].library
        before = describe(library)
        one, two = ([one for each in library.stores for one in each.list()] for _ in range(2))
        assert all(map(operator.is_, one, two)), title  # nothing is read again
        change(places[title])
        after = describe(library)
        assert after == describe(places[title].open()), title
        assert after != before, title


def test_a_watch_that_never_ran_holds_nothing() -> None:
    assert not Watch().holds()


def test_only_a_hint_is_content_with_a_list_of_late(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.gguf("own/first.gguf")
    place.library.list()
    place.gguf("own/second.gguf")
    with Watch(max_age_s=600):
        assert [bundle.name for bundle in place.library.list()] == ["first:latest"]
    with Watch():
        assert len(place.library.list()) == 2
    place.gguf("own/third.gguf")
    with pytest.raises(ModelNotFound):
        place.library.find("thirt")
    assert place.library.find("third").bundle.name == "third:latest"


def test_changes_within_a_tick_of_the_clock_are_seen(tmp_path: Path) -> None:
    place = Place(tmp_path)
    file = place.gguf("own/quick.gguf")
    one, two = (write_tiny_gguf(tmp_path / f"{n}.gguf", n_ctx=n).read_bytes() for n in (2048, 4096))
    assert len(one) == len(two)

    async def run() -> None:
        catalog = open_catalog(place.library)
        for content, context in ((one, 2048), (two, 4096)) * 3:
            before = file.stat()
            file.write_bytes(content)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
            assert (await catalog.find("quick")).info.context_length == context

    asyncio.run(run())


def test_a_request_does_not_share_a_look_up_that_began_before_it(tmp_path: Path) -> None:
    place = Place(tmp_path)

    async def run() -> None:
        catalog = open_catalog(place.library)
        missing = asyncio.ensure_future(catalog.find("new"))
        await asyncio.sleep(0)  # it has begun
        while not catalog._pending["new"].done():
            await asyncio.sleep(0)
            if not (place.own / "new.gguf").exists():
                place.gguf("own/new.gguf")
                later = asyncio.ensure_future(catalog.find("new"))
        await asyncio.wait({missing})
        assert (await later).bundle.name == "new:latest"

    asyncio.run(run())


def test_a_result_that_rests_on_too_much_is_not_reused(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(MAX_PATHS + 1)]
    with Watch() as watch:
        rest_on(*paths[:-1])
    assert watch.holds()
    with Watch() as watch:
        rest_on(*paths)
    assert not watch.holds()


def test_the_state_of_a_model_is_that_of_what_an_engine_loads(tmp_path: Path) -> None:
    place = Place(tmp_path)
    folder = write_folder(place, "weights")
    place.gguf("own/one.gguf")

    async def run() -> None:
        catalog = open_catalog(place.library)

        async def state(name: str) -> object:
            return (await catalog.find(name)).bundle.state

        place.create("same", "one", "s")
        assert await state("same") == await state("one")  # two names of one engine
        before = await state("weights")
        (folder / "README.md").write_text("about")
        assert await state("weights") == before
        for change in ("config.json", "tokenizer.json"):
            (folder / change).write_text('{"architectures": ["LlamaForCausalLM"], "a": 1}')
            assert await state("weights") != before
            before = await state("weights")

    asyncio.run(run())


def test_a_damaged_model_is_an_error_and_no_memory(tmp_path: Path) -> None:
    place = Place(tmp_path)
    file = place.gguf("own/bad.gguf")

    async def run() -> None:
        catalog = open_catalog(place.library)
        assert await catalog.find("bad")
        good = file.read_bytes()
        file.write_bytes(b"nonsense")
        with pytest.raises(VllamaError):
            await catalog.find("bad")
        file.write_bytes(good)
        assert await catalog.find("bad")

    asyncio.run(run())
