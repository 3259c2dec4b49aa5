"""Reading logs on disk: whose they are, and no line lost or told twice whatever a writer does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from vllama.supervise.log_reader import Logbook, Reader
from vllama.supervise.logs import OWN_LOG, get_rotated_path, open_log, read_number, rotate, slug


def begun(log_dir: Path, name: str, *texts: str) -> list[Path]:
    """Make logs of attempts, a second apart."""
    paths = []
    for at, text in enumerate(texts):
        paths.append(open_log(log_dir, name, now_s=1_700_000_000.0 + at))
        paths[-1].write_text(text)
    return paths


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (("smollm2:135m",), ["smollm2:135m"]),
        (("SmolLM2:135M",), ["smollm2:135m"]),
        (("smollm2",), []),
        (("smollm2", "smollm2:135m"), ["smollm2:135m"]),
        (("twins:1b",), ["twins:1b-1", "twins:1b-2"]),
        (("twins:1b-2",), ["twins:1b-2"]),
        (("llama",), ["llama"]),  # "llama-2" is another model, not its replica
        (("hf.co/Org/Repo:Q4_K_M",), ["hf.co/Org/Repo:Q4_K_M"]),
        (("nobody",), []),
    ],
)
def test_names(tmp_path: Path, wanted: tuple[str, ...], found: list[str]) -> None:
    names = ["smollm2:135m", "twins:1b-1", "twins:1b-2", "llama", "llama-2"]
    for name in [*names, "hf.co/Org/Repo:Q4_K_M"]:
        begun(tmp_path, name, "x")
    (tmp_path / OWN_LOG).write_text("{}\n")
    assert Logbook(tmp_path).find(*wanted) == found


def test_no_model_is_where_the_own_log_is(tmp_path: Path) -> None:
    (tmp_path / OWN_LOG).touch()
    (tmp_path / f"{OWN_LOG}.1").touch()
    for name in (OWN_LOG, f"{OWN_LOG}.1"):
        assert slug(name) != name
        begun(tmp_path, name, "x")


def test_numbers_go_on_and_old_logs_go(tmp_path: Path) -> None:
    begun(tmp_path, "m", *"abcdefg")
    logs = Logbook(tmp_path).list_attempts("m")
    assert [(read_number(path), path.read_text()) for path in logs] == [
        (3, "c"), (4, "d"), (5, "e"), (6, "f"), (7, "g"),
    ]  # fmt: skip
    # a clock that was put back does not make the newest the oldest
    assert open_log(tmp_path, "m", now_s=0.0) == Logbook(tmp_path).list_attempts("m")[-1]


def test_everything_begins_with_what_was_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\ntwo\nthr")
    rotate(path)
    with path.open("a") as log:
        log.write("ee\nfour")
    reader = Reader(path)
    assert list(reader.read_all()) == ["one", "two", "three"]
    assert reader.flush() == ["four"]


@pytest.mark.parametrize("seed", range(20))
def test_a_follower_misses_nothing_and_tells_nothing_twice(tmp_path: Path, seed: int) -> None:
    """Both ways to put a log aside: copied and truncated (engines), renamed (our own)."""
    chance = random.Random(seed)
    path = tmp_path / "a.log"
    path.touch()
    reader = Reader(path)
    written, seen = [], list(reader.read_all())
    renames = chance.random() < 0.5
    for number in range(300):
        line = f"line {number} " + "x" * chance.randrange(50)
        written.append(line.rstrip())
        with path.open("a") as log:
            log.write(line + "\n")
        if chance.random() < 0.3:
            seen += reader.read_new()
            looked = True
        else:
            looked = False
        # one rotation between two looks can be followed: more is 16 MiB in a fifth of a second
        if looked and chance.random() < 0.2:
            if renames:
                path.replace(get_rotated_path(path))
                path.touch()
            else:
                rotate(path)
            for more in range(chance.randrange(3)):
                written.append(f"after {number} {more}")
                with path.open("a") as log:
                    log.write(written[-1] + "\n")
            seen += reader.read_new()
    seen += [*reader.read_new(), *reader.flush()]
    assert seen == written


def test_a_log_that_was_pruned_ends_quietly(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\n")
    reader = Reader(path)
    assert list(reader.read_all()) == ["one"]
    path.unlink()
    assert [*reader.read_new(), *reader.flush()] == []
