"""The versions of a package that the package index has for this machine, as pip lists them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from vllama.base.errors import EnvironmentFailed
from vllama.machine.environments.failures import find_cause
from vllama.machine.environments.installer import build_installer_env, find_uv, read_pip_settings

LIMIT_S = 120.0


def list_versions(
    package: str,
    *,
    python: Path | str | None = None,
    compiled: bool = False,
    environ: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the versions of a package, the oldest first, without those before a release.

    Without `compiled` only those that come ready-made for this machine and `python` (default: our
    own). Raises EnvironmentFailed.
    """
    environ = dict(os.environ) if environ is None else environ
    env = build_installer_env(environ, None, read_pip_settings(environ))
    uv = find_uv(env.get("PATH"))
    command = [str(uv), "tool", "run", "--python", str(python or sys.executable), "pip"]
    command += ["index", "versions", "--json", *([] if compiled else ["--only-binary=:all:"])]
    if index := env.get("UV_DEFAULT_INDEX"):  # pip does not read it
        command += ["--index-url", index]
    try:
        done = subprocess.run(
            [*command, package],
            env=env,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode == 0:
            return [str(one) for one in json.loads(done.stdout)["versions"]][::-1]
        cause = find_cause(done.stderr.splitlines(), done.returncode).cause
    except subprocess.TimeoutExpired:
        cause = f"the package index has not answered within {LIMIT_S:g} s"
    except (OSError, ValueError, KeyError) as error:
        cause = str(error)
    raise EnvironmentFailed(
        f"cannot list the versions of '{package}': {cause}",
        hint="name those to try, in their order: --versions A,B,C",
    )
