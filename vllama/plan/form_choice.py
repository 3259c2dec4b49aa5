"""Chooses the form of a model to fetch by memory, before a byte of its weights moves.

1. The usual one (Q4_K_M of a GGUF, all of a safetensors model) if all of it fits on the GPUs, or
   without one into RAM, with a useful context. Files that fit whatever is in them are not read.
2. Else the largest smaller one of the same repository of which that is true; else the largest with
   no more than a quarter in RAM; else the largest that fits with a part in RAM; else the largest
   that fits with a shrunken context. One bit per weight is the last resort. Else another
   repository's form.
3. Larger ones only on request: a quantization that the user named is never replaced.
4. If nothing fits, the `shortage` gives the numbers, and what would fit.

All forms of a model have the same shape, so one header describes them all: their weights differ as
their file sizes do. A pull gets the judge, `FitsHere`, passed in: `models` knows neither engines
nor the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vllama.base.errors import (
    AuthRequired,
    ModelNotFound,
    NoPlan,
    NotEnoughMemory,
    Offline,
    SourceError,
)
from vllama.engines.registry import ask_refusal
from vllama.models.names.quant import get_bit_width, strip_quant
from vllama.models.names.variants import get_stem, is_projector
from vllama.models.resolve.search import ListFamily, ReadInfo, Resolution
from vllama.models.types import Format, ModelInfo, Variant
from vllama.plan.choose import choose_engine
from vllama.plan.estimate import SENSIBLE_CONTEXT, find_fitting_context, make_estimate
from vllama.plan.fit import GIB
from vllama.plan.refuse import explain_no_tokenizer
from vllama.plan.types import Estimate, Facts, Need

MOST_IN_RAM = 0.25  # of a form that is preferred to a larger one
_REMOVED = ("Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8")  # llama.cpp does not load them any more


@dataclass(frozen=True, slots=True)
class JudgedVariant:
    """A form of the model, and how it would fit into memory."""

    found: Resolution
    variant: Variant
    info: ModelInfo
    fit: Estimate

    @property
    def label(self) -> str:
        """The name of this form among the others."""
        return self.variant.quant or self.found.repository.hub_id


@dataclass(frozen=True, slots=True)
class FitsHere:
    """The judge for this machine, its engines and what the user settled."""

    facts: Facts

    def certainly(self, size_bytes: int, format_: Format) -> bool:
        """Tell whether files of that size fit whatever is in them: nothing needs to be read.

        Assumes more cache and buffers than any model has that is as large as that: with 4096 tokens
        of f16 the cache is the smaller half, but for models below 1 GiB.
        """
        settings = self.facts.settings
        contexts = max(1.0, (settings.context_length or 0) / SENSIBLE_CONTEXT) * (
            settings.num_parallel or 1
        )
        bound = size_bytes + int(contexts * (size_bytes + 2 * GIB)) + 2 * GIB
        fit = self.judge(ModelInfo(architecture="unknown", weights_bytes=bound), format_)
        return fit is not None and fit.fits and fit.is_whole

    def refuses(self, info: ModelInfo, format_: Format, paths: Sequence[str]) -> str | None:
        """Return why no engine here can serve such a model of these files; None if one may."""
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
    ) -> Estimate | None:
        """Reckon as a load would, with a context of its own if one is given.

        None: no engine here reads the format, or it refuses the model for another reason, so
        that memory does not decide.
        """
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
        return make_estimate(facts, choice, format_, info, Need())

    def find_context(self, info: ModelInfo, format_: Format, failed: Estimate) -> int | None:
        """Return the largest context with which a model fits that did not as estimated."""
        choice = choose_engine(self.facts, format_, None, info)
        return find_fitting_context(self.facts, choice, format_, info, Need(), failed)

    def choose(
        self, search: Iterator[Resolution], read: ReadInfo, family: ListFamily, *, named: bool
    ) -> Resolution:
        """Choose among what `search` yields (see `iterate_resolutions`).

        `named`: the user named the quantization, so the first is taken. `family` returns the other
        sizes of the model, as (name, billions of parameters). What does not fit at all is returned
        with a `shortage`. Raises what the search raises for its first result, NoPlan for what no
        engine here can serve, and Offline, AuthRequired and BadModelFile from `read`.
        """
        first = next(search)
        # what an engine refuses of safetensors, such as how they are packed, is in the small files
        is_small = self.certainly(_sum_weights(first.variant), first.variant.format)
        if is_small and first.variant.format is Format.GGUF:
            return first
        judged: list[JudgedVariant] = []
        shapes: dict[Format, ModelInfo] = {}
        found: Resolution | None = first
        while found is not None:
            format_ = found.variant.format
            if format_ not in shapes:
                shapes[format_] = shape = _read_shape(found, read)
                if found is first and (why := _explain_refusal(found, shape, self)):
                    raise make_refused_error(found, why)
                if is_small:
                    return first
            here = list(_judge(found, shapes[format_], self))
            if not here and found is first:
                return first  # memory does not decide
            judged += here
            choices = here[:1] if named else here
            if (taken := _pick_best(choices)) is not None:
                return _resolve(taken, judged, self)
            found = None if named else _find_next(search)
        return _explain_shortage(judged, self, family, named=named)


def _explain_refusal(found: Resolution, shape: ModelInfo, fits: FitsHere) -> str | None:
    variant = found.variant
    size = max(0, shape.weights_bytes + _sum_weights(variant))
    return fits.refuses(replace(shape, weights_bytes=size), variant.format, variant.paths)


def make_refused_error(found: Resolution, why: str) -> NoPlan:
    """Make the error for a form that the engines here refuse; `why` are their words."""
    base = next(iter(found.repository.bases), None)
    return NoPlan(
        f"cannot serve '{found.repository.hub_id}' here: {why}",
        hint=f"pull the original model: vllama pull hf.co/{base}"
        if base
        else "use another repository of the model, such as a GGUF (hf.co/org/repo-GGUF)",
    )


def _pick_best(choices: Sequence[JudgedVariant]) -> JudgedVariant | None:
    """Return the first that is whole on its device, with a useful context, else with a part in RAM,
    else the first that fits at all.

    Forms with one bit per weight come last.
    """
    some = [one for one in choices if get_bit_width(one.variant.quant) > 1]
    for group in (some, choices):
        whole = (one for one in group if one.fit.roomy and one.fit.is_whole)
        roomy = [one for one in group if one.fit.roomy]
        nearly = (one for one in roomy if one.fit.ram_share <= MOST_IN_RAM)
        for fit in (*whole, *nearly, *roomy, *(one for one in group if one.fit.fits)):
            return fit
    return None


def _find_next(search: Iterator[Resolution]) -> Resolution | None:
    try:
        return next(search, None)
    except (SourceError, ModelNotFound):  # what was found so far is enough for an answer
        return None


def _judge(found: Resolution, shape: ModelInfo, fits: FitsHere) -> Iterator[JudgedVariant]:
    """Yield the form that was found and the smaller ones in its repository, the largest first.

    `shape` is what all forms share; see `_shape` for its `weights_bytes`.
    """
    own = found.variant
    smaller = [one for one in _list_others(found) if one.size_bytes < own.size_bytes]
    for variant in (own, *sorted(smaller, key=lambda one: -_sum_weights(one))):
        size = max(0, shape.weights_bytes + _sum_weights(variant))
        scaled = replace(shape, weights_bytes=size, quant=variant.quant)
        fit = fits.judge(scaled, variant.format)
        if fit is not None:
            yield JudgedVariant(found, variant, scaled, fit)


def _list_others(found: Resolution) -> Iterator[Variant]:
    """Yield the other quantizations of the same model in its repository."""
    own = found.variant
    for variant in found.repository.variants:
        if variant == own or variant.format is not Format.GGUF is not own.format:
            continue
        if variant.quant not in (None, *_REMOVED) and _strip_stem(variant) == _strip_stem(own):
            yield variant


def _strip_stem(variant: Variant) -> str:
    name = strip_quant(get_stem(variant.files[0].path))
    return "".join(letter for letter in name if letter.isalnum())


def _read_shape(found: Resolution, read: ReadInfo) -> ModelInfo:
    """Return a form's metadata; its `weights_bytes` is the difference to the size of its files."""
    size = _sum_weights(found.variant)
    try:
        info = read(found)
    except (Offline, AuthRequired):
        raise
    except SourceError:  # the download will report it; the size is known anyway
        info = ModelInfo(architecture="unknown", weights_bytes=size)
    return replace(info, weights_bytes=info.weights_bytes - size)


