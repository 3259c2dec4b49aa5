"""Candidates for a model: a repository's own variants, and its quantised forms by others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vllama.base.errors import ModelNotFound, Offline, SourceError
from vllama.models.names.quant import parse_quant_tag
from vllama.models.names.variants import (
    choose_group,
    choose_safetensors_files,
    explain_left_out,
    group_ggufs,
    is_mistral_format,
)
from vllama.models.resolve.matching import (
    PACKERS,
    SCHEMES,
    explain_name_mismatch,
    get_scheme,
    guess_quantised_names,
    rank_publisher,
)
from vllama.models.types import Bundle, Format, Listed, Repository, Transient, Variant

if TYPE_CHECKING:
    from vllama.models.sources.hf import HuggingFace

LISTED, DISABLED = "listed by the hub", "it is private or disabled"
TRIES = 8  # other people's repositories to open before giving up
_NAMES_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Something that was considered: a variant of a repository, or a repository as a whole.

    `found` says where it came from ("named", "listed by the hub", "by its name"); `reason` says why
    it was taken or not, in words that follow "because". `variant` and `repository` are set if it
    could be served, so that another part may take it instead.
    """

    hub_id: str
    found: str
    reason: str
    taken: bool = False
    variant: Variant | None = None
    repository: Repository | None = None

    @property
    def quant(self) -> str | None:
        """How it is quantised, where it could be served."""
        return self.variant.quant if self.variant else None

    @property
    def size_bytes(self) -> int | None:
        """Bytes to fetch, where it could be served."""
        return self.variant.size_bytes if self.variant else None


def find_variant(repository: Repository, format: Format, tag: str | None) -> Variant | None:
    """Return a repository's own variant of a format, by tag if given; None if it has none."""
    variants = [v for v in repository.variants if v.format is format]
    if format is not Format.GGUF:
        return variants[0] if variants and tag is None else None
    chosen = choose_group(group_ggufs(path for v in variants for path in v.paths), tag)
    return next((v for v in variants if chosen and v.paths == chosen.all_paths), None)


def explain_missing_variant(repository: Repository, tag: str | None) -> str:
    """Return why a repository has no GGUF with that tag."""
    problems = explain_left_out(repository.paths)
    if problems:
        return "; ".join(f"{path}: {why}" for path, why in problems.items())
    labels = [v.label for v in repository.variants if v.format is Format.GGUF]
    if not labels:
        return "it holds no GGUF"
    wanted = parse_quant_tag(tag or "") or tag
    return f"it has no {wanted}, only {', '.join(labels[:_NAMES_SHOWN])}"


def find_quantised_safetensors(hub: HuggingFace, repository: Repository) -> tuple[Candidate, ...]:
    """Return quantised safetensors of a model, best first, and what was not fit for it.

    The maker's own first, then known packers; of each FP8, then INT8, AWQ, GPTQ, NVFP4 …
    Those that can be served have sizes. Whether one fits is decided elsewhere.
    """
    base = repository.hub_id
    listed = hub.children(base)
    refused: list[Candidate] = []
    fit: list[Listed] = []
    for child in listed:
        if not choose_safetensors_files(child.paths):
            continue  # GGUF and others: not meant here
        reason = explain_name_mismatch(base, child.hub_id) or (child.disabled and DISABLED) or None
        if reason is None and get_scheme(child.hub_id) is None:
            reason = "its name does not say how it is quantised"
        if reason is None:
            fit.append(child)
        else:
            refused.append(Candidate(hub_id=child.hub_id, found=LISTED, reason=reason))

    def order(hub_id: str) -> tuple[int, int]:
        return rank_publisher(base, hub_id, PACKERS), SCHEMES.index(
            get_scheme(hub_id) or SCHEMES[-1]
        )

    fit.sort(key=lambda child: order(child.hub_id))
    # those that are opened count: each costs a request
    names = [(child.hub_id, LISTED) for child in fit[:TRIES]]
    if not fit:
        names = [(name, "by its name") for name in guess_quantised_names(base)]
    usable: list[Candidate] = []
    for name, found in names:
        try:
            other = hub.resolve(name)
            hub.check_access(other)
        except (Offline, Transient):
            raise
        except (ModelNotFound, SourceError) as error:
            refused.append(Candidate(hub_id=name, found=found, reason=error.message))
            continue
        whole = next((v for v in other.variants if v.format is Format.SAFETENSORS), None)
        if whole is None:
            reason = "it holds no safetensors"
            refused.append(Candidate(hub_id=name, found=found, reason=reason))
            continue
        kind = get_scheme(other.hub_id)
        usable.append(
            Candidate(
                hub_id=other.hub_id,
                found=found,
                reason=f"{kind} of the same model",
                variant=replace(whole, quant=kind),
                repository=other,
            )
        )
    return (*usable, *refused)


def suggest_conversion(name: str) -> str:
    """Return the imperative that makes a GGUF of `name`."""
    return f"make a GGUF of it: vllama convert {name}"


def suggest_conversion_of(bundle: Bundle) -> str | None:
    """Return what can be done with a model whose safetensors nothing here serves."""
    is_mistral = is_mistral_format(path.name for path in bundle.files)
    if bundle.format is not Format.SAFETENSORS or is_mistral:
        return None
    return suggest_conversion(bundle.hub_id or str(bundle.path))
