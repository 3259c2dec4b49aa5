"""The sweep ends what a dead supervisor left, and nobody else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.supervise.conftest import Lab, eventually
from vllama.supervise import tree
from vllama.supervise.leftovers import RunFile, list_leftovers, make_scratch_folder, sweep

Process = subprocess.Popen[bytes]


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    """An innocent process in a session of its own."""
    code = "import time; time.sleep(600)"
    proc = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, tmp_path], start_new_session=True
    )
    with proc:
        yield proc
        proc.kill()


def identity(pid: int) -> dict[str, float]:
    return {"pid": pid, "started_s": psutil.Process(pid).create_time()}


def alive(proc: Process) -> bool:
    return tree.find_process(proc.pid) is not None


def dead() -> dict[str, float]:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", ""]) as proc:
        return identity(proc.pid)


def write(run_dir: Path, name: str, **changes: Any) -> Path:
    run_dir.mkdir(exist_ok=True)
    path = run_dir / f"1-{name}.json"
    record: dict[str, Any] = {
        "name": name,
        "supervisor": dead(),
        "engine": None,
        "descendants": [],
        "argv": [],
    }
    path.write_text(json.dumps(record | changes))
    return path


@pytest.mark.slow
def test_an_engine_of_a_dead_supervisor_is_ended_with_all_below(lab: Lab) -> None:
    argv = lab.argv("--spawn-child", "--spawn-setsid", "--ignore-term")
    with subprocess.Popen(argv, start_new_session=True, stdout=subprocess.DEVNULL) as engine:
        eventually(lambda: len(lab.pids()) == 3)
        path = write(lab.run_dir, "orphan", engine=identity(engine.pid))
        assert sweep(lab.run_dir, term_s=0.1) == ["orphan"]
        assert not path.exists()
    assert not lab.survivors()


def test_descendants_are_ended_though_the_engine_is_dead(lab: Lab, sleeper: Process) -> None:
    write(lab.run_dir, "worker", engine=dead(), descendants=[identity(sleeper.pid)])
    assert sweep(lab.run_dir) == ["worker"]
    assert not alive(sleeper)


@pytest.mark.slow
def test_who_came_after_the_file_was_written_is_known_by_its_folder(tmp_path: Path) -> None:
    """A child that the engine started while it served, in a session of its own, say."""
    code = "import os, time; os.fork() or os.setsid(); print(1, flush=True); time.sleep(600)"
    scratch = make_scratch_folder()

    def child(folder: Path) -> Process:
        argv = [sys.executable, "-I", "-S", "-c", code]
        env = {**os.environ, "TMPDIR": str(folder)}
        return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, start_new_session=True)

    with child(scratch) as late, child(scratch.with_name("vllama-other")) as stranger:
        for proc in (late, stranger):
            assert proc.stdout and [proc.stdout.readline() for _ in range(2)]
        below = psutil.Process(late.pid).children()
        write(tmp_path / "run", "daemon", engine=dead(), scratch=str(scratch))
        ((name, pids),) = list_leftovers(tmp_path / "run")
        assert (name, set(pids)) == ("daemon", {late.pid, *(proc.pid for proc in below)})
        assert sweep(tmp_path / "run", term_s=1.0) == ["daemon"]
        assert len(below) == 1 and not any(tree.is_alive(proc) for proc in below)
        assert not alive(late) and not scratch.exists()
        assert alive(stranger)
        for proc in (stranger, *psutil.Process(stranger.pid).children()):
            proc.kill()


def test_a_live_supervisor_is_left_alone(lab: Lab, sleeper: Process) -> None:

    path = write(
        lab.run_dir, "live", supervisor=identity(os.getpid()), engine=identity(sleeper.pid)
    )
    assert sweep(lab.run_dir) == []
    assert path.exists() and sleeper.poll() is None


def test_a_stranger_with_the_same_pid_is_left_alone(lab: Lab, sleeper: Process) -> None:
    old = identity(sleeper.pid)
    old["started_s"] -= 100.0
    path = write(lab.run_dir, "stale", engine=old, descendants=[old])
    assert sweep(lab.run_dir) == []
    assert not path.exists() and sleeper.poll() is None


def test_a_supervisor_whose_pid_was_given_away_is_dead(lab: Lab, sleeper: Process) -> None:

    other = identity(os.getpid())
    other["started_s"] -= 100.0
    write(lab.run_dir, "orphan", supervisor=other, engine=identity(sleeper.pid))
    assert sweep(lab.run_dir) == ["orphan"]
    assert not alive(sleeper)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"supervisor": {"pid": 1}}', "null"])
def test_a_damaged_file_is_removed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "1-x.json"
    path.write_text(text)
    assert sweep(tmp_path) == []
    assert not path.exists()


def test_no_folder_is_nothing_to_do(tmp_path: Path) -> None:
    assert sweep(tmp_path / "none") == []


def test_a_run_file_names_all_and_is_removed(tmp_path: Path, sleeper: Process) -> None:
    argv, pid = ["x", "y", "z", "secret"], sleeper.pid
    file = RunFile(tmp_path / "run", name="a/b", pid=pid, argv=argv, scratch=tmp_path)
    file.write([psutil.Process(sleeper.pid), psutil.Process()])
    record = json.loads(file.path.read_text())
    assert file.path.parent == tmp_path / "run"
    assert file.path.name.startswith(f"{sleeper.pid}-a-b")
    assert record["engine"]["pid"] == sleeper.pid
    assert record["argv"] == ["x", "y", "z"]
    assert [item["pid"] for item in record["descendants"]] == [psutil.Process().pid]
    assert record["supervisor"]["pid"] == psutil.Process().pid
    assert sweep(tmp_path / "run") == []
    assert file.path.exists()
    file.remove()
    file.remove()
    assert not list((tmp_path / "run").iterdir())
