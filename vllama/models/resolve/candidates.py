"""Candidates for a model: a repository's own variants, and its quantized forms by others.

Also why a repository of the hub cannot be served here, and what to take in its place. The names of
its files tell most of it. For the rest two small JSON files are read from the hub: `config.json`
says how safetensors are packed, and `adapter_config.json` what an adapter belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from vllama.base.errors import ModelNotFound, NoPlan, Offline, SourceError
from vllama.models.names.mistral_format import PARAMS
from vllama.models.names.quant import UNDONE_BY_NOBODY, parse_quant_tag, read_scheme
from vllama.models.names.variants import (
    INDEX,
    choose_group,
    choose_safetensors_files,
    choose_weights,
    explain_left_out,
    find_missing_shards,
    group_ggufs,
    is_mistral_format,
)
from vllama.models.resolve.matching import (
    PACKERS,
    SCHEMES,
    explain_name_mismatch,
    get_scheme,
    guess_quantized_names,
    rank_publisher,
)
from vllama.models.types import Bundle, Format, Listed, Repository, Transient, Variant

if TYPE_CHECKING:
    from vllama.models.sources.hf import HuggingFace

LISTED, DISABLED = "from the hub's list", "it is private or disabled"
TRIES = 8  # other people's repositories to open before giving up
ReadJson = Callable[[str], Mapping[str, object]]
_NAMES_SHOWN = 8
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".onnx", ".h5", ".npz", ".nemo", ".mlmodel", ".tflite")


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
        """Quantization, if it can be served."""
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
        return "it has no GGUF files"
    wanted = parse_quant_tag(tag or "") or tag
    return f"it has no {wanted}, only {', '.join(labels[:_NAMES_SHOWN])}"


def find_quantized_safetensors(hub: HuggingFace, repository: Repository) -> tuple[Candidate, ...]:
    """Return quantized safetensors of a model, best first, and what was not fit for it.

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
            reason = "its name does not state the quantization"
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
        names = [(name, "by its name") for name in guess_quantized_names(base)]
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
            reason = "it has no safetensors files"
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
    return f"convert it to GGUF: vllama convert {name}"


def suggest_conversion_of(bundle: Bundle) -> str | None:
    """Return the remedy for a model whose safetensors nothing here serves."""
    is_mistral = is_mistral_format(path.name for path in bundle.files)
    if bundle.format is not Format.SAFETENSORS or is_mistral:
        return None
    return suggest_conversion(bundle.hub_id or str(bundle.path))


def make_no_variant_error(
    repository: Repository, tag: str | None, formats: Sequence[Format], read: ReadJson
) -> ModelNotFound | NoPlan:
    """Make the error for a repository that has nothing of `formats` with `tag`.

    `read` returns a JSON file of the repository, empty if there is none.
    """
    if not repository.variants:
        return _make_no_weights_error(repository, read)
    if tag is not None and any(variant.format in formats for variant in repository.variants):
        return _make_no_tag_error(repository, tag, formats)
    return _make_format_error(repository, formats, read)


def explain_missing_weights(repository: Repository, read: ReadJson) -> str | None:
    """Return which weights of a safetensors model the repository lacks; None if it has them all.

    `read` as for `make_no_variant_error`.
    """
    paths = repository.paths
    index = read(INDEX).get("weight_map") if INDEX in paths else None
    named = {str(name) for name in index.values()} if isinstance(index, dict) else set()
    shards = find_missing_shards(choose_weights(paths))
    missing = sorted(named.difference(paths)) if named else list(shards)
    if not missing:
        return None
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"its weights are incomplete: the repository lacks {missing[0]}{more}"


def suggest_bases(repository: Repository, read: ReadJson) -> str | None:
    """Return the imperative to pull what a repository was made from; None if nothing tells it."""
    bases: Sequence[object] = repository.bases
    if not bases:
        bases = [read("adapter_config.json").get("base_model_name_or_path")]
    named = next((base for base in bases if isinstance(base, str) and base.count("/") == 1), None)
    return f"vllama pull hf.co/{named}" if named and not named.startswith((".", "/")) else None


