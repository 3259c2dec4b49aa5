"""What installers say, as tables of recorded output: causes of failures, progress, variables."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.machine.environments.installer import (
    DIVERTING,
    MAX_REASON,
    PIP_TO_UV,
    UvProgress,
    UvReader,
    build_installer_env,
    explain_failure,
    forbids_index,
    read_pip_settings,
)

UV_PYTHON = """\
Resolved 3 packages in 7ms
error: No solution found when resolving dependencies
  cause: Because the current Python version (3.11.7) does not satisfy Python>=3.12 and \
sglang-jax==0.0.2 depends on Python>=3.12, we can conclude that sglang-jax==0.0.2 cannot be used."""

UV_NO_INDEX = """\
error: No solution found when resolving dependencies
  cause: Because shapes was not found in the provided package locations and you require shapes, \
we can conclude that your requirements are unsatisfiable.

hint: Packages were unavailable because index lookups were disabled (try: `--find-links <uri>`)"""

UV_REFUSED = """\
error: Request failed after 3 retries in 11.3s
  cause: Failed to fetch: https://localhost:1/simple/shapes/
  cause: tcp connect error
  cause: Connection refused (os error 111)"""

UV_BUILD = """\
   Building paint @ file:///paint
error: Failed to build `paint @ file:///paint`
  cause: The build backend returned an error
  cause: Call to `nope.build_wheel` failed (exit status: 1)

         [stderr]
         ModuleNotFoundError: No module named 'nope'

