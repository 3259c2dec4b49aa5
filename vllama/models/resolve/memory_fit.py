"""Chooses the form of a model to fetch by memory, before a byte of its weights moves.

1. The usual one (Q4_K_M of a GGUF, all of a safetensors model) if it fits with a useful context.
   Files that fit whatever is in them are not read.
2. Else the largest smaller one of the same repository that fits; else the largest that fits with
   a shrunken context. One bit per weight is the last resort. Else another repository's form.
3. Larger ones only on request: a quantisation that the user named is never replaced.
4. If nothing fits, the `shortage` gives the numbers, and what would fit.

All forms of a model have the same shape, so one header describes them all: their weights differ as
their file sizes do. `models` knows neither engines nor the machine: the composed program passes in
a `Fits` (`plan.preview`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from vllama.base.errors import (
    AuthRequired,
    ModelNotFound,
    NoPlan,
    NotEnoughMemory,
    Offline,
    SourceError,
)
from vllama.models.names.quant import get_bit_width, strip_quant
from vllama.models.names.variants import get_stem, is_projector
from vllama.models.resolve.search import Resolution
from vllama.models.types import Format, ModelInfo, Variant

ReadInfo = Callable[[Resolution], ModelInfo]
ListFamily = Callable[[], Sequence[tuple[str, float]]]
LEAST_CONTEXT = 512
_REMOVED = ("Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8")  # llama.cpp does not load them any more


@dataclass(frozen=True, slots=True)
class JudgedVariant:
    """A form of the model, and how it would fit into memory."""

    found: Resolution
    variant: Variant
    info: ModelInfo
    fit: Fit

    @property
    def label(self) -> str:
        """The name of this form among the others."""
        return self.variant.quant or self.found.repository.hub_id


def choose_fitting(
    search: Iterator[Resolution], fits: Fits, read: ReadInfo, family: ListFamily, *, named: bool
) -> Resolution:
    """Choose among what `search` yields (see `iterate_resolutions`).

    `named`: the user named the quantisation, so the first is taken. `family` returns the other
    sizes of the model, as (name, billions of parameters). What does not fit at all is returned
    with a `shortage`. Raises what the search raises for its first result, NoPlan for what no engine
    here can serve, and Offline, AuthRequired and BadModelFile from `read`.
    """
    first = next(search)
    # what an engine refuses of safetensors, such as how they are packed, is in the small files
    is_small = fits.certainly(_weights(first.variant), first.variant.format)
    if is_small and first.variant.format is Format.GGUF:
        return first
    judged: list[JudgedVariant] = []
    shapes: dict[Format, ModelInfo] = {}
    found: Resolution | None = first
    while found is not None:
        format_ = found.variant.format
        if format_ not in shapes:
            shapes[format_] = shape = _shape(found, read)
            if found is first and (why := _explain_refusal(found, shape, fits)):
                raise make_refused_error(found, why)
            if is_small:
                return first
        here = list(_judge(found, shapes[format_], fits))
        if not here and found is first:
            return first  # memory does not decide
        judged += here
        choices = here[:1] if named else here
        if (taken := _best(choices)) is not None:
            return _taken(taken, judged, fits)
        found = None if named else _next(search)
    return _short(judged, fits, family, named=named)


def _explain_refusal(found: Resolution, shape: ModelInfo, fits: Fits) -> str | None:
    variant = found.variant
    size = max(0, shape.weights_bytes + _weights(variant))
    return fits.refuses(replace(shape, weights_bytes=size), variant.format, variant.paths)


def make_refused_error(found: Resolution, why: str) -> NoPlan:
    """Make the error for a form that the engines here refuse; `why` are their words."""
    base = next(iter(found.repository.bases), None)
    return NoPlan(
        f"cannot serve '{found.repository.hub_id}' here: {why}",
        hint=f"pull what it was made from: vllama pull hf.co/{base}"
        if base
        else "choose another repository of the model, such as a GGUF (hf.co/org/repo-GGUF)",
    )


def _best(choices: Sequence[JudgedVariant]) -> JudgedVariant | None:
    """Return the first that fits with a useful context, else the first that fits at all.

    Forms with one bit per weight come last.
    """
    some = [one for one in choices if get_bit_width(one.variant.quant) > 1]
    for group in (some, choices):
        fit = next((one for one in group if one.fit.roomy), None)
        fit = fit or next((one for one in group if one.fit.fits), None)
        if fit is not None:
            return fit
    return None


def _next(search: Iterator[Resolution]) -> Resolution | None:
    try:
        return next(search, None)
    except (SourceError, ModelNotFound):  # what was found so far is enough for an answer
        return None


def _judge(found: Resolution, shape: ModelInfo, fits: Fits) -> Iterator[JudgedVariant]:
    """Yield the form that was found and the smaller ones in its repository, the largest first.

    `shape` is what all forms share; see `_shape` for its `weights_bytes`.
    """
    own = found.variant
    smaller = [one for one in _others(found) if one.size_bytes < own.size_bytes]
    for variant in (own, *sorted(smaller, key=lambda one: -_weights(one))):
        size = max(0, shape.weights_bytes + _weights(variant))
        scaled = replace(shape, weights_bytes=size, quant=variant.quant)
        fit = fits.judge(scaled, variant.format)
        if fit is not None:
            yield JudgedVariant(found, variant, scaled, fit)


def _others(found: Resolution) -> Iterator[Variant]:
    """Yield the other quantisations of the same model in its repository."""
    own = found.variant
    for variant in found.repository.variants:
        if variant == own or variant.format is not Format.GGUF is not own.format:
            continue
        if variant.quant not in (None, *_REMOVED) and _stem(variant) == _stem(own):
            yield variant


def _stem(variant: Variant) -> str:
    name = strip_quant(get_stem(variant.files[0].path))
    return "".join(letter for letter in name if letter.isalnum())


def _shape(found: Resolution, read: ReadInfo) -> ModelInfo:
    """Return a form's metadata; its `weights_bytes` is the difference to the size of its files."""
    size = _weights(found.variant)
    try:
        info = read(found)
    except (Offline, AuthRequired):
        raise
    except SourceError:  # the download will report it; the size is known anyway
        info = ModelInfo(architecture="unknown", weights_bytes=size)
    return replace(info, weights_bytes=info.weights_bytes - size)


