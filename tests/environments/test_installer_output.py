"""What installers say, as tables of recorded output: causes of failures, progress, variables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.environments.failures import cause_of
from vllama.environments.installer_env import DIVERTING, PIP_TO_UV, installer_environment
from vllama.environments.installer_output import Progress, Reader

PIP_OFFLINE = """\
WARNING: Retrying (Retry(total=0, connect=None, read=None)) after connection broken by \
'NewConnectionError("HTTPSConnection(host='index.test', port=443): Failed to establish a new \
connection: [Errno -3] Temporary failure in name resolution")': /simple/xllamacpp/
ERROR: Could not find a version that satisfies the requirement xllamacpp (from versions: none)
ERROR: No matching distribution found for xllamacpp"""

PIP_PYTHON = """\
ERROR: Ignored the following versions that require a different python version: 0.0.2 \
Requires-Python >=3.12; 0.0.3 Requires-Python >=3.12
ERROR: Could not find a version that satisfies the requirement sglang-jax==0.0.2 (from versions: 0)
ERROR: No matching distribution found for sglang-jax==0.0.2"""

PIP_CONFLICT = """\
ERROR: Cannot install click==8.0 and click==8.1 because these package versions have conflicting \
dependencies.
The conflict is caused by:
ERROR: ResolutionImpossible: for help visit https://pip.test/"""

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

UV_OFFLINE = """\
error: Failed to fetch: `https://index.test/simple/xllamacpp/`
  cause: Request failed after 3 retries
  cause: error sending request for url (https://index.test/simple/xllamacpp/)
  cause: dns error: failed to lookup address information: Temporary failure in name resolution"""


@pytest.mark.parametrize(
    ("output", "cause", "hint"),
    [
        (PIP_OFFLINE, "the package index cannot be reached", "HTTPS_PROXY"),
        (UV_OFFLINE, "the package index cannot be reached", "goes on where it was"),
        (PIP_PYTHON, "sglang-jax==0.0.2 wants Python >=3.12", "such a Python"),
        (UV_PYTHON, "it wants Python >=3.12, this is 3.11.7", "such a Python"),
        (PIP_CONFLICT, "its requirements contradict each other", None),
        (UV_CONFLICT, "its requirements contradict each other", None),
        (PIP_COMPILER, "there is no C++ compiler", "build-essential"),
        (PIP_BUILD, "llama-cpp-python could not be compiled here", None),
        ("error: command 'gcc' failed: No such file or directory", "no C++ compiler", "xcode"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
         "no space is left on the disk", "free some space"),
        ("ERROR: x-1-cp39-cp39-win_amd64.whl is not a supported wheel on this platform.",
         "x-1-cp39-cp39-win_amd64.whl is not for this machine", None),
        ("ERROR: No matching distribution found for vllm==99", "there is no vllm==99", None),
        ("  cause: Because there is no version of vllm==99 and you require vllm==99, we can "
         "conclude that your requirements are unsatisfiable.", "there is no vllm==99", None),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate'))\n"
         "ERROR: No matching distribution found for x", "certificate is not trusted", "SSL_CERT"),
        ("The virtual environment was not created successfully because ensurepip is not available.",
         "this Python cannot make environments", "python3-venv"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
         "not what the index announced", "again"),
        ("error: No interpreter found for Python 3.12 in virtual environments or search path",
         "Python 3.12 is not on this machine", "install that Python"),
        ("OSError: [Errno 13] Permission denied: '/opt/x'", "'/opt/x' cannot be written", None),
        ("Collecting x\nERROR: something never seen.", "something never seen", None),
        ("Collecting x\nsomething odd", "something odd", None),
        ("", "exit code 1", None),
    ],
)  # fmt: skip
def test_causes(output: str, cause: str, hint: str | None) -> None:
    found = cause_of(output.splitlines(), 1)
    assert cause in found.cause
    assert (hint is None and found.hint is None) or (hint and hint in str(found.hint)), found.hint


@pytest.mark.parametrize(("code", "cause"), [(-9, "memory is short"), (-15, "signal 15")])
def test_a_signal_is_a_cause(code: int, cause: str) -> None:
    assert cause in cause_of(["Collecting x"], code).cause


@given(st.lists(st.text(max_size=80), max_size=20), st.integers(-20, 255))
def test_every_output_has_a_cause(output: list[str], code: int) -> None:
    assert cause_of(output, code).cause


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
    sorted({*DIVERTING, *PIP_TO_UV, "PATH", "PYTHONPATH", "PIP_PROXY", "SECRET", "https_proxy"})
)


@given(st.dictionaries(NAMES, st.text(min_size=1, max_size=5)))
def test_variables(environ: dict[str, str]) -> None:
    env = installer_environment(environ, {"CMAKE_ARGS": "x", "PIP_PROXY": "ours"})
    assert not {*DIVERTING, "PYTHONPATH", "SECRET"} & set(env)
    for name in ("PATH", "https_proxy"):
        assert env.get(name) == environ.get(name)
    assert env["PIP_PROXY"] == environ.get("PIP_PROXY", "ours")
    for pips, uvs in PIP_TO_UV.items():
        assert env.get(uvs) == environ.get(uvs, environ.get(pips))
    assert env["CMAKE_ARGS"] == "x"
