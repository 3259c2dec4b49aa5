"""The size of an installation's download: what uv would fetch from the index in use."""

from __future__ import annotations

import os
import subprocess
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllama.machine.environments.installer import TORCH_BACKEND, compile_command, prepare_uv
from vllama.machine.environments.layout import Step

LIMIT_S = 30.0  # for one step
RETRIES = ("UV_HTTP_RETRIES", "1")  # a person waits; the installation tries more often


@dataclass(frozen=True, slots=True)
class Download:
    """The packages that would be fetched, by name, with their sizes in bytes.

    `usual_torch`: PyTorch's own index cannot be reached, so its usual build is installed.
    """

    packages: Mapping[str, int]
    usual_torch: bool = False

    @property
    def size_bytes(self) -> int:
        """The sum, with what uv's cache has."""
        return sum(self.packages.values())


def measure_download(
    steps: Sequence[Step],
    python: Path | str,
    *,
    environ: Mapping[str, str] | None,
    extra_env: Mapping[str, str],
) -> Download | None:
    """Return the downloads of `install_steps`; None if the index does not tell. Takes seconds.

    `environ` None: ours. Raises EnvironmentFailed if there is no uv.
    """
    uv, env, no_index = prepare_uv(os.environ if environ is None else environ, extra_env)
    env.setdefault(*RETRIES)
    without = {name: value for name, value in env.items() if name != TORCH_BACKEND}
    for tried in (env, without) if TORCH_BACKEND in env else (env,):
        packages: dict[str, int] = {}
        for step in steps:
            command = compile_command(uv, python, (*no_index, *step.extra_args))
            found = _resolve(command, step.requirements, tried)
            if found is None:
                break
            packages |= found
        else:
            return Download(packages, usual_torch=tried is not env)
    return None


def _resolve(
    command: Sequence[str], requirements: Sequence[str], env: Mapping[str, str]
) -> dict[str, int] | None:
    """Run uv's resolver; return the sizes of its choice by name, None without all of them."""
    with tempfile.TemporaryDirectory(prefix="vllama-") as folder:
        lock = Path(folder, "pylock.toml")
        try:
            subprocess.run(
                [*command, "--output-file", str(lock), "-"],
                input="\n".join(requirements), env=env, text=True, capture_output=True,
                timeout=LIMIT_S, check=True,
            )  # fmt: skip
            rows = tomllib.loads(lock.read_text())["packages"]
            return {row["name"]: _find_size(row) for row in rows}
        except (OSError, subprocess.SubprocessError, ValueError, LookupError):
            return None


def _find_size(row: Mapping[str, Any]) -> int:
    """Return the size of a package's file (PEP 751). Raises LookupError if it is not told."""
    return int((*row.get("wheels", ()), *filter(None, [row.get("sdist")]))[0]["size"])
