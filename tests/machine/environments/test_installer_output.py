"""What installers say, as tables of recorded output: causes of failures, progress, variables."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.machine.environments.failures import find_cause
from vllama.machine.environments.installer import (
    DIVERTING,
    PIP_TO_UV,
    Progress,
    Reader,
    build_installer_env,
    forbids_index,
    read_pip_settings,
)

PIP_COMPILER = """\
  -- The CXX compiler identification is unknown
  CMake Error at CMakeLists.txt:3 (project):
    No CMAKE_CXX_COMPILER could be found.
  *** CMake configuration failed
  ERROR: Failed building wheel for llama-cpp-python
ERROR: Failed to build installable wheels for some pyproject.toml based projects"""

PIP_BUILD = """\
  /tmp/x/llama.cpp/ggml.c:12:10: fatal error: something is wrong
  ninja: build stopped: subcommand failed.
  ERROR: Failed building wheel for llama-cpp-python
ERROR: Could not build wheels for llama-cpp-python, which is required to install it"""

UV_PYTHON = """\
error: No solution found when resolving dependencies
  cause: Because the current Python version (3.11.7) does not satisfy Python>=3.12 and \
sglang-jax==0.0.2 depends on Python>=3.12, we can conclude that sglang-jax==0.0.2 cannot be used."""

UV_CONFLICT = """\
error: No solution found when resolving dependencies
  cause: Because you require click==8.0 and click==8.1, we can conclude that your requirements \
are unsatisfiable."""

UV_REFUSED = """\
error: Request failed after 3 retries in 11.3s
  cause: Failed to fetch: https://localhost:1/simple/shapes/
  cause: error sending request for url (https://localhost:1/simple/shapes/)
  cause: client error (Connect)
  cause: tcp connect error
  cause: Connection refused (os error 111)"""

UV_CERTIFICATE = """\
error: Failed to fetch: https://index.test/simple/colours/
  cause: error sending request for url (https://index.test/simple/colours/)
  cause: client error (Connect)
  cause: invalid peer certificate: UnknownIssuer"""

UV_OFFLINE = """\
error: Failed to fetch: `https://index.test/simple/xllamacpp/`
  cause: Request failed after 3 retries
  cause: error sending request for url (https://index.test/simple/xllamacpp/)
  cause: dns error: failed to lookup address information: Temporary failure in name resolution"""


@pytest.mark.parametrize(
    ("output", "cause", "hint"),
    [
        (UV_OFFLINE, "the package index cannot be reached", "goes on where it was"),
        (UV_REFUSED, "the package index cannot be reached", "HTTPS_PROXY"),
        (UV_CERTIFICATE, "certificate is not trusted", "UV_SYSTEM_CERTS"),
        (UV_PYTHON, "it wants Python >=3.12, this is 3.11.7", "such a Python"),
        (UV_CONFLICT, "its requirements contradict each other", None),
        (PIP_COMPILER, "there is no C++ compiler", "build-essential"),
        (PIP_BUILD, "llama-cpp-python could not be compiled here", None),
        ("error: command 'gcc' failed: No such file or directory", "no C++ compiler", "xcode"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
         "no space is left on the disk", "free some space"),
        ("ERROR: x-1-cp39-cp39-win_amd64.whl is not a supported wheel on this platform.",
         "x-1-cp39-cp39-win_amd64.whl is not for this machine", None),
        ("  cause: Because shapes was not found in the provided package locations and you require "
         "shapes, we can conclude that your requirements are unsatisfiable.", "no shapes", None),
        ("  cause: Because there is no version of vllm==99 and you require vllm==99, we can "
         "conclude that your requirements are unsatisfiable.", "there is no vllm==99", None),
        ("  cause: Hash mismatch for `x==1.0`", "not what the index announced", "again"),
        ("error: No interpreter found for Python 3.12 in virtual environments or search path",
         "Python 3.12 is not on this machine", "install that Python"),
        ("OSError: [Errno 13] Permission denied: '/opt/x'", "'/opt/x' cannot be written", None),
        ("Collecting x\nERROR: something never seen.", "something never seen", None),
        ("Collecting x\nsomething odd", "something odd", None),
        ("", "exit code 1", None),
    ],
)  # fmt: skip
def test_causes(output: str, cause: str, hint: str | None) -> None:
    found = find_cause(output.splitlines(), 1)
    assert cause in found.cause
    assert (hint is None and found.hint is None) or (hint and hint in str(found.hint)), found.hint


@pytest.mark.parametrize(("code", "cause"), [(-9, "memory is short"), (-15, "signal 15")])
def test_a_signal_is_a_cause(code: int, cause: str) -> None:
    assert cause in find_cause(["Collecting x"], code).cause


@given(st.lists(st.text(max_size=80), max_size=20), st.integers(-20, 255))
def test_every_output_has_a_cause(output: list[str], code: int) -> None:
    assert find_cause(output, code).cause


MB = 1_000_000
TORCH = "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        (["Collecting torch==2.13.0"], Progress(text="looking for torch==2.13.0", minor=True)),
        ([f"  Downloading {TORCH} (900.1 MB)"],
         Progress(text="fetching torch 2.13.0", done_bytes=0, total_bytes=900_100_000)),
        ([f"  Downloading {TORCH} (900.1 MB)", "Progress 262144 of 900100000"],
         Progress(text="fetching torch 2.13.0", done_bytes=262144, total_bytes=900_100_000)),
        (["Downloading six-1.0-py3-none-any.whl (11 kB)"],
         Progress(text="fetching six 1.0", minor=True, done_bytes=0, total_bytes=11_000)),
        (["Downloading six-1.0-py3-none-any.whl (11 kB)", "Progress 500 of 11000"],
         Progress(text="fetching six 1.0", minor=True, done_bytes=500, total_bytes=11_000)),
        (["Downloading llama_cpp_python-0.3.36.tar.gz (75.0 MB)"],
         Progress(text="fetching llama_cpp_python 0.3.36", done_bytes=0, total_bytes=75 * MB)),
        (["Downloading xllamacpp (32.0MiB)", " Downloaded xllamacpp"],
         Progress(text="fetching xllamacpp", done_bytes=2**25, total_bytes=2**25)),
        ([" Downloaded xllamacpp"], None),
        (["  Building wheel for llama-cpp-python (pyproject.toml): still running..."],
         Progress(text="compiling llama-cpp-python")),
        (["   Building llama-cpp-python==0.3.36"],
         Progress(text="compiling llama-cpp-python==0.3.36")),
        (["Installing collected packages: a, b"], Progress(text="installing the packages")),
        (["Prepared 8 packages in 3.61s"], Progress(text="installing the packages")),
        (["trying vllm --version"], Progress(text="trying vllm --version")),
        (["Looking in indexes: https://index.test/simple"], None),
        ([""], None),
    ],
)  # fmt: skip
def test_progress(lines: list[str], last: Progress | None) -> None:
    reader = Reader()
    assert [reader.read(line) for line in lines][-1] == last


@given(st.text(max_size=200))
def test_no_line_upsets_the_reader(line: str) -> None:
    Reader().read(line)


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
