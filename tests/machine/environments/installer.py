"""An installer with uv's command line, for tests: it installs from nowhere, at once, and is told.

`Fake` writes it into a folder for PATH. A requirement `name==version` becomes an installed
distribution with a program of that name. Some names behave badly:
`hang` waits for ever, `broken-once` fails like a full disk the first time, `nowhere` cannot be
found, nor can `torch` where its build is to be chosen, `mute` gets a program that fails.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PROGRAM = """\
#!{python}
import json, os, pathlib, sys, tempfile, time

args = sys.argv[1:]
if args[1] == "compile":
    sys.exit("error: this index tells no sizes")
with open(os.environ["UV_TEST_LOG"], "a") as log:
    log.write(json.dumps({{"args": args, "env": dict(os.environ), "pid": os.getpid()}}) + "\\n")
if args[0] == "venv":
    home = pathlib.Path(args[-1])
    (home / "bin").mkdir(parents=True, exist_ok=True)
    (home / "lib/python3.11/site-packages").mkdir(parents=True, exist_ok=True)
    python = pathlib.Path(sys.executable).resolve()
    (home / "pyvenv.cfg").write_text(f"home = {{python.parent}}\\n")
    (home / "bin/python").unlink(missing_ok=True)
    (home / "bin/python").symlink_to(python)
    sys.exit()
home = pathlib.Path(args[args.index("--python") + 1]).parent.parent
pathlib.Path(tempfile.mkdtemp(prefix="pip-unpack-"), "wheel").touch()  # as pip leaves when killed
for requirement in args[args.index("--python") + 2 :]:
    if requirement.startswith("-"):
        continue
    name, _, version = requirement.partition("==")
    print(f"Downloading {{name}} (7.0MiB)", flush=True)
    if name == "hang":
        time.sleep(600)
    if name == "nowhere":
        sys.exit("error: No solution found when resolving dependencies\\n  cause: Because nowhere "
                 "was not found in the package registry and you require nowhere, we can conclude "
                 "that your requirements are unsatisfiable.")
    if name == "torch" and "UV_TORCH_BACKEND" in os.environ:
        sys.exit("error: Request failed after 3 retries\\n  cause: Failed to fetch: torch\\n"
                 "  cause: failed to lookup address information: Name or service not known")
    tried = home / "tried"
    if name == "broken-once" and not tried.exists():
        tried.touch()
        sys.exit("error: failed to write\\n  cause: No space left on device (os error 28)")
    stem = f"{{name.replace('-', '_')}}-{{version}}"
    info = home / "lib/python3.11/site-packages" / f"{{stem}}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Name: {{name}}\\nVersion: {{version}}\\n")
    (info / "RECORD").touch()
    program = home / "bin" / name
    code = 1 if name == "mute" else 0
    program.write_text(f"#!/bin/sh\\necho {{name}} {{version}}\\nexit {{code}}\\n")
    program.chmod(0o755)
    print(f" Downloaded {{name}}", flush=True)
"""


class Fake:
    """The installer in `folder`; `environ` is what lets it be found."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "calls"
        bin_ = folder / "bin"
        bin_.mkdir(parents=True)
        program = bin_ / "uv"
        program.write_text(PROGRAM.format(python=sys.executable))
        program.chmod(0o755)
        self.environ = {
            "PATH": f"{bin_}:/usr/bin:/bin",
            "HOME": str(folder),
            "UV_TEST_LOG": str(self._log),
        }

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Every call so far: arguments, environment, pid."""
        if not self._log.exists():
            return []
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    @property
    def verbs(self) -> list[str]:
        """What it was called for, in order."""
        return [call["args"][0] for call in self.calls]
