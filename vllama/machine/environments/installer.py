"""uv: its command lines, the environment it is given, and what its lines say. Runs nothing itself.

It may see an allow-list of the user's variables, and the user's settings of pip, as uv's.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

import uv

from vllama.base.errors import EnvironmentFailed
from vllama.base.units import parse_bytes
from vllama.machine.environments.layout import get_python

Version = tuple[int, int]
TORCH_BACKEND = "UV_TORCH_BACKEND"


def find_uv(search: str | None = None) -> Path:
    """Return the user's own uv, if it is on PATH (or in `search`), else the one vllama depends on.

    Raises EnvironmentFailed if there is neither.
    """
    if found := shutil.which("uv", path=search):
        return Path(found)
    try:
        return Path(uv.find_uv_bin())
    except FileNotFoundError:
        raise EnvironmentFailed(
            "cannot install: uv is missing", hint="run: pip install uv"
        ) from None


def choose_python(lowest: Version, highest: Version, *, search: str | None = None) -> Path | str:
    """Return a Python: ours, the newest on PATH, or a version for uv to get."""
    if lowest <= sys.version_info[:2] <= highest:
        return Path(sys.executable)
    for minor in range(highest[1], lowest[1] - 1, -1):
        found = shutil.which(f"python3.{minor}", path=search)
        if found and (python := _skip_shim(Path(found), minor)):
            return python
    return f"{highest[0]}.{highest[1]}"


def _skip_shim(python: Path, minor: int) -> Path | None:
    """Return the program behind pyenv's shim: it only starts the versions that are switched on."""
    if python.parent.name != "shims":
        return python
    versions = python.parent.parent.glob(f"versions/3.{minor}.*/bin/python3.{minor}")
    return max(versions, default=None)


def venv_command(uv_path: Path, folder: Path, python: Path | str) -> list[str]:
    """Return the command that makes an environment, or mends it: what is there already stays.

    `python` is an interpreter or a version such as `3.12`.
    """
    return [str(uv_path), "venv", "--allow-existing", "--python", str(python), str(folder)]


def install_command(
    uv_path: Path, folder: Path, requirements: Sequence[str], extra_args: Sequence[str]
) -> list[str]:
    """Return the command that installs `requirements` into an environment."""
    command = [str(uv_path), "pip", "install", "--python", str(get_python(folder))]
    return [*command, *extra_args, "--", *requirements]


def compile_command(uv_path: Path, python: Path | str, extra_args: Sequence[str]) -> list[str]:
    """Return the command that resolves the requirements of its input, and installs nothing."""
    which = "--python-version" if isinstance(python, str) else "--python"
    command = [str(uv_path), "pip", "compile", "--quiet", "--format", "pylock.toml"]
    return [*command, which, str(python), *extra_args]


ALLOWED = frozenset({
    "ALL_PROXY", "AR", "CC", "CFLAGS", "CPPFLAGS", "CURL_CA_BUNDLE", "CXX", "CXXFLAGS",
    "FORCE_CMAKE", "HOME", "HTTPS_PROXY", "HTTP_PROXY", "LANG", "LDFLAGS", "LD_LIBRARY_PATH",
    "LOGNAME", "MACOSX_DEPLOYMENT_TARGET", "MAX_JOBS", "NETRC", "NO_PROXY", "PATH",
    "PKG_CONFIG_PATH", "REQUESTS_CA_BUNDLE", "ROCM_PATH", "SDKROOT", "SSL_CERT_DIR",
    "SSL_CERT_FILE", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV_DISABLE_PROMPT", "all_proxy",
    "http_proxy", "https_proxy", "no_proxy",
})  # fmt: skip
"""What an installer, and the compiler that it may start, reasonably looks at."""

PREFIXES = ("CMAKE_", "CUDA", "LC_", "NVCC", "PIP_", "UV_", "XDG_")

DIVERTING = frozenset({
    "PIP_PREFIX", "PIP_PYTHON", "PIP_REQUIRE_VIRTUALENV", "PIP_ROOT", "PIP_TARGET", "PIP_USER",
    "UV_PROJECT_ENVIRONMENT", "UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_TARGET",
})  # fmt: skip
"""Settings of the user's that would let it install into another place than the one we name."""

PIP_TO_UV = {
    "PIP_CERT": "SSL_CERT_FILE",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_PROXY": "ALL_PROXY",
    "PIP_TRUSTED_HOST": "UV_INSECURE_HOST",
}
"""uv reads none of pip's settings, and a mirror that was named to pip is meant for uv as well."""

OUR_PREFIX = Path(sys.prefix)
NO = frozenset({"", "0", "f", "false", "n", "no", "off"})


