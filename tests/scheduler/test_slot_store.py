"""The files of saved conversations: bounds, damage, owners, and what a start finds."""

import os
import shutil
from collections import namedtuple
from pathlib import Path
from urllib.parse import quote

import pytest

from vllama.base.errors import ConfigError
from vllama.chat.request import Call
from vllama.engines.llamacpp.llama_server import SLOTS
from vllama.scheduler.slot_cache.blocks import measure_blocks, remove_blocks
from vllama.scheduler.slot_cache.conversations import Conversations
from vllama.scheduler.slot_cache.store import (
    BLOCK_CHARS,
    Saved,
    SlotStore,
    StoreFull,
    count_common,
    hash_blocks,
    read_records,
)

TEXT = "".join(chr(97 + n % 26) * 16 for n in range(BLOCK_CHARS))


class Site:
    """A store, its clock, and what stands for the engine that writes files."""

    def __init__(self, folder: Path, most: int = 1000, written: int = 10**9) -> None:
        self.now_s = 1e9
        self.folder = folder
        self.store = SlotStore(folder, most, lambda: self.now_s, written)
        self.store.open()
        self.number = 0

    def save(
        self, size: int, text: str = "", key: str = "k", owner: str = "", model: str = "m"
    ) -> Saved | None:
        self.now_s += 1
        self.number += 1
        try:
            name = self.store.begin(size, model)
        except StoreFull:
            return None
        (self.folder / name).write_bytes(os.urandom(size))
        saved = Saved(
            name=name.removeprefix("new-").removesuffix(".slot"), key=key, model=model, owner=owner,
            key_name=owner, blocks=hash_blocks(text or f"{self.number}:".ljust(8) + TEXT),
            tokens=1000,
        )  # fmt: skip
        return saved if self.store.finish(name, saved) else None

    def file(self, saved: Saved) -> Path:
        return self.folder / f"{saved.name}.slot"

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("*.slot"))


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path / "c")
    yield site
    site.store.close()


def test_blocks_of_texts():
    blocks = hash_blocks(TEXT)
    assert len(blocks) == len(TEXT) // BLOCK_CHARS == len(set(blocks))
    assert hash_blocks(TEXT + "x") == blocks and hash_blocks("x" * (BLOCK_CHARS - 1)) == ()
    assert count_common(blocks, hash_blocks(TEXT[:700] + "!" + TEXT[701:])) == 700 // BLOCK_CHARS
    assert count_common(blocks, ()) == 0 and count_common(blocks, blocks[:3]) == 3
    assert hash_blocks("\ud800" * BLOCK_CHARS)


def test_the_longest_of_the_same_key_and_owner_is_found(site):
    short, long = site.save(100, TEXT[:2000]), site.save(100, TEXT)
    other = site.save(100, TEXT, owner="alice")
    assert short and long and other
    blocks = hash_blocks(TEXT + "and more")
    assert site.store.find("k", "", blocks) == (long, len(long.blocks))
    assert site.store.find("k", "alice", blocks) == (other, len(other.blocks))
    assert site.store.find("another quantization", "", blocks) is None
    assert site.store.find("k", "bob", blocks) is None
    assert site.store.find("k", "", hash_blocks("!" + TEXT)) is None
    assert not site.file(short).exists()  # the longer one goes on from it


def test_what_cannot_be_removed_is_left(site):
    saved = site.save(100)
    for name in ("x.slot", "x.json", "new-1.slot", f"{saved.name}.slot"):
        (site.folder / name).unlink(missing_ok=True)
        (site.folder / name).mkdir()
    assert not site.store.check(saved)
    site.store.close()
    site.store.open()
    assert site.save(100)


def test_modes(site):
    saved = site.save(100)
    assert saved and site.folder.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in site.folder.iterdir()}
    assert set(modes.values()) == {0o600}, modes


def test_the_bound_holds_and_the_least_value_goes_first(site):
    old, large, new = site.save(100), site.save(240), site.save(100)
    assert old and large and new
    site.now_s += 1000
    site.store.note_use(old)
    for _ in range(60):
        assert site.save(200) is not None
        assert site.size <= 1000
    assert not site.file(large).exists()
    assert site.save(251) is None  # more than a quarter
    assert site.save(250) is not None


def test_a_model_has_a_share_of_its_own(site):
    other = [site.save(100, model="other") for _ in range(3)]
    site.store.set_share("m", 400)
    for _ in range(20):
        assert site.save(100) is not None
        assert site.store.summarise("m")[1] <= 400
    assert all(site.file(each).exists() for each in other)
    assert site.save(101) is None and site.save(101, model="other") is not None
    site.store.set_share("m", 10**6)  # more than all may have
    for _ in range(20):
        assert site.save(100) is not None and site.size <= 1000
    site.store.set_share("m", None)
    assert site.save(250) is not None


@pytest.mark.slow
def test_two_thousand_conversations(tmp_path):
    site = Site(tmp_path / "c", most=100_000)
    for number in range(2000):
        site.save(500 + number * 37 % 5000)
        assert site.store.size_bytes <= 100_000
    assert site.size <= 100_000 and len(read_records(site.folder)) > 10
    site.store.close()


