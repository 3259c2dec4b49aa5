"""The plan for a name, before anything is downloaded: what it stands for, and how it would run.

The same for `vllama plan`, `/api/plan` and the Python API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vllama.base.errors import ModelNotFound, NotEnoughMemory, VllamaError
from vllama.models.hub_cache import MAIN, HubRepo
from vllama.models.library import Library
from vllama.models.names.ref import Kind, ModelRef, is_cloud
from vllama.models.remote import make_too_large_error
from vllama.models.resolve.search import Resolution
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.plan.choose import list_loadable_formats
from vllama.plan.distribution import is_divided
from vllama.plan.form_choice import FitsHere
from vllama.plan.ladder import make_first_plan
from vllama.plan.quant_fallback import Form, list_forms_here
from vllama.plan.remote import add_remote
from vllama.plan.report import describe_memory, find_refused, make_report, report_plan
from vllama.plan.types import Facts, Need

Fit = Literal["fits", "partly", "later", "too large", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Resolution of a name on this machine.

    `bundle` names the files, on this disk if `is_here`, else where a pull would put them; then
    `resolution` has the repository, what else was considered and why not, and notes such as the
    license.
    """

    bundle: Bundle
    resolution: Resolution | None = None

    @property
    def is_here(self) -> bool:
        """True if nothing has to be downloaded."""
        return self.resolution is None


def resolve_name(library: Library, facts: Facts, name: str) -> Resolved:
    """Return the resolution of `name`. Raises as a pull does, except NotEnoughMemory."""
    try:
        return Resolved(bundle=library.find(name).bundle)
    except ModelNotFound:
        ref = ModelRef.parse(name)
        if ref.kind is Kind.PATH or is_cloud(ref):
            raise
        formats, fits = list_loadable_formats(facts), FitsHere(facts)
        found = library.remote.look_up(name, formats=formats, fits=fits)
    return Resolved(bundle=_make_bundle(library, found), resolution=found)


def preview_plan(
    library: Library, facts: Facts, environ: Mapping[str, str], name: str
) -> dict[str, Any]:
    """Plan for a model on this disk, or for what a pull would get; see `report.make_report`.

    Raises what a pull raises.
    """
    resolved = resolve_name(library, facts, name)
    bundle, found = resolved.bundle, resolved.resolution
    if found is None:
        facts, info = add_remote(facts, bundle), library.plan_info(bundle)
        forms = list_forms_here(library, bundle)
        return report_plan(facts, bundle, info, environ, forms=forms)
    more: dict[str, Any] = {
        "files": [
            {"name": file.path, "size_bytes": file.size_bytes, "here": False}
            for file in found.variant.files
        ],
        "candidates": [
            {
                "repository": one.hub_id,
                "quantization": one.quant,
                "size_bytes": one.size_bytes,
                "taken": one.taken,
                "reason": one.reason,
            }
            for one in found.candidates
        ],
        "notes": found.notes,
    }
    info = library.remote.look_into(found)
    if found.shortage is None:
        return report_plan(facts, bundle, info, environ, **more)
    refusal = make_too_large_error(ModelRef.parse(name), found, found.shortage, to_load=True)
    more["refused"] = find_refused(facts, bundle, info)
    return make_report(facts, bundle, refusal, environ=environ, **more)


def preview_fit(
    facts: Facts, bundle: Bundle, info: ModelInfo, forms: Callable[[], Sequence[Form]] = tuple
) -> dict[str, Any]:
    """Return where a model on this disk would lie (`fit`), with the memory of its plan.

    A part of `report_plan`'s report that reads no files. `forms`: see `make_first_plan`.
    """
    told = {"fit": "fits", "model": bundle.name, "format": str(bundle.format)}
    try:
        plan = make_first_plan(facts, bundle, info, Need(), forms)
    except VllamaError as error:
        fit = "too large" if isinstance(error, NotEnoughMemory) else "unknown"
        return told | {"fit": fit, "error": error.message}
    in_ram = not plan.memory.on_gpu or is_divided(plan.info, plan.settings)
    if facts.platform.accelerators and in_ram and bundle.format is not Format.REMOTE:
        told["fit"] = "partly"
    return told | {"files": [], "candidates": []} | describe_memory(facts.of(bundle), plan)


def _make_bundle(library: Library, found: Resolution) -> Bundle:
    """Return the bundle that a pull would make, as if it were on this disk."""
    repository, variant = found.repository, found.variant
    repo = HubRepo(library.settings.hf_cache_dir, repository.hub_id)
    folder = repo.snapshot(repository.commit)
    files = tuple(folder / file.path for file in variant.files)
    return Bundle(
        name=ModelRef.of_hub(repository.hub_id, variant.label, repository.branch).display,
        store="hub",
        format=variant.format,
        path=files[0] if variant.format is Format.GGUF else folder,
        files=files,
        size_bytes=variant.size_bytes,
        digest="",
        modified_s=0.0,
        quant=variant.quant,
        hub_id=repository.hub_id,
        revision=None if repository.branch == MAIN else repository.branch,
    )
