"""The planner's answer to `models.fits`: how a model that is not here yet would lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllama.base.errors import NoPlan
from vllama.engines.registry import ask_refusal
from vllama.models.resolve.memory_fit import Fit
from vllama.models.types import Format, ModelInfo
from vllama.plan.choose import choose_engine
from vllama.plan.estimate import make_estimate
from vllama.plan.fit import GIB, SENSIBLE_CONTEXT
from vllama.plan.refuse import explain_no_tokenizer
from vllama.plan.types import Facts, Need


@dataclass(frozen=True, slots=True)
class FitsHere:
    """The judge for this machine, its engines and what the user settled; see `Fits`."""

    facts: Facts

    def certainly(self, size_bytes: int, format_: Format) -> bool:
        """Assume more cache and buffers than any model has that is as large as that.

        With 4096 tokens of f16 the cache is the smaller half, but for models below 1 GiB.
        """
        settings = self.facts.settings
        contexts = max(1.0, (settings.context_length or 0) / SENSIBLE_CONTEXT) * (
            settings.num_parallel or 1
        )
        bound = size_bytes + int(contexts * (size_bytes + 2 * GIB)) + 2 * GIB
        fit = self.judge(ModelInfo(architecture="unknown", weights_bytes=bound), format_)
        return fit is not None and fit.fits

    def refuses(self, info: ModelInfo, format_: Format, paths: Sequence[str]) -> str | None:
        """Ask the engine that would be chosen."""
        facts = self.facts
        try:
            choice = choose_engine(facts, format_, None, info)
        except NoPlan:
            return None
        engine = facts.found.engines[choice.engine]
        return ask_refusal(engine, facts.platform, info) or explain_no_tokenizer(
            facts, format_, paths
        )

    def judge(
        self, info: ModelInfo, format_: Format, context_length: int | None = None
    ) -> Fit | None:
        """Reckon as a load would."""
        facts = self.facts
        if context_length is not None:
            own = replace(facts.settings, context_length=context_length)
            facts = replace(facts, settings=own)
        try:
            choice = choose_engine(facts, format_, None, info)
        except NoPlan:
            return None
        if ask_refusal(facts.found.engines[choice.engine], facts.platform, info):
            return None
        estimate = make_estimate(facts, choice, format_, info, Need())
        wanted = (SENSIBLE_CONTEXT, info.context_length, facts.settings.context_length)
        return Fit(
            fits=estimate.fits,
            roomy=estimate.fits and estimate.context_length >= min(n for n in wanted if n),
            needed_bytes=estimate.memory.total_bytes,
            usable_bytes=estimate.usable_bytes,
            weights_bytes=estimate.memory.weights_bytes,
            context_length=estimate.context_length,
            numbers=estimate.numbers,
        )
