"""Files are written and put back, byte for byte, whatever happens in between."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllama.base.errors import VllamaError
from vllama.cli.launch.edits import put_values
from vllama.cli.launch.settings_files import Change, Keeper, plan
from vllama.cli.launch.types import Edit


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return Keeper(tmp_path / "kept" / "tool")


def edit(path: Path, value: object = 1) -> Edit:
    return put_values(path, {("key",): value})


def write(keeper: Keeper, *edits: Edit) -> None:
    keeper.write([change for change in map(plan, edits) if change.differs])


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def test_files_and_folders_that_were_not_there(tmp_path: Path, keeper: Keeper) -> None:
    home = tmp_path / "home"
    home.mkdir()
    path = home / ".config" / "tool" / "settings.json"
    write(keeper, edit(path))
    assert path.read_text() == '{\n  "key": 1\n}\n'
    assert path.stat().st_mode & 0o777 == 0o600
    assert keeper.state() == "written"
    assert keeper.undo() == [Change(path=path, before=path.read_bytes(), after=None)]
    assert keeper.restore() == []
    assert tree(home) == {}
    assert (keeper.state(), keeper.undo(), keeper.folder.exists()) == ("", [], False)


def test_a_folder_that_others_use_by_now_stays(tmp_path: Path, keeper: Keeper) -> None:
    path = tmp_path / "tool" / "settings.json"
    write(keeper, edit(path))
    (path.parent / "theirs").touch()
    keeper.restore()
    assert [p.name for p in path.parent.iterdir()] == ["theirs"]


@given(st.text(), st.integers(0, 9), st.lists(st.integers(), min_size=1, max_size=3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_what_was_there_comes_back(
    tmp_path: Path, noise: str, indent: int, values: list[int]
) -> None:
    keeper, path = Keeper(tmp_path / "kept"), tmp_path / "settings.json"
    original = b"\xef\xbb\xbf" + json.dumps({"mine": noise}, indent=indent).encode()
    path.write_bytes(original)
    for value in values:
        write(keeper, edit(path, value))
        assert path.read_bytes().startswith(b"\xef\xbb\xbf{")
    assert json.loads(path.read_text("utf-8-sig")) == {"mine": noise, "key": values[-1]}
    keeper.restore()
    assert path.read_bytes() == original


def test_a_file_in_another_encoding_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(b'{"a": "\xe4"}')
    with pytest.raises(VllamaError, match="it is not UTF-8 text"):
        plan(edit(path))


def test_lines_for_a_file_with_comments(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{} // mine")
    change = plan(edit(path))
    assert (change.differs, change.lines) == (False, '{\n  "key": 1\n}\n')
    path.write_text('{"key": 1} // mine')
    assert plan(edit(path)).lines == ""


def test_a_record_of_version_0_1_is_restored(tmp_path: Path, keeper: Keeper) -> None:
    old, new = tmp_path / "old.json", tmp_path / "tool" / "new.json"
    keeper.folder.mkdir(parents=True)
    (keeper.folder / "0-old.json").write_text("{} // mine")
    files = [
        {"path": str(old), "written": digest("{}"), "copy": "0-old.json", "made": []},
        {"path": str(new), "written": digest("[]"), "copy": None, "made": [str(new.parent)]},
    ]
    (keeper.folder / "record.json").write_text(json.dumps({"files": files}))
    new.parent.mkdir()
    old.write_text("{}")
    new.write_text("[]")
    assert keeper.state() == "written"
    assert keeper.restore() == []
    assert (old.read_text(), new.parent.exists()) == ("{} // mine", False)
    assert not keeper.folder.exists()


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_rights_and_links_stay(tmp_path: Path, keeper: Keeper) -> None:
    real, link = tmp_path / "dotfiles.json", tmp_path / "settings.json"
    real.write_text("{}")
    real.chmod(0o640)
    link.symlink_to(real)
    write(keeper, edit(link))
    assert link.is_symlink()
    assert "key" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o640
    keeper.restore()
    assert (link.is_symlink(), real.read_text()) == (True, "{}")


@pytest.mark.parametrize("mode", [0o644, 0o666, 0o640, 0o600, 0o755])
def test_a_file_with_a_key_is_this_user_s_only_until_it_is_put_back(
    tmp_path: Path, keeper: Keeper, mode: int
) -> None:
    path, new = tmp_path / "settings.json", tmp_path / "new.json"
    path.write_text("{}")
    path.chmod(mode)
    keeper.write([plan(edit(path)), plan(edit(new))])
    assert path.stat().st_mode & 0o777 == mode
    keeper.write([plan(edit(path, "sk-1")), plan(edit(new, "sk-1"))], has_key=True)
    assert {each.stat().st_mode & 0o077 for each in (path, new)} == {0}
    keeper.restore()
    assert path.read_text() == "{}" and path.stat().st_mode & 0o777 == mode


def test_a_file_that_is_gone_since(tmp_path: Path, keeper: Keeper) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("{}")
    write(keeper, edit(old), edit(new))
    old.unlink()
    new.unlink()
    assert keeper.state() == "changed since"
    assert keeper.restore() == []
    assert (old.read_text(), new.exists()) == ("{}", False)


def test_nothing_is_written_if_one_file_cannot_be_changed(tmp_path: Path, keeper: Keeper) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    bad.write_text("{ not json")
    with pytest.raises(
        VllamaError,
        match=r"cannot change '.*bad.json': Expecting property name .*: line 1 column 3",
    ):
        write(keeper, edit(good), edit(bad))
    assert (good.exists(), bad.read_text()) == (False, "{ not json")
    assert keeper.state() == ""


def test_a_write_that_fails_can_be_undone(
    tmp_path: Path, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy and the record come before the file; a half-written file never stands there."""
    path = tmp_path / "home" / "settings.json"
    path.parent.mkdir()
    path.write_text("{}")
    changes = [plan(edit(path))]
    replace = Path.replace

    def failing(self: Path, target: Path) -> Path:
        if target == path:
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(VllamaError, match="No space left on device"):
        keeper.write(changes)
    monkeypatch.undo()
    assert tree(path.parent) == {"settings.json": b"{}"}
    assert keeper.restore() == []
    assert path.read_text() == "{}"


def test_a_copy_that_is_gone(tmp_path: Path, keeper: Keeper) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{}")
    write(keeper, edit(path))
    (keeper.folder / "0-settings.json").unlink()
    with pytest.raises(VllamaError, match=r"cannot restore '.*settings.json'"):
        keeper.restore()
    assert "key" in path.read_text()


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(VllamaError, match=f"cannot read '{tmp_path}'"):
        plan(edit(tmp_path))


def test_a_record_that_is_damaged(keeper: Keeper) -> None:
    keeper.folder.mkdir(parents=True)
    (keeper.folder / "record.json").write_bytes(b"\x00{")
    with pytest.raises(VllamaError, match=r"record\.json"):
        keeper.state()
