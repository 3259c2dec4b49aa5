"""Find llama.cpp's quantiser, `llama-quantize`, on this machine.

It comes with llama-server's own builds and with those compiled here. So the one beside the
installed engine comes first: the engine that loads a file then has the version of the quantiser
that wrote it. Otherwise it is the program of a llama.cpp on PATH.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from vllama.base.errors import EngineMissing
from vllama.engines.base import DiscoveredEngines
from vllama.engines.child_env import build_child_env
from vllama.models.convert.tools import Quantiser

ENGINE = "llama-server"
PROGRAM = "llama-quantize"


def find_quantiser(found: DiscoveredEngines, environ: Mapping[str, str]) -> Quantiser:
    """Return the quantiser, to be run with the harmless part of `environ`.

    Raises EngineMissing if there is none.
    """
    engine = found.installations.get(ENGINE)
    beside = str(engine.executable.parent) if engine and engine.executable else ""
    for search in (beside, environ.get("PATH", "")):
        if search and (program := shutil.which(PROGRAM, path=search)):
            return Quantiser(program=program, env=build_child_env(environ))
    raise EngineMissing(
        f"cannot quantize: {PROGRAM} is not installed",
        hint=f"get a build that has it (vllama engines install {ENGINE} --compile), "
        "or convert safetensors with --quantize Q8_0 or F16, which need none",
    )
