"""The environment of an installer: an allow-list, and pip's settings in uv's words. Pure."""

from __future__ import annotations

from collections.abc import Mapping

ALLOWED = frozenset(
    {
        "ALL_PROXY",
        "AR",
        "CC",
        "CFLAGS",
        "CPPFLAGS",
        "CURL_CA_BUNDLE",
        "CXX",
        "CXXFLAGS",
        "FORCE_CMAKE",
        "HOME",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "LANG",
        "LDFLAGS",
        "LD_LIBRARY_PATH",
        "LOGNAME",
        "MACOSX_DEPLOYMENT_TARGET",
        "MAX_JOBS",
        "NETRC",
        "NO_PROXY",
        "PATH",
        "PKG_CONFIG_PATH",
        "REQUESTS_CA_BUNDLE",
        "ROCM_PATH",
        "SDKROOT",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "TMPDIR",
        "TZ",
        "USER",
        "VIRTUAL_ENV_DISABLE_PROMPT",
        "all_proxy",
        "http_proxy",
        "https_proxy",
        "no_proxy",
    }
)
"""What an installer, and the compiler that it may start, reasonably looks at."""

PREFIXES = ("CMAKE_", "CUDA", "LC_", "NVCC", "PIP_", "UV_", "XDG_")

DIVERTING = frozenset(
    {
        "PIP_PREFIX",
        "PIP_PYTHON",
        "PIP_REQUIRE_VIRTUALENV",
        "PIP_ROOT",
        "PIP_TARGET",
        "PIP_USER",
        "UV_PROJECT_ENVIRONMENT",
        "UV_PYTHON",
        "UV_SYSTEM_PYTHON",
        "UV_TARGET",
    }
)
"""Settings of the user's that would let it install into another place than the one we name."""

PIP_TO_UV = {
    "PIP_CERT": "SSL_CERT_FILE",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_NO_INDEX": "UV_NO_INDEX",
}
"""uv reads none of pip's variables, and a mirror that was named to pip is meant for both."""


def installer_environment(
    environ: Mapping[str, str], extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the allowed part of `environ`, on top of `extra`: what a user has set wins."""
    env = {
        name: value
        for name, value in environ.items()
        if name not in DIVERTING and (name in ALLOWED or name.startswith(PREFIXES))
    }
    for theirs, ours in PIP_TO_UV.items():
        if value := env.get(theirs):
            env.setdefault(ours, value)
    return dict(extra or {}) | env
