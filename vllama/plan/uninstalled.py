"""What a model would need with an engine that is not installed. Pure."""

from __future__ import annotations

from vllama.base.errors import EngineMissing, NoPlan, NotEnoughMemory
from vllama.engines.base import Installation
from vllama.models.types import Bundle, ModelInfo
from vllama.plan.estimate import make_estimate
from vllama.plan.refuse import find_refusal
from vllama.plan.types import Choice, Facts, Need


def explain_memory(
    error: EngineMissing, facts: Facts, bundle: Bundle, info: ModelInfo, need: Need
) -> NoPlan:
    """Return the error with what the first of the offered engines would take of the memory.

    It is another error if the model does not fit here: then no engine is worth installing for it.
    """
    engines = (facts.found.engines[name] for name in error.engines)
    able = (one for one in engines if find_refusal(one, facts, info, need.mode) is None)
    engine = next(able, None)
    if engine is None or not info.weights_bytes:
        return error
    installation = Installation(
        engine=engine.name, version="", offloads=bool(facts.platform.accelerators)
    )
    choice = Choice(engine=engine.name, installation=installation, reason="")
    estimate = make_estimate(facts, choice, bundle.format, info, need)
    kind = "GPU memory" if estimate.memory.on_gpu else "system memory"
    if estimate.fits:
        message = (
            f"{error.message}; with {engine.title} it would fit: {estimate.numbers} of {kind}, "
            f"{estimate.usable} usable"
        )
        return EngineMissing(message, hint=error.hint, engines=error.engines)
    return NotEnoughMemory(
        f"{error.message}; and with {engine.title} it would require more {kind} "
        f"({estimate.numbers}) than is available ({estimate.usable})",
        hint="choose a smaller model or a smaller quantisation",
    )
