"""`vllama pull`: download a model."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from vllama.cli.context import load_settings, local_library
from vllama.cli.options import Insecure, argument
from vllama.cli.output import say_aside
from vllama.cli.progress import PullDisplay, open_display
from vllama.config import Config
from vllama.config.parse import whole_path

EXAMPLES = """\
\b
Examples:
  vllama pull Qwen/Qwen3-0.6B
  vllama pull hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M
"""

STOP_LIMIT_S = 10.0
SIGNAL_CHECK_S = 0.2


def pull(
    model: Annotated[str, argument("MODEL", "org/repo[:QUANT], hf.co/org/repo[:QUANT] or name")],
    insecure: Insecure = False,
) -> None:
    """Download a model, or resume a stopped download."""
    settings = load_settings()
    with open_display() as display:
        whole = _pulled(settings, model, display, insecure)
    if not whole:
        say_aside(f"stopped; what is there is kept: run 'vllama pull {model}' again to go on")
        raise typer.Abort


def _pulled(settings: Config, model: str, display: PullDisplay, insecure: bool) -> bool:
    """Pull in a thread, so that Ctrl-C can stop it in order; False if it did."""
    from concurrent.futures import wait

    from vllama.base.threads import begin
    from vllama.plan.choose import list_loadable_formats
    from vllama.plan.preview import FitsHere
    from vllama.server.preflight import gather_facts

    library = local_library(settings)
    cancel = threading.Event()

    def work() -> None:
        facts = gather_facts(settings)
        library.remote.pull(
            whole_path(model),
            formats=list_loadable_formats(facts),
            fits=FitsHere(facts),
            progress=display,
            cancel=cancel,
            insecure=insecure,
        )

    pulling = begin(work)
    try:
        while not pulling.done():  # a signal that another thread got wakes no endless wait
            wait([pulling], SIGNAL_CHECK_S)
    except KeyboardInterrupt:
        cancel.set()
        wait([pulling], STOP_LIMIT_S)
        return False
    pulling.result()
    return True
