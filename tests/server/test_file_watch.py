"""Which changes of the config file are noticed, and when."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vllama.server.reload import FileWatch


def rename_over(path: Path) -> None:
    new = path.with_suffix(".new")
    new.write_text("b = 1")
    new.replace(path)


def swap_folder(path: Path) -> None:
    """Change what a ConfigMap holds, as Kubernetes does: `..data` points to another folder."""
    folder = path.parent / "..second"
    folder.mkdir()
    (folder / "c.toml").write_text("b = 2")
    (path.parent / "..new").symlink_to(folder.name)
    (path.parent / "..new").replace(path.parent / "..data")


def rewrite(path: Path) -> None:
    path.write_text("longer = 3")


@pytest.mark.parametrize("change", [rename_over, swap_folder, rewrite, Path.unlink])
def test_every_kind_of_change_is_noticed_once_it_has_settled(tmp_path, change) -> None:
    (tmp_path / "..first").mkdir()
    (tmp_path / "..first" / "c.toml").write_text("a = 1")
    (tmp_path / "..data").symlink_to("..first")
    path = tmp_path / "c.toml"
    path.symlink_to("..data/c.toml")
    watch = FileWatch(lambda: [path])
    assert [watch.check(), watch.check()] == [False, False]
    change(path)
    assert [watch.check(), watch.check(), watch.check()] == [False, True, False]


def test_a_file_that_is_still_written_is_waited_for(tmp_path) -> None:
    path = tmp_path / "c.toml"
    watch = FileWatch(lambda: [path])
    told = []
    for text in ("a", "ab", "abc"):
        path.write_text(text)
        told.append(watch.check())
    assert told == [False] * 3 and watch.check()


def test_a_touched_file_is_read_again(tmp_path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("a")
    watch = FileWatch(lambda: [path])
    os.utime(path, ns=(1, 1))
    assert [watch.check(), watch.check()] == [False, True]
