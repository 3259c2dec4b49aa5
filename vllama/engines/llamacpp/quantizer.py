"""Find llama.cpp's quantizer, `llama-quantize` or `llama quantize`, on this machine.

It comes with llama-server's own builds and with those compiled here. So the one beside the
installed engine, or the engine's own command, comes first: the engine that loads a file then has
the version of the quantizer that wrote it. Otherwise it is the program of a llama.cpp on PATH.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from vllama.base.errors import EngineMissing
from vllama.engines.base import DiscoveredEngines
from vllama.engines.child_env import build_child_env
from vllama.models.convert.tools import Quantizer

ENGINE = "llama-server"
PROGRAM = "llama-quantize"


def find_quantizer(found: DiscoveredEngines, environ: Mapping[str, str]) -> Quantizer:
    """Return the quantizer, to be run with the harmless part of `environ`.

    Raises EngineMissing if there is none.
    """
    engine = found.installations.get(ENGINE)
    program = engine.executable if engine else None
    beside = shutil.which(PROGRAM, path=program.parent) if program else None
    env = build_child_env(environ)
    if program and engine and engine.command and not beside:
        return Quantizer(command=(str(program), "quantize"), env=env)
    if found_program := beside or shutil.which(PROGRAM, path=environ.get("PATH", "")):
        return Quantizer(command=(found_program,), env=env)
    raise EngineMissing(
        f"cannot quantize: {PROGRAM} is not installed",
        hint=f"install a build that includes it (vllama engines install {ENGINE} --compile), "
        "or convert safetensors with --quantize Q8_0 or F16, which do not need it",
    )
