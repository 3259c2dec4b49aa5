"""Says why a repository of the hub cannot be served here, and what to take in its place.

The names of its files tell most of it. For the rest two small JSON files are read from the hub:
`config.json` says how safetensors are packed, and `adapter_config.json` what an adapter belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath

from vllama.base.errors import ModelNotFound, NoPlan, SourceError
from vllama.models.names.mistral_format import PARAMS
from vllama.models.names.quant import UNDONE_BY_NOBODY, read_scheme
from vllama.models.names.variants import (
    INDEX,
    choose_weights,
    explain_left_out,
    find_missing_shards,
    is_mistral_format,
)
from vllama.models.resolve.candidates import suggest_conversion
from vllama.models.types import Format, Repository

ReadJson = Callable[[str], Mapping[str, object]]
_NAMES_SHOWN = 8
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".onnx", ".h5", ".npz", ".nemo", ".mlmodel", ".tflite")


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
    return f"its weights are not complete: the repository lacks {missing[0]}{more}"


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
            f"cannot serve '{hub_id}': it is a LoRA adapter, which needs the model that it was "
            "made for",
            hint=f"pull that model: {base or 'its page on the hub names it'}; then add the adapter "
            "with ADAPTER in a Modelfile (vllama create)",
        )
    if any(PurePosixPath(name).match("consolidated*.safetensors") for name in names):
        return NoPlan(
            f"cannot serve '{hub_id}': its weights are in Mistral's own format "
            f"(consolidated.safetensors), and the {PARAMS} that belongs to it is missing",
            hint="look for the same model as GGUF or in the format of transformers",
        )
    if "model_index.json" in names:
        return NoPlan(
            f"cannot serve '{hub_id}': it is a pipeline of the diffusers library, not a language "
            "model",
            hint="choose a language model, such as Qwen/Qwen3-0.6B",
        )
    problems = explain_left_out(names)
    what = "; ".join(f"{path}: {why}" for path, why in list(problems.items())[:2])
    return NoPlan(
        f"cannot serve '{hub_id}': it holds neither GGUF nor safetensors weights"
        f"{' that can be used' if problems else ''}, only {what or _list_kinds(sorted(names))}",
        hint="look for a quantised repository of the model on the hub",
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
        hint=f"take one of: {shown}"
        if has_quants
        else f"leave the tag out: neither it nor a GGUF of it by others has {tag}",
    )


def _make_format_error(repository: Repository, formats: Sequence[Format], read: ReadJson) -> NoPlan:
    """Make the error for a repository whose formats no engine here reads."""
    hub_id, found = repository.hub_id, {variant.format for variant in repository.variants}
    if Format.SAFETENSORS not in formats and is_mistral_format(repository.paths):
        return NoPlan(
            f"cannot serve '{hub_id}' here: its weights are in Mistral's own format "
            f"({PARAMS}), which no engine here reads",
            hint="name a GGUF repository of the model, or install an engine that serves it: "
            "vllama engines",
        )
    scheme = read_scheme(read("config.json")) if Format.SAFETENSORS in found else None
    have, want = " and ".join(sorted(found)), " or ".join(formats) or "another format"
    is_mlx = scheme is not None and scheme.startswith("MLX")
    packed = " packed for Apple's MLX" if is_mlx else f" quantised with {scheme}" if scheme else ""
    error = NoPlan(
        f"cannot serve '{hub_id}' here: it holds {have}{packed} only, and {want} is wanted"
    )
    base = suggest_bases(repository, read)
    instead = f"pull what it was made from: {base}" if base else "name a GGUF of the model"
    if is_mlx:
        error.hint = instead
    elif Format.GGUF not in formats:
        install = "install an engine that serves it: vllama engines"
        error.hint = f"{instead}; or {install}" if base else install
    elif Format.SAFETENSORS in found and (scheme or "").lower() in UNDONE_BY_NOBODY:
        error.hint = f"{instead}; or install an engine for {have}: vllama engines"
    else:
        error.hint = (
            f"{suggest_conversion(hub_id)}; or name a GGUF repository of the model, "
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
