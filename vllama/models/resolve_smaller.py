"""Quantised safetensors of a model, for when the whole one does not fit; data for the planner."""

from __future__ import annotations

from dataclasses import replace

from vllama.errors import ModelNotFound, Offline, SourceError
from vllama.models.resolve_choice import TRIES, Candidate, closed, refusal
from vllama.models.resolve_match import PACKERS, SCHEMES, no_form_of, packed_names, rank, scheme
from vllama.models.sources.base import Hub, Listed, Repository, Transient
from vllama.models.types import Format
from vllama.models.variants import safetensors_files


def smaller(hub: Hub, repository: Repository) -> tuple[Candidate, ...]:
    """Return quantised safetensors of a model, best first, and what was not fit for it.

    The maker's own first, then known packers; of each FP8, then INT8, AWQ, GPTQ, NVFP4 …
    Those that can be served have sizes. Whether one fits is decided elsewhere.
    """
    base = repository.hub_id
    listed = hub.children(base)
    refused: list[Candidate] = []
    fit: list[Listed] = []
    for child in listed:
        if not safetensors_files(child.paths):
            continue  # GGUF and others: not meant here
        reason = no_form_of(base, child.hub_id) or closed(child)
        if reason is None and scheme(child.hub_id) is None:
            reason = "its name does not say how it is quantised"
        if reason is None:
            fit.append(child)
        else:
            refused.append(refusal(child.hub_id, "listed by the hub", reason))

    def order(hub_id: str) -> tuple[int, int]:
        return rank(base, hub_id, PACKERS), SCHEMES.index(scheme(hub_id) or SCHEMES[-1])

    fit.sort(key=lambda child: order(child.hub_id))
    # those that are opened count: each costs a request
    names = [(child.hub_id, "listed by the hub") for child in fit[:TRIES]]
    if not fit:
        names = [(name, "by its name") for name in packed_names(base)]
    usable: list[Candidate] = []
    for name, found in names:
        try:
            other = hub.resolve(name)
            hub.check_access(other)
        except (Offline, Transient):
            raise
        except (ModelNotFound, SourceError) as error:
            refused.append(refusal(name, found, error.message))
            continue
        whole = next((v for v in other.variants if v.format is Format.SAFETENSORS), None)
        if whole is None:
            refused.append(refusal(name, found, "it holds no safetensors"))
            continue
        kind = scheme(other.hub_id)
        usable.append(
            Candidate(
                hub_id=other.hub_id,
                found=found,
                reason=f"{kind} of the same model",
                quant=kind,
                variant=replace(whole, quant=kind),
                repository=other,
            )
        )
    return (*usable, *refused)