def build_installer_env(
    environ: Mapping[str, str],
    extra: Mapping[str, str] | None = None,
    pip_settings: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the allowed part of `environ`, on top of `extra`: what a user has set wins.

    `pip_settings` are those of pip's configuration files, by the names of pip's variables.
    """
    env = {
        name: value
        for name, value in environ.items()
        if name not in DIVERTING and (name in ALLOWED or name.startswith(PREFIXES))
    }
    for theirs, ours in PIP_TO_UV.items():
        if value := env.get(theirs) or (pip_settings or {}).get(theirs):
            # both separate several values by white space, except for uv's list of places
            value = ",".join(value.split()) if theirs == "PIP_FIND_LINKS" else value
            env.setdefault(ours, value)
    return dict(extra or {}) | env


def prepare_uv(
    environ: Mapping[str, str], extra: Mapping[str, str] | None
) -> tuple[Path, dict[str, str], list[str]]:
    """Return uv, its environment (`build_installer_env`), and the flags by the user's settings.

    Raises EnvironmentFailed if there is no uv.
    """
    pip_settings = read_pip_settings(environ)
    env = build_installer_env(environ, extra, pip_settings)
    no_index = ["--no-index"] if forbids_index(environ, pip_settings) else []
    return find_uv(env.get("PATH")), env, no_index


def forbids_index(environ: Mapping[str, str], pip_settings: Mapping[str, str]) -> bool:
    """Tell whether pip is told to ask no index; uv has no variable for that, only a flag."""
    value = environ.get("PIP_NO_INDEX") or pip_settings.get("PIP_NO_INDEX", "")
    return value.strip().lower() not in NO


def read_pip_settings(environ: Mapping[str, str], prefix: Path = OUR_PREFIX) -> dict[str, str]:
    """Read pip's configuration files: `index-url` of `[global]` or `[install]` as PIP_INDEX_URL.

    The files and their order are pip's: all users' (/etc/pip.conf), the user's, that of the Python
    installation `prefix`, PIP_CONFIG_FILE; each overrides those before it. A damaged file has no
    settings. Nothing is read where uv has a configuration file of its own.
    """
    home = Path(environ.get("HOME", "/nonexistent"))
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    if any(path.is_file() for path in (Path("/etc/uv/uv.toml"), config / "uv" / "uv.toml")):
        return {}
    shared = Path("/Library/Application Support/pip/pip.conf")
    files = [shared, Path("/etc/pip.conf"), home / ".pip/pip.conf"]
    files += [home / "Library/Application Support/pip/pip.conf", config / "pip/pip.conf"]
    files += [prefix / "pip.conf"]
    if named := environ.get("PIP_CONFIG_FILE"):
        files = [*files, Path(named)] if named != os.devnull else []  # pip's way to read none
    found: dict[str, str] = {}
    for path in files:
        parser = configparser.RawConfigParser()
        with contextlib.suppress(configparser.Error, OSError, UnicodeDecodeError):
            parser.read(path, encoding="utf-8")
        for section in ("global", "install"):
            for name, value in parser.items(section) if parser.has_section(section) else ():
                found[f"PIP_{name.upper().replace('-', '_')}"] = value
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class UvProgress:
    """Progress of uv: `text` for people; the bytes of the file being fetched, where it says so.

    A `minor` step takes a moment: it suits a line that is overwritten, not a log.
    """

    text: str
    minor: bool = False
    done_bytes: int | None = None
    total_bytes: int | None = None


LARGE_BYTES = 5_000_000
NEWS = (
    (r"Building (.+)", "compiling {0}"),
    (r"Prepared \d+ package", "installing the packages"),
    (r"(waiting for another .+|trying .+|PyTorch's own index .+)", "{0}"),
)
"""Lines without numbers, and what they mean."""


class UvReader:
    """Reads the lines of one installation, in order."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def read(self, line: str) -> UvProgress | None:
        """Return the progress in `line`; None if it has none for people."""
        text = line.strip()
        if match := re.match(r"Downloading (\S+) \(([\d.]+)\s*([kKMGT]?i?B)\)", text):
            size = self._sizes[match[1]] = parse_bytes(match[2] + match[3])
            return _fetching(match[1], 0, size)
        if (match := re.match(r"Downloaded (\S+)$", text)) and match[1] in self._sizes:
            size = self._sizes[match[1]]
            return _fetching(match[1], size, size)
        for pattern, news in NEWS:
            if match := re.match(pattern, text):
                return UvProgress(text=news.format(*match.groups()))
        return None


def _fetching(package: str, done_bytes: int, total_bytes: int) -> UvProgress:
    return UvProgress(
        text=f"fetching {package}",
        minor=total_bytes < LARGE_BYTES,
        done_bytes=done_bytes,
        total_bytes=total_bytes,
    )


MAX_REASON = 600
_ERROR = re.compile(r"^[ \t]*(?:error:|×)[ \t]*(.+(?:\n.+)*)", re.MULTILINE)
_HINT = re.compile(r"^hint: (.+)", re.MULTILINE)
_CAUSE = re.compile(r":?\n\s*(?:cause:|Caused by:|[├╰]─▶)\s*")
_WRAPPED = re.compile(r"\s*\n[\s│]*")


def explain_failure(output: Sequence[str], code: int) -> tuple[str, str | None]:
    """Return why uv ended with `code` (negative: by a signal), and its hint, in its own words.

    The reason is its last error with the causes below it, up to an empty line; else the last line.
    """
    if code < 0:
        short = ", probably because memory ran out" if code == -9 else ""
        return f"the installer was killed by signal {-code}{short}", None
    text = "\n".join(output)
    errors, hints = _ERROR.findall(text), _HINT.findall(text)
    last = errors[-1] if errors else text.strip().rpartition("\n")[2]
    reason = shorten(_WRAPPED.sub(" ", _CAUSE.sub(": ", last)), MAX_REASON, placeholder=" …")
    return (
        reason.rstrip(".") or f"the installer exited with code {code}",
        hints[-1] if hints else None,
    )
