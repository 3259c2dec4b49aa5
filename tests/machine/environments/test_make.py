"""Environments: made once, continued, locked, cleaned up; by a stand-in for uv, and by uv."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from tests.machine.environments.installer import Fake
from vllama.base.errors import EnvironmentFailed
from vllama.machine.environments.layout import Step, find_existing, get_python, mark_complete
from vllama.machine.environments.make import install_steps, remove, remove_half_installed

pytestmark = pytest.mark.slow  # processes of their own

A = Step(requirements=("a==1",))
B = Step(requirements=("b==2",), extra_args=("--no-deps",))
LIMIT_S = 240.0


@pytest.fixture
def uv(tmp_path: Path) -> Fake:
    return Fake(tmp_path / "uv")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "environments" / "engine"


def whole(folder: Path) -> None:
    """Write an environment as an installation of `A` leaves it."""
    get_python(folder).parent.mkdir(parents=True)
    get_python(folder).symlink_to(sys.executable)
    mark_complete(folder, [A])


def made(uv: Fake, folder: Path, *steps: Step, **more) -> Path:
    return asyncio.run(install_steps(folder, steps, environ=uv.environ, **more))


def temporary_files(uv: Fake, folder: Path) -> list[Path]:
    """Return what the installer left in the folder for temporary files that it was given."""
    given = {Path(call["env"]["TMPDIR"]) for call in uv.calls}
    assert all(folder in path.parents for path in given)
    return [path for path in given if path.exists()] + list(folder.glob("tmp-*"))


def test_it_is_made_once(uv: Fake, folder: Path) -> None:
    assert find_existing(folder) is None
    lines: list[str] = []
    assert made(uv, folder, A, B, on_line=lines.append) == get_python(folder)
    assert "Downloading a (7.0MiB)" in lines and " Downloaded b" in lines
    assert temporary_files(uv, folder) == []
    assert [call["args"] for call in uv.calls] == [
        ["venv", "--allow-existing", "--python", sys.executable, str(folder)],
        ["pip", "install", "--python", str(get_python(folder)), "--", "a==1"],
        ["pip", "install", "--python", str(get_python(folder)), "--no-deps", "--", "b==2"],
    ]
    made(uv, folder, A, B)
    assert len(uv.calls) == 3


@pytest.mark.parametrize(
    ("requirements", "arguments", "is_it"),
    [
        (None, None, True),
        (["a==1"], None, True),
        (["a==1"], [], True),
        (["a==1"], ["--pre"], False),
        (["a==2"], None, False),
        ([], None, False),
    ],
)
def test_only_what_was_made_for_the_same_counts(
    folder: Path, requirements, arguments, is_it: bool
) -> None:
    whole(folder)
    assert (find_existing(folder, requirements, arguments) is not None) is is_it


def test_other_requirements_are_installed_into_the_same_environment(uv: Fake, folder: Path) -> None:
    made(uv, folder, A)
    made(uv, folder, B)
    assert uv.verbs == ["venv", "pip", "pip"]
    assert find_existing(folder, ["b==2"])


def test_a_broken_off_one_is_continued(uv: Fake, folder: Path) -> None:
    step = Step(requirements=("broken-once==1",))
    with pytest.raises(EnvironmentFailed, match="failed to write: No space left on device"):
        made(uv, folder, A, step)
    assert find_existing(folder) is None
    made(uv, folder, A, step)
    assert uv.verbs == ["venv", "pip", "pip", "pip", "pip"]
    assert find_existing(folder)


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ([Step(requirements=("nowhere",))], True),
        ([B, Step(requirements=("nowhere",))], False),
    ],
    ids=["nothing was changed", "half of it was done"],
)
def test_a_failed_upgrade_keeps_what_is_there(
    uv: Fake, folder: Path, steps: list[Step], kept: bool
) -> None:
    made(uv, folder, A)
    with pytest.raises(EnvironmentFailed):
        made(uv, folder, *steps)
    assert (find_existing(folder, ["a==1"]) is not None) is kept


def test_what_fails_names_the_cause_and_the_log(uv: Fake, folder: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="Because nowhere was not found") as caught:
        made(uv, folder, Step(requirements=("nowhere",)))
    assert str(folder / "install.log") in str(caught.value.hint)


@pytest.mark.parametrize(("name", "starts"), [("good", True), ("mute", False)])
def test_an_engine_that_does_not_start_does_not_count(
    uv: Fake, folder: Path, name: str, starts: bool
) -> None:
    step = Step(requirements=(f"{name}==3",))
    try:
        made(uv, folder, step, trial=(name, "--version"))
    except EnvironmentFailed as error:
        assert f"does not start: {name} 3" in error.message
    assert (find_existing(folder) is not None) is starts


def test_two_at_once_install_once(uv: Fake, folder: Path) -> None:
    async def both() -> None:
        one, other = (install_steps(folder, [A], environ=uv.environ) for _ in range(2))
        assert await asyncio.gather(one, other) == [get_python(folder)] * 2

    asyncio.run(both())
    assert uv.verbs == ["venv", "pip"]


def test_who_waits_is_told(uv: Fake, folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    lock.acquire()
    told: list[str] = []

    def on_line(line: str) -> None:
        told.append(line)
        lock.release()

    made(uv, folder, A, on_line=on_line)
    assert told[0] == "waiting for another vllama installation"


async def hanging(uv: Fake, folder: Path) -> asyncio.Task[Path]:
    """Start an installation that hangs; return when it does."""
    started = asyncio.Event()
    steps = [Step(requirements=("hang==1",))]
    task = asyncio.create_task(
        install_steps(folder, steps, environ=uv.environ, on_line=lambda line: started.set())
    )
    async with asyncio.timeout(LIMIT_S):
        await started.wait()
    return task


def test_a_cancelled_installation_leaves_no_process(uv: Fake, folder: Path) -> None:
    async def cancel() -> None:
        task = await hanging(uv, folder)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert not psutil.pid_exists(uv.calls[-1]["pid"])
    assert temporary_files(uv, folder) == []
    assert find_existing(folder) is None
    made(uv, folder, A)  # and its lock is free


@pytest.mark.parametrize("guard_too", [False, True])
def test_a_killed_vllama_leaves_no_installer(uv: Fake, folder: Path, guard_too: bool) -> None:
    code = (
        "import asyncio, pathlib; from vllama.machine.environments.make import *; asyncio.run("
        f"install_steps(pathlib.Path({str(folder)!r}), [Step(requirements=('hang==1',))],"
        f" environ={uv.environ!r}, on_line=lambda line: print(line, flush=True)))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as vllama:
        assert vllama.stdout and b"hang" in vllama.stdout.readline()
        installer = psutil.Process(uv.calls[-1]["pid"])
        guard = installer.parent()
        assert guard
        if guard_too:  # nobody is left who could clear up
            guard.suspend()
        vllama.kill()
        if guard_too:
            guard.kill()
    assert psutil.wait_procs([installer, guard], timeout=LIMIT_S)[1] == []
    if guard_too:
        assert temporary_files(uv, folder)
        made(uv, folder, A)
    assert temporary_files(uv, folder) == []


def test_nothing_diverts_the_installer(uv: Fake, folder: Path) -> None:
    uv.environ |= {"UV_TARGET": "/elsewhere", "PIP_TARGET": "/elsewhere", "PYTHONPATH": "/mine",
                   "SECRET": "s", "PIP_INDEX_URL": "http://mirror.test/simple"}  # fmt: skip
    made(uv, folder, A, extra_env={"CMAKE_ARGS": "-DX=1"})
    env = uv.calls[-1]["env"]
    assert not {"UV_TARGET", "PIP_TARGET", "PYTHONPATH", "SECRET"} & set(env)
    assert env["UV_DEFAULT_INDEX"] == "http://mirror.test/simple"
    assert env["CMAKE_ARGS"] == "-DX=1"


def test_what_a_kill_left_half_installed_is_forgotten(uv: Fake, folder: Path) -> None:
    made(uv, folder, A, B)
    site = next(folder.glob("lib/*/site-packages"))
    (site / "a-1.dist-info" / "RECORD").unlink()
    remove_half_installed(folder)
    assert [path.name for path in site.iterdir()] == ["b-2.dist-info"]


def test_an_environment_whose_python_has_gone_does_not_count(uv: Fake, folder: Path) -> None:
    made(uv, folder, A)
    get_python(folder).unlink()
    assert find_existing(folder) is None
    made(uv, folder, A)
    assert uv.verbs == ["venv", "pip", "venv", "pip"]


@pytest.mark.parametrize("marker", ["", "{}", "[]", '{"requirements": 1}', "\0"])
def test_a_damaged_marker_counts_as_none(folder: Path, marker: str) -> None:
    whole(folder)
    (folder / "vllama-environment.json").write_text(marker)
    assert find_existing(folder) is None


def test_remove(folder: Path) -> None:
    remove(folder)  # what is not there is removed already
    whole(folder)
    lock = folder.with_name(f".{folder.name}.lock")
    with FileLock(lock), pytest.raises(EnvironmentFailed, match="another vllama is installing"):
        remove(folder)
    assert find_existing(folder)
    remove(folder)
    assert not folder.exists()


def test_a_folder_that_cannot_be_made(uv: Fake, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFailed, match="File exists"):
        made(uv, tmp_path / "file" / "engine", A)


@pytest.mark.parametrize("by_file", [False, True], ids=["variables", "pip.conf"])
def test_the_uv_that_comes_with_us_obeys_settings_of_pip(tmp_path: Path, by_file: bool) -> None:
    """Without uv on PATH: from a folder of wheels that only pip was told of, with no index."""
    from zipfile import ZipFile

    wheels = tmp_path / "wheels"
    wheels.mkdir()
    info = "colors-1.0.dist-info"
    with ZipFile(wheels / "colors-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("colors.py", "NAME = 'red'\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: colors\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        wheel.writestr(f"{info}/RECORD", "")
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    if by_file:
        (tmp_path / ".config" / "pip").mkdir(parents=True)
        text = f"[global]\nno-index = true\n[install]\nfind-links =\n    {wheels}\n"
        (tmp_path / ".config" / "pip" / "pip.conf").write_text(text)
    else:
        environ |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    folder = tmp_path / "engine"

    def install(*requirements: str) -> Path:
        steps = [Step(requirements=requirements)]
        return asyncio.run(install_steps(folder, steps, environ=environ, trial=("python", "-V")))

    with pytest.raises(EnvironmentFailed, match="Because shapes was not found"):
        install("colors", "shapes")
    python = install("colors==1.0")
    said = subprocess.run([python, "-c", "import colors; print(colors.NAME)"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert said.stdout == "red\n"
    marker = json.loads((folder / "vllama-environment.json").read_text())
    assert marker == {"requirements": ["colors==1.0"], "arguments": []}


def test_pytorch_without_an_index_of_its_own(uv: Fake, folder: Path) -> None:
    lines: list[str] = []
    torch = Step(requirements=("torch==2",))
    made(uv, folder, torch, extra_env={"UV_TORCH_BACKEND": "auto"}, on_line=lines.append)
    _, chosen, usual = uv.calls
    assert chosen["args"] == usual["args"]
    assert chosen["env"]["UV_TORCH_BACKEND"] == "auto" and "UV_TORCH_BACKEND" not in usual["env"]
    assert "cannot reach PyTorch's own index: using its default build" in lines
    assert find_existing(folder, ["torch==2"])
