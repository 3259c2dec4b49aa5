"""The start of a process that serves a model together with those of other machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vllama.chat.request import Group
from vllama.config import read_node_key
from vllama.config.settings import Config
from vllama.plan.types import Plan
from vllama.supervise import rank_child
from vllama.supervise.spec import Diagnosis, Exit, Grace, HttpProbe, LaunchSpec


def join_group(spec: LaunchSpec, plan: Plan, group: Group, config: Config) -> LaunchSpec:
    """Return the launch of a rank by the program that ends it with the others."""
    words: tuple[str, ...]
    if group.rank:
        at = spec.endpoint
        words = ("--health", f"{at.host}:{at.port}", "--master", group.address)
        # it has nothing to finish where rank 0 has ended
        spec = replace(spec, probe=HttpProbe(path="/health"), grace=Grace(term_s=1.0, kill_s=10.0))
    else:
        name, context = plan.bundle.name, plan.settings.context_length
        ask = {"model": name, "num_ctx": context, "size": group.size}
        words = ("--ask", json.dumps(ask), *(x for url in group.nodes for x in ("--node", url)))
    program = (sys.executable, "-I", str(Path(rank_child.__file__)))
    env = {
        **spec.env,
        rank_child.KEY: read_node_key(config) or "",
        rank_child.CERTIFICATES: str(config.node_certs or ""),
    }
    argv = (*program, *words, "--", *spec.argv)
    return replace(spec, argv=argv, env=env, diagnose=explain_group(spec.diagnose))


def explain_group(
    diagnose: Callable[[Exit], Diagnosis],
) -> Callable[[Exit], Diagnosis]:
    """Return a diagnosis that knows the words with which a rank ends for another one."""

    def explain(ended: Exit) -> Diagnosis:
        for line in reversed(ended.output):
            if line.startswith(rank_child.LOST):
                why = line.removeprefix(rank_child.LOST)
                return Diagnosis(cause=f"it has lost the machine {why}", retryable=True)
            if line.startswith(rank_child.REFUSED):
                why = line.removeprefix(rank_child.REFUSED)
                return Diagnosis(cause=f"another machine does not take part: {why}")
        return diagnose(ended)

    return explain
