"""Why an installation failed: the last lines of uv and of compilers → a cause and a hint. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Part of a sentence that says why, and an imperative one that says what to do."""

    cause: str
    hint: str | None = None


Row = tuple[str, str, str | None]
"""What is searched in the whole output, its cause with the groups as `{0}`, and a hint."""

COMPILER = (
    "install a C++ compiler (Debian: apt install build-essential; macOS: xcode-select --install)"
)

UNREACHABLE = "the package index cannot be reached"

# In order: what makes others follow comes first. An unreachable index ends in "no such version".
PATTERNS: tuple[Row, ...] = (
    (r"(?i)No space left on device|not enough space on the disk|os error 28|Errno 28",
     "no space is left on the disk",
     "free some space, and run the command again: it goes on where it was"),
    (r"(?i)CERTIFICATE_VERIFY_FAILED|invalid peer certificate|certificate verify failed",
     "the package index's certificate is not trusted",
     "name the certificate of your proxy in SSL_CERT_FILE, or trust the system's certificates "
     "with UV_SYSTEM_CERTS=1"),
    (r"(?i)name resolution|name or service not known|nodename nor servname|getaddrinfo failed"
     r"|dns error|failed to lookup address|connection refused|network is unreachable"
     r"|no route to host|NewConnectionError|ConnectTimeout|ReadTimeout|connect timeout"
     r"|Cannot connect to proxy|error sending request|failed to fetch|operation timed out"
     r"|connection reset|IncompleteRead|ProtocolError",
     UNREACHABLE,
     "check the network (HTTPS_PROXY, PIP_INDEX_URL), and run the command again: "
     "it goes on where it was"),
    (r"No interpreter found for (Python \S+)", "{0} is not on this machine", "install that Python"),
    (r"(?s)Python version \(([\d.]+)\) does\s+not satisfy Python([<>=~!][^\s,]*)",
     "it wants Python {1}, this is {0}", "run vllama with such a Python"),
    (r"(\S+\.whl) is not a supported wheel on this platform", "{0} is not for this machine", None),
    (r"(?s)Because (?:only )?(\S+?)(?:[=<>]\S*)?\s+has no\s+wheels with a matching (\S+)",
     "{0} has no wheel for this machine or Python", None),
    (r"Hash mismatch", "what arrived is not what the index announced", "run the command again"),
    (r"Could not find (?:a C\+\+ compiler|CMAKE_CXX_COMPILER|compiler)"
     r"|No CMAKE_CXX_COMPILER could be found|CMAKE_CXX_COMPILER not set"
     r"|unable to execute '\S*(?:gcc|cc|clang|g\+\+)"
     r"|error: command '\S*(?:gcc|cc|clang|g\+\+)' failed: No such file"
     r"|Microsoft Visual C\+\+ .* is required",
     "it has to be compiled, and there is no C++ compiler", COMPILER),
    (r"Failed (?:building wheel for|to build(?: installable wheels for)?) [`']?([\w.-]+)",
     "{0} could not be compiled here", None),
    (r"(?s)Because (\S+) was not found in the\s+(?:package registry|provided package locations)"
     r"|(?s:Because there (?:is|are) no versions? of (\S+))",
     "there is no {0} for this Python and machine", None),
    (r"your\s+requirements\s+are\s+unsatisfiable", "its requirements contradict each other", None),
    (r"(?i)Permission denied: '([^']+)'|Read-only file system: '([^']+)'",
     "'{0}' cannot be written", None),
)  # fmt: skip


def find_cause(output: Sequence[str], code: int) -> Cause:
    """Return why an installer with this output ended with `code` (negative: by a signal)."""
    if code == -9:
        return Cause(
            cause="the installer was killed, as the system does when memory is short",
            hint="run the command again: it goes on where it was",
        )
    if code < 0:
        return Cause(cause=f"the installer was ended by signal {-code}")
    if found := match_output(output, PATTERNS):
        return Cause(cause=found[0], hint=found[1])
    last = find_last_error(output, r"(?i)\s*(?:error|fatal):\s*(.+)")
    return Cause(cause=last or f"the installer ended with exit code {code}")


def match_output(output: Sequence[str], patterns: Sequence[Row]) -> tuple[str, str | None] | None:
    """Return cause and hint of the first of `patterns` in an output, None if there is none."""
    text = "\n".join(output)
    for pattern, cause, hint in patterns:
        if match := re.search(pattern, text):
            groups = [group for group in match.groups() if group]
            return cause.format(*groups) if groups else re.sub(r" ?\(?\{0\}\)?", "", cause), hint
    return None


def find_last_error(output: Sequence[str], pattern: str) -> str | None:
    """Return the message (a group of `pattern`) of the last line that has one, else that line."""
    for line in reversed(output):
        if match := re.match(pattern, line):
            return str(match[match.lastindex or 0]).strip().rstrip(".")
    return next((line.strip() for line in reversed(output) if line.strip()), None)