def _make_no_weights_error(repository: Repository, read: ReadJson) -> NoPlan:
    """Make the error for a repository without weights of a format that any engine reads."""
    hub_id, names = repository.hub_id, set(repository.paths)
    base = suggest_bases(repository, read)
    if "adapter_config.json" in names or "adapter_model.safetensors" in names:
        return NoPlan(
            f"cannot serve '{hub_id}': it is a LoRA adapter, which needs its base model",
            hint=f"pull the base model: {base or 'see its page on the hub'}; then add the adapter "
            "with ADAPTER in a Modelfile (vllama create)",
        )
    if any(PurePosixPath(name).match("consolidated*.safetensors") for name in names):
        return NoPlan(
            f"cannot serve '{hub_id}': its weights are in Mistral's own format "
            f"(consolidated.safetensors), and {PARAMS} is missing",
            hint="find the same model as GGUF or in the transformers format",
        )
    if "model_index.json" in names:
        return NoPlan(
            f"cannot serve '{hub_id}': it is a diffusers pipeline, not a language model",
            hint="use a language model, such as Qwen/Qwen3-0.6B",
        )
    problems = explain_left_out(names)
    what = "; ".join(f"{path}: {why}" for path, why in list(problems.items())[:2])
    return NoPlan(
        f"cannot serve '{hub_id}': it has neither GGUF nor safetensors weights"
        f"{' that can be used' if problems else ''}, only {what or _list_kinds(sorted(names))}",
        hint="find a quantized repository of the model on the hub",
    )


def _make_no_tag_error(
    repository: Repository, tag: str, formats: Sequence[Format]
) -> ModelNotFound:
    """Make the error for a tag that none of the repository's models has."""
    labels = [variant.label for variant in repository.variants if variant.format in formats]
    shown = ", ".join(labels[:_NAMES_SHOWN]) + (" …" if len(labels) > _NAMES_SHOWN else "")
    has_quants = any(variant.format is Format.GGUF for variant in repository.variants)
    problems = explain_left_out(repository.paths)
    broken = next((f": {p}: {why}" for p, why in problems.items() if tag.lower() in p.lower()), "")
    return ModelNotFound(
        f"hf.co/{repository.hub_id}:{tag}",
        message=f"cannot find ':{tag}' in '{repository.hub_id}'{broken}",
        hint=f"use one of: {shown}"
        if has_quants
        else f"omit the tag: neither this repository nor another GGUF of it has {tag}",
    )


def _make_format_error(repository: Repository, formats: Sequence[Format], read: ReadJson) -> NoPlan:
    """Make the error for a repository whose formats no engine here reads."""
    hub_id, found = repository.hub_id, {variant.format for variant in repository.variants}
    if Format.SAFETENSORS not in formats and is_mistral_format(repository.paths):
        return NoPlan(
            f"cannot serve '{hub_id}' here: its weights are in Mistral's own format "
            f"({PARAMS}), which no installed engine supports",
            hint="use a GGUF repository of the model, or install an engine that supports it: "
            "vllama engines",
        )
    scheme = read_scheme(read("config.json")) if Format.SAFETENSORS in found else None
    have, want = " and ".join(sorted(found)), " or ".join(formats) or "another format"
    is_mlx = scheme is not None and scheme.startswith("MLX")
    packed = " packed for Apple's MLX" if is_mlx else f" quantized with {scheme}" if scheme else ""
    error = NoPlan(f"cannot serve '{hub_id}' here: it has only {have}{packed}; {want} is required")
    base = suggest_bases(repository, read)
    instead = f"pull the original model: {base}" if base else "use a GGUF of the model"
    if is_mlx:
        error.hint = instead
    elif Format.GGUF not in formats:
        install = "install an engine that supports it: vllama engines"
        error.hint = f"{instead}; or {install}" if base else install
    elif Format.SAFETENSORS in found and (scheme or "").lower() in UNDONE_BY_NOBODY:
        error.hint = f"{instead}; or install an engine for {have}: vllama engines"
    else:
        error.hint = (
            f"{suggest_conversion(hub_id)}; or use a GGUF repository of the model, "
            f"or install an engine for {have}: vllama engines"
        )
    return error


def _list_kinds(names: Sequence[str]) -> str:
    """List the files that may hold weights, or say that there are none."""
    weights = [name for name in names if name.endswith(_OTHER_WEIGHTS)]
    weights = weights or [name for name in names if name.endswith((".gguf", ".safetensors"))]
    shown = ", ".join((weights or names)[:4])
    return f"{shown}{' …' if len(weights or names) > 4 else ''}" if names else "no files"


def read_or_nothing(read: ReadJson) -> ReadJson:
    """Make a reader that takes a file that cannot be read for one that is absent.

    For explanations: the error that is being explained counts, not one on the way.
    """

    def read_it(path: str) -> Mapping[str, object]:
        try:
            return read(path)
        except (ModelNotFound, SourceError):
            return {}

    return read_it