def _sum_weights(variant: Variant) -> int:
    return sum(file.size_bytes for file in variant.files if not is_projector(file.path))


def _resolve(taken: JudgedVariant, judged: Sequence[JudgedVariant], fits: FitsHere) -> Resolution:
    usual = judged[0]
    notes = taken.found.notes
    why = None
    if taken is not usual:
        fit = usual.fit
        if fit.fits and fit.is_whole:  # but not with a useful context
            fit = fits.judge(usual.info, usual.variant.format, taken.fit.context_length) or fit
        why = f"{usual.label} {_describe_fit(fit)}"
        notes = (*notes, f"chose {taken.label}: {why}")
    return replace(_mark_candidates(taken, judged, why, fits), notes=notes)


def _mark_candidates(
    taken: JudgedVariant, judged: Sequence[JudgedVariant], why: str | None, fits: FitsHere
) -> Resolution:
    """Return the resolution with this variant, and with each candidate's reason in memory terms."""
    verdicts = {(one.found.repository.hub_id, one.variant.label): one for one in judged}
    usual = judged[0]
    limit = usual.variant.size_bytes
    candidates = []
    for candidate in taken.found.candidates:
        variant = candidate.variant
        if variant is None:
            candidates.append(candidate)
            continue
        one = verdicts.get((candidate.hub_id, variant.label))
        is_taken = one is taken and one.fit.fits
        reason = candidate.reason
        if is_taken:
            if why is not None:
                reason = f"the largest that fits: {why}"
        elif one is not None and not (one.fit.fits and one.fit.is_whole):
            reason = f"it {_describe_fit(one.fit)}"
        elif one is not None and one.variant.size_bytes > taken.variant.size_bytes:
            reason = "it fits only with a small context"
        elif variant.format is taken.variant.format and variant.size_bytes > limit:
            reason = "chosen only on request"
            more = _sum_weights(variant) - _sum_weights(usual.variant)
            larger = replace(usual.info, weights_bytes=usual.info.weights_bytes + more)
            fit = fits.judge(larger, variant.format)
            reason += f": it {_describe_fit(fit)}" if fit else ""
        elif taken.fit.fits:
            reason = f"{taken.label} was chosen"
        else:
            reason = "it fits" if one is not None else "it is not considered"
        candidates.append(replace(candidate, taken=is_taken, reason=reason))
    return replace(taken.found, variant=taken.variant, candidates=tuple(candidates))


