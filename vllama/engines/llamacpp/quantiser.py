"""Find llama.cpp's quantiser on this machine.

The library of the installed engine comes first: the engine that loads the file then has the same
version as the quantiser that wrote it. Otherwise it is the program of a llama.cpp on PATH.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from vllama.base.errors import EngineMissing
from vllama.engines.base import DiscoveredEngines
from vllama.engines.child_env import build_child_env
from vllama.models.convert.tools import Quantiser

LIBRARY = "llama-cpp-python"
PROGRAM = "llama-quantize"
CHILD = Path(__file__).with_name("quantise_child.py")


def find_quantiser(found: DiscoveredEngines, environ: Mapping[str, str]) -> Quantiser:
    """Return the quantiser, to be run with the harmless part of `environ`.

    Raises EngineMissing if there is none.
    """
    env = build_child_env(environ)
    engine = found.installations.get(LIBRARY)
    if engine is not None and engine.python is not None:
        return Quantiser(
            title=f"{LIBRARY} {engine.version}",
            command=(str(engine.python), "-P", str(CHILD)),
            env=env,
        )
    program = shutil.which(PROGRAM, path=environ.get("PATH"))
    if program is not None:
        return Quantiser(title=program, command=(program,), env=env)
    raise EngineMissing(
        f"cannot quantize: neither {LIBRARY} nor {PROGRAM} is installed",
        hint="install llama.cpp (vllama engines install llama-cpp-python), "
        "or leave it unquantised with --quantize F16",
    )