def test_a_file_that_grew_beyond_what_was_reserved(site):
    for _ in range(5):
        site.save(200)
    name = site.store.begin(10, "m")
    (site.folder / name).write_bytes(bytes(240))
    saved = Saved(name="x", key="k", model="m", owner="", key_name="", blocks=("b",), tokens=1)
    assert site.store.finish(name, saved) and site.size <= 1000


def test_what_is_written_in_a_day(tmp_path):
    site = Site(tmp_path / "c", written=500)
    assert site.save(200) and site.save(200) and site.save(200) is None
    site.store.close()
    again = Site(tmp_path / "c", written=500)
    assert again.save(200) is None  # a restart does not forget it
    again.now_s += 86400
    assert again.save(200)
    again.store.close()


def test_a_full_disk(site, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1000, 890, 110))
    assert site.save(9) and site.save(11) is None


DAMAGE = {
    "cut": lambda path: os.truncate(path, 50),
    "one byte short": lambda path: os.truncate(path, 99),
    "one byte more": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "noise": lambda path: path.write_bytes(bytes(b ^ 1 for b in path.read_bytes())),
    "zeros": lambda path: path.write_bytes(bytes(100)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_removed(site, damage):
    saved = site.save(100)
    assert saved and site.store.check(saved)
    DAMAGE[damage](site.file(saved))
    assert not site.store.check(saved)
    assert site.store.find("k", "", saved.blocks) is None and read_records(site.folder) == []


def test_swapped_files(site):
    one, other = site.save(100), site.save(100)
    first, second = site.file(one), site.file(other)
    first.rename(site.folder / "x")
    second.rename(first)
    (site.folder / "x").rename(second)
    assert not site.store.check(one) and not site.store.check(other)


def test_what_a_start_finds(tmp_path):
    site = Site(tmp_path / "c")
    kept, lost = site.save(100), site.save(100)
    site.file(lost).unlink()
    (site.folder / "new-1234.slot").write_bytes(b"half")
    (site.folder / "stray.slot").write_bytes(b"x")
    (site.folder / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match="another server uses it"):
        Site(tmp_path / "c")
    site.store.close()
    again = Site(tmp_path / "c")
    assert again.store.find("k", "", kept.blocks)[0].name == kept.name
    assert again.store.find("k", "", lost.blocks) is None
    assert {path.name for path in again.folder.glob("*.slot")} == {f"{kept.name}.slot"}
    assert {path.stem for path in again.folder.glob("*.json")} == {kept.name}
    again.store.close()


def test_more_than_the_disk_has_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is free at"):
        Site(tmp_path / "c", most=1 << 60)
    Site(tmp_path / "c").store.close()


def test_forgotten(site):
    mine, hers = site.save(100), site.save(100, owner="alice")
    site.store.drop_where(lambda each: each.owner == "alice")
    assert site.file(mine).exists() and not site.file(hers).exists()


def test_each_request_has_a_mark_unless_it_uses_the_field(tmp_path):
    conversations = Conversations(Site(tmp_path).store, "key", "model", SLOTS, 1)
    marks = []
    for _ in range(2):
        marked, mark = conversations.mark(Call(path="/completion", fields={"seed": 1}))
        assert marked.fields == {"seed": 1, "dry_allowed_length": mark}
        marks.append(mark)
    assert marks[0] != marks[1]
    own = Call(path="/completion", fields={"dry_multiplier": 0.8, "dry_allowed_length": 3})
    assert conversations.mark(own) == (own, None)


def write_blocks(folder: Path, model: str, *ages_s: int) -> None:
    """Write a file of 100 bytes for each age, as vLLM does."""
    place = folder / "blocks" / quote(model, safe="") / "1a2b-0.32" / "model_r0" / "abc" / "de_g0"
    place.mkdir(parents=True, exist_ok=True)
    for age_s in ages_s:
        path = place / f"{age_s}.bin"
        path.write_bytes(bytes(100))
        os.utime(path, (1e9 - age_s, 1e9 - age_s))


def test_blocks_of_a_model_with_a_share_of_its_own(site):
    write_blocks(site.folder, "n", 6, 7)
    write_blocks(site.folder, "m", 1, 2, 3, 4, 5)
    site.store.set_share("m", 400)
    site.store.trim_blocks()
    kept = sorted(int(path.stem) for path in site.folder.rglob("*.bin"))
    assert kept == [1, 2, 3, 6, 7] and site.store.summarise("m")[1] == 300


def test_blocks_that_engines_keep_stay_within_what_is_left(site):
    site.save(250)
    write_blocks(site.folder, "org/m:latest", 1, 3, 5, 7)
    write_blocks(site.folder, "n", 2, 4, 6, 8)
    site.store.trim_blocks()  # 750 bytes are left, of which a tenth stays free
    kept = sorted(int(path.stem) for path in site.folder.rglob("*.bin"))
    assert kept == [1, 2, 3, 4, 5, 6]
    assert site.store.summarise("org/m:latest")[1] == 300
    assert measure_blocks(site.folder)["org/m:latest"] == (300, 1e9 - 1)
    remove_blocks(site.folder, "org/m:latest")
    assert measure_blocks(site.folder).keys() == {"n"}
    site.store.trim_blocks()
    assert site.store.summarise("org/m:latest")[1] == 0 and len(read_records(site.folder)) == 1