def _describe_fit(fit: Estimate) -> str:
    """Return how a form would lie in memory, as a verb and its objects."""
    if fit.fits and not fit.is_whole:
        return f"would have {round(100 * fit.ram_share)} % in RAM"
    return f"needs {fit.needed}, {fit.usable} usable"


def _explain_shortage(
    judged: Sequence[JudgedVariant], fits: FitsHere, family: ListFamily, *, named: bool
) -> Resolution:
    """Return the usual form, with a shortage that says why nothing fits, and what would."""
    usual = judged[0]
    smallest = min(judged, key=lambda one: one.fit.needed_bytes)
    text = f"{usual.label} needs {usual.fit.numbers}"
    hints: list[str] = []
    smaller = next((one for one in judged if one.fit.fits), None) if named else None
    if smaller is not None:
        hints.append(f"use {smaller.label}, which fits")
    elif smallest is not usual:
        text += f"; {smallest.label}, the smallest available, needs {smallest.fit.needed}"
    for one in (usual, smallest) if smaller is None else ():
        if context := fits.find_context(one.info, one.variant.format, one.fit):
            with_it = f" with {one.label}" if len(judged) > 1 else ""
            hints.append(f"reduce the context length, such as --context-length {context}{with_it}")
            break
    if smaller is None and (kin := _find_kin(usual, fits, family)):
        hints.append(f"use a smaller model of the family: {kin}")
    resolution = _mark_candidates(usual, judged, None, fits)
    shortage = NotEnoughMemory(
        f"model requires more memory ({text}) than is usable ({usual.fit.usable})",
        hint="; or ".join(hints)
        or "use a smaller model, or a repository with smaller quantizations of this one",
    )
    return replace(resolution, shortage=shortage)


def _find_kin(usual: JudgedVariant, fits: FitsHere, family: ListFamily) -> str | None:
    """Return the largest model of the family that fits, judged by its size."""
    info = usual.info
    if not info.parameter_count:
        return None
    for name, billions in family():
        share = billions * 1e9 / info.parameter_count
        if share > 0.9:  # it is this one
            continue
        # with the cache of the larger model, as that of the smaller one is not known
        other = replace(info, weights_bytes=int(info.weights_bytes * share))
        fit = fits.judge(other, usual.variant.format)
        if fit is not None and fit.fits:
            return name
    return None