hint: This error likely indicates that `paint@1` depends on `nope`."""

UV_OLDER = """\
  × No solution found when resolving dependencies:
  ╰─▶ Because you require click==8.0 and click==8.1, we can conclude that your
      requirements are unsatisfiable."""


@pytest.mark.parametrize(
    ("output", "reason", "hint"),
    [
        (UV_PYTHON, "No solution found when resolving dependencies: Because the current Python "
         "version (3.11.7) does not satisfy Python>=3.12 and sglang-jax==0.0.2 depends on "
         "Python>=3.12, we can conclude that sglang-jax==0.0.2 cannot be used", None),
        (UV_NO_INDEX, "No solution found when resolving dependencies: Because shapes was not "
         "found in the provided package locations and you require shapes, we can conclude that "
         "your requirements are unsatisfiable",
         "Packages were unavailable because index lookups were disabled "
         "(try: `--find-links <uri>`)"),
        (UV_REFUSED, "Request failed after 3 retries in 11.3s: Failed to fetch: "
         "https://localhost:1/simple/shapes/: tcp connect error: "
         "Connection refused (os error 111)", None),
        (UV_BUILD, "Failed to build `paint @ file:///paint`: The build backend returned an error: "
         "Call to `nope.build_wheel` failed (exit status: 1)",
         "This error likely indicates that `paint@1` depends on `nope`."),
        (UV_OLDER, "No solution found when resolving dependencies: Because you require "
         "click==8.0 and click==8.1, we can conclude that your requirements are unsatisfiable",
         None),
        ("Resolved x\nsomething odd\n", "something odd", None),
        ("", "the installer exited with code 1", None),
    ],
)  # fmt: skip
def test_the_reason_is_uvs_own(output: str, reason: str, hint: str | None) -> None:
    assert explain_failure(output.splitlines(), 1) == (reason, hint)


@pytest.mark.parametrize(("code", "reason"), [(-9, "memory ran out"), (-15, "signal 15")])
def test_a_signal_is_a_reason(code: int, reason: str) -> None:
    assert reason in explain_failure(["Collecting x"], code)[0]


@given(st.lists(st.text(max_size=80), max_size=20), st.integers(-20, 255))
def test_every_output_has_a_reason(output: list[str], code: int) -> None:
    reason, _ = explain_failure(output, code)
    assert reason and len(reason) <= MAX_REASON


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        (["Downloading torch (858.5MiB)"],
         UvProgress(text="fetching torch", done_bytes=0, total_bytes=900_202_496)),
        (["Downloading six (11.0KiB)"],
         UvProgress(text="fetching six", minor=True, done_bytes=0, total_bytes=11_264)),
        (["Downloading xllamacpp (32.0MiB)", " Downloaded xllamacpp"],
         UvProgress(text="fetching xllamacpp", done_bytes=2**25, total_bytes=2**25)),
        ([" Downloaded xllamacpp"], None),
        (["   Building llama-cpp-python==0.3.36"],
         UvProgress(text="compiling llama-cpp-python==0.3.36")),
        (["Prepared 8 packages in 3.61s"], UvProgress(text="installing the packages")),
        (["trying vllm --version"], UvProgress(text="trying vllm --version")),
        (["PyTorch's own index is gone"], UvProgress(text="PyTorch's own index is gone")),
        (["Using Python 3.11.7 environment at: x"], None),
        ([""], None),
    ],
)  # fmt: skip
def test_progress(lines: list[str], last: UvProgress | None) -> None:
    reader = UvReader()
    assert [reader.read(line) for line in lines][-1] == last


@given(st.text(max_size=200))
def test_no_line_upsets_the_reader(line: str) -> None:
    UvReader().read(line)


NAMES = st.sampled_from(
    sorted({*DIVERTING, *PIP_TO_UV, "PATH", "PYTHONPATH", "UV_LINK_MODE", "SECRET", "https_proxy"})
)
SETTINGS = st.dictionaries(
    st.sampled_from(sorted(PIP_TO_UV)), st.text("ab.", min_size=1), max_size=3
)


@given(st.dictionaries(NAMES, st.text("xyz/", min_size=1, max_size=5)), SETTINGS)
def test_variables(environ: dict[str, str], settings: dict[str, str]) -> None:
    extra = {"CMAKE_ARGS": "x", "UV_LINK_MODE": "ours"}
    env = build_installer_env(environ, extra, settings)
    assert not {*DIVERTING, "PYTHONPATH", "SECRET"} & set(env)
    for name in ("PATH", "https_proxy"):
        assert env.get(name) == environ.get(name)
    assert env["UV_LINK_MODE"] == environ.get("UV_LINK_MODE", "ours")
    for pips, uvs in PIP_TO_UV.items():  # uv's own setting, then pip's variable, then its file
        assert env.get(uvs) == environ.get(uvs, environ.get(pips, settings.get(pips)))
    assert env["CMAKE_ARGS"] == "x"


def test_several_places_for_pip_are_several_for_uv() -> None:
    env = build_installer_env({"PIP_FIND_LINKS": "/a  /b", "PIP_EXTRA_INDEX_URL": "u v"})
    assert env["UV_FIND_LINKS"] == "/a,/b"
    assert env["UV_INDEX"] == "u v"


@pytest.mark.parametrize(
    ("value", "forbidden"), [("1", True), ("true", True), ("0", False), ("off", False), ("", False)]
)
def test_pip_may_be_told_to_ask_no_index(value: str, forbidden: bool) -> None:
    assert forbids_index({"PIP_NO_INDEX": value}, {}) is forbidden
    assert forbids_index({}, {"PIP_NO_INDEX": value}) is forbidden


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_files_of_pip_are_read_in_its_order(tmp_path: Path) -> None:
    home, prefix = tmp_path / "home", tmp_path / "prefix"
    environ = {"HOME": str(home)}
    assert "PIP_INDEX_URL" not in read_pip_settings(environ, prefix)
    write(home / ".pip/pip.conf", "[global]\nindex-url = old\nextra-index-url = a%b\n")
    write(home / ".config/pip/pip.conf", "[global]\nindex-url = new\n[freeze]\nindex-url = no\n")
    found = read_pip_settings(environ, prefix)
    assert (found["PIP_INDEX_URL"], found["PIP_EXTRA_INDEX_URL"]) == ("new", "a%b")
    write(prefix / "pip.conf", "[global]\nindex-url = of-python\n[install]\nindex-url = install\n")
    assert read_pip_settings(environ, prefix)["PIP_INDEX_URL"] == "install"
    named = write(tmp_path / "named", "[install]\nindex-url = named\n")
    more = {**environ, "PIP_CONFIG_FILE": str(named)}
    assert read_pip_settings(more, prefix)["PIP_INDEX_URL"] == "named"
    assert read_pip_settings({**environ, "PIP_CONFIG_FILE": "/dev/null"}, prefix) == {}


@pytest.mark.parametrize("content", ["no section", "[global\n", "[global]\nindex-url\n", "\xff\0"])
def test_a_damaged_file_of_pip_has_no_settings(tmp_path: Path, content: str) -> None:
    write(tmp_path / ".config/pip/pip.conf", content)
    assert "PIP_INDEX_URL" not in read_pip_settings({"HOME": str(tmp_path)}, tmp_path)


def test_a_file_of_uv_comes_before_those_of_pip(tmp_path: Path) -> None:
    write(tmp_path / ".config/pip/pip.conf", "[global]\nindex-url = pips\n")
    write(tmp_path / ".config/uv/uv.toml", 'index-url = "uvs"\n')
    assert read_pip_settings({"HOME": str(tmp_path)}, tmp_path) == {}