def _weights(variant: Variant) -> int:
    return sum(file.size_bytes for file in variant.files if not is_projector(file.path))


def _taken(taken: JudgedVariant, judged: Sequence[JudgedVariant], fits: Fits) -> Resolution:
    usual = judged[0]
    notes = taken.found.notes
    why = None
    if taken is not usual:
        fit = usual.fit
        if fit.fits:  # but not with a useful context
            fit = fits.judge(usual.info, usual.variant.format, taken.fit.context_length) or fit
        why = f"{usual.label} needs {fit.needed}, {fit.usable} usable"
        notes = (*notes, f"chose {taken.label}: {why}")
    return replace(_marked(taken, judged, why), notes=notes)


def _marked(taken: JudgedVariant, judged: Sequence[JudgedVariant], why: str | None) -> Resolution:
    """Return the resolution with this variant, and with each candidate's reason in memory terms."""
    verdicts = {(one.found.repository.hub_id, one.variant.label): one for one in judged}
    limit = judged[0].variant.size_bytes
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
        elif one is not None and not one.fit.fits:
            reason = f"it needs {one.fit.needed}, {one.fit.usable} usable"
        elif one is not None and one.variant.size_bytes > taken.variant.size_bytes:
            reason = "it fits with a small context only"
        elif variant.format is taken.variant.format and variant.size_bytes > limit:
            reason = "larger ones only if they are asked for"
        elif taken.fit.fits:
            reason = f"{taken.label} was taken"
        else:
            reason = "it would fit" if one is not None else "it is not considered"
        candidates.append(replace(candidate, taken=is_taken, reason=reason))
    return replace(taken.found, variant=taken.variant, candidates=tuple(candidates))


def _short(
    judged: Sequence[JudgedVariant], fits: Fits, family: ListFamily, *, named: bool
) -> Resolution:
    """Return the usual form, with a shortage that says why nothing fits, and what would."""
    usual = judged[0]
    smallest = min(judged, key=lambda one: one.fit.needed_bytes)
    text = f"{usual.label} needs {usual.fit.numbers}"
    hints: list[str] = []
    smaller = next((one for one in judged if one.fit.fits), None) if named else None
    if smaller is not None:
        hints.append(f"take {smaller.label}, which fits")
    elif smallest is not usual:
        text += f"; {smallest.label}, the smallest there is, needs {smallest.fit.needed}"
    for one in (usual, smallest):
        if smaller is None and (context := _context(one, fits)):
            with_it = f" with {one.label}" if len(judged) > 1 else ""
            hints.append(f"take a smaller context, such as --ctx {context}{with_it}")
            break
    if smaller is None and (kin := _kin(usual, fits, family)):
        hints.append(f"take a smaller model of the family: {kin}")
    resolution = _marked(usual, judged, None)
    shortage = NotEnoughMemory(
        f"model requires more memory ({text}) than is usable ({usual.fit.usable})",
        hint="; or ".join(hints)
        or "take a smaller model, or a repository with smaller quantisations of this one",
    )
    return replace(resolution, shortage=shortage)


def _context(one: JudgedVariant, fits: Fits) -> int | None:
    """Return the largest context, found by halving, with which a form fits."""
    context = one.fit.context_length // 2
    while context >= LEAST_CONTEXT:
        fit = fits.judge(one.info, one.variant.format, context)
        if fit is not None and fit.fits:
            return context
        context //= 2
    return None


def _kin(usual: JudgedVariant, fits: Fits, family: ListFamily) -> str | None:
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


class Fit(Protocol):
    """What a model takes, and what there is."""

    @property
    def fits(self) -> bool:
        """Whether there is enough memory."""

    @property
    def roomy(self) -> bool:
        """Whether it fits with a context that one can work with, not only with a shrunken one."""

    @property
    def context_length(self) -> int:
        """The context in tokens."""

    @property
    def needed_bytes(self) -> int:
        """What it takes."""

    @property
    def needed(self) -> str:
        """The same for people."""

    @property
    def usable(self) -> str:
        """What there is, for people."""

    @property
    def numbers(self) -> str:
        """What it takes and the parts of that, for people."""


class Fits(Protocol):
    """Judges a model by its metadata, or by its size alone."""

    def certainly(self, size_bytes: int, format_: Format) -> bool:
        """Tell whether files of that size fit whatever is in them: nothing needs to be read."""
        ...

    def refuses(self, info: ModelInfo, format_: Format, paths: Sequence[str]) -> str | None:
        """Return why no engine here can serve such a model of these files; None if one may."""
        ...

    def judge(
        self, info: ModelInfo, format_: Format, context_length: int | None = None
    ) -> Fit | None:
        """Return how it would fit here, with a context of its own if one is given.

        None: no engine here reads the format, or it refuses the model for another reason, so
        that memory does not decide.
        """
        ...
