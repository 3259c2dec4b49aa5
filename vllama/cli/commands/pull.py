"""`vllama pull`: download a model."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

from vllama.cli.options import Insecure, argument

if TYPE_CHECKING:
    from vllama.cli.progress import PullDisplay
    from vllama.config import Config

EXAMPLES = """\
\b
Examples:
  vllama pull Qwen/Qwen3-0.6B
  vllama pull hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M
"""

INTERRUPTED = 130
STOP_LIMIT_S = 10.0
SIGNAL_CHECK_S = 0.2


def pull(
    model: Annotated[str, argument("MODEL", "org/repo[:QUANT], hf.co/org/repo[:QUANT] or name")],
    insecure: Insecure = False,
) -> int:
    """Download a model, or continue a download that was stopped."""
    from vllama.cli.context import load_settings
    from vllama.cli.output import say_aside
    from vllama.cli.progress import PullDisplay

    settings = load_settings()
    with PullDisplay() as display:
        whole = _pulled(settings, model, display, insecure)
    if whole:
        return 0
    say_aside(f"stopped; what is there is kept: run 'vllama pull {model}' again to go on")
    return INTERRUPTED


def _pulled(settings: Config, model: str, display: PullDisplay, insecure: bool) -> bool:
    """Pull in a thread, so that Ctrl-C can stop it in order; False if it did."""
    from vllama.cli.context import local_library
    from vllama.config.parse import whole_path
    from vllama.plan.choose import list_loadable_formats
    from vllama.plan.fitting import FitsHere
    from vllama.server.preflight import gather_facts

    library = local_library(settings)
    cancel = threading.Event()
    # not Thread.join: in 3.11 an interrupted join takes the thread for ended (bpo-45274); not an
    # endless wait either: a signal that another thread got would not wake it
    ended = threading.Event()
    failure: list[BaseException] = []

    def work() -> None:
        try:
            facts = gather_facts(settings)
            library.remote.pull(
                whole_path(model),
                formats=list_loadable_formats(facts),
                fits=FitsHere(facts),
                progress=display,
                cancel=cancel,
                insecure=insecure,
            )
        except BaseException as error:
            failure.append(error)
        finally:
            ended.set()

    threading.Thread(target=work, name="pull", daemon=True).start()
    try:
        while not ended.wait(SIGNAL_CHECK_S):
            pass
    except KeyboardInterrupt:
        cancel.set()
        ended.wait(STOP_LIMIT_S)
        return False
    if failure:
        raise failure[0]
    return True
