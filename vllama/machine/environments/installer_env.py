"""The environment of the installer: an allow-list, and the user's settings of pip, for uv."""

from __future__ import annotations

import configparser
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

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
