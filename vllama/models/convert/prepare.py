"""Decides how to convert a model before anything is fetched, so that the user can be asked.

Nothing is written here. The hub is asked about a model that is not on this disk.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.base.errors import BadRequest, ModelNotFound, NoPlan
from vllama.models.convert.job import SAFETENSORS, ConversionJob, ConversionOptions, Original
from vllama.models.convert.tools import (
    DEFAULT,
    DIRECT,
    check_requantize,
    parse_quant,
)
from vllama.models.convert.workspace import check_weights
from vllama.models.create import check_new_name
from vllama.models.library import Library
from vllama.models.names.quant import UNQUANTIZED, choose_intermediate, parse_quant_tag
from vllama.models.names.ref import Kind, ModelRef
from vllama.models.types import Bundle, Capability, Format, ModelInfo

if TYPE_CHECKING:
    from vllama.models.resolve.search import Resolution


def prepare(library: Library, name: str, wishes: ConversionOptions) -> ConversionJob:
    """Decide what would be done with `name`. Blocking; asks the hub if the model is not here.

    Raises BadRequest, InvalidModelRef, ModelNotFound, NoPlan, BadModelFile and what the hub raises.
    """
    quantize = parse_quant(wishes.quantize) if wishes.quantize else None
    outtype = _outtype(wishes.outtype)
    original = find_original(library, name)
    found: Resolution | None = None
    if original.bundle is None:
        try:
            found = library.remote.look_up(original.pull_name, formats=SAFETENSORS)
        except NoPlan as error:
            raise NoPlan(
                f"cannot convert '{name}': no safetensors found ({error.message})",
                hint=f"pull it without converting: vllama pull {name}",
            ) from error
        repository = found.repository
        spelled = ModelRef.of_hub(repository.hub_id, revision=repository.branch)  # as the hub does
        original = replace(original, plain=spelled, pull_name=spelled.display)
        info = library.remote.look_into(found)
    else:
        check_format(original.bundle)
        info = library.info(original.bundle)
    if original.bundle is not None and original.bundle.format is Format.GGUF:
        quant, via = _smaller(name, info, quantize), None
    else:
        # before the download, as `check_folder` would after it
        check_weights(name, info.quant, is_mistral=info.mistral_weights)
        wanted = quantize or outtype or (parse_quant(original.quant) if original.quant else None)
        embeds = Capability.EMBEDDING in info.capabilities
        quant = wanted or ("AUTO" if embeds else DEFAULT)
        if quant == "AUTO":
            quant = choose_intermediate(info.quant)
        via = quant if quant in DIRECT else _via(name, quant, outtype, info)
    return ConversionJob(
        name=name,
        original=original,
        found=found,
        info=info,
        quant=quant,
        via=via,
        result=_result(wishes.output, original, quant),
        wishes=wishes,
    )


def _outtype(text: str | None) -> str | None:
    if text is None or text.lower() == "auto":
        return text.upper() if text else None
    name = parse_quant(text)
    if name not in DIRECT:
        raise BadRequest(
            f'unsupported type "{text}"',
            hint=f"use {', '.join(sorted(DIRECT))} or auto; for other types use --quantize",
        )
    return name


def _via(name: str, quant: str, outtype: str | None, info: ModelInfo) -> str:
    via = outtype if outtype not in (None, "AUTO") else choose_intermediate(info.quant)
    if via not in UNQUANTIZED:
        check_requantize(name, via, quant)
    assert via is not None
    return via


def _smaller(name: str, info: ModelInfo, quantize: str | None) -> str:
    """Return the type that a GGUF becomes. Raises BadRequest."""
    if quantize is None:
        raise BadRequest(
            f"cannot convert '{name}': it is already a GGUF file",
            hint="to make it smaller, add --quantize Q4_K_M",
        )
    if (info.quant or "").upper() == quantize:
        raise BadRequest(
            f"cannot convert '{name}': it is already {quantize}",
            hint="choose a smaller one, such as Q4_K_M",
        )
    check_requantize(name, info.quant, quantize)
    return quantize


def _result(output: str | None, original: Original, quant: str) -> str | Path:
    """Return the new model's name, or the path to write. Raises BadRequest."""
    if output is None:
        return original.result(quant)
    if not output.lower().endswith(".gguf"):
        return check_new_name(output)
    path = Path(output).expanduser().absolute()
    if path.is_dir():
        raise BadRequest(f"cannot write '{output}': it is a folder")
    return path


def find_original(library: Library, name: str) -> Original:
    """Resolve `name`: a path, a model of this disk, or one to be pulled.

    Raises InvalidModelRef, ModelNotFound, BadRequest.
    """
    ref = ModelRef.parse(name)
    if ref.kind is Kind.PATH:
        plain = ModelRef(kind=Kind.LIBRARY, text=ref.model, model=ref.model)
        return Original(plain=plain, pull_name=name, bundle=library.find(name).bundle)
    hub = library.find_alias(ref) or (ref if ref.kind is Kind.HUB else None)
    quant = parse_quant_tag((hub or ref).tag)
    if hub is None or hub.hub_id is None:
        bundle = library.find(name).bundle
        return Original(plain=ref, pull_name=name, quant=None, bundle=bundle)
    plain = ModelRef.of_hub(hub.hub_id, revision=hub.revision)
    here = next(
        (
            bundle
            for bundle in library.list()
            if bundle.format is Format.SAFETENSORS
            and (bundle.hub_id or "").lower() == hub.hub_id.lower()
            and bundle.revision == hub.revision
        ),
        None,
    )
    if here is None and hub.has_tag:
        with suppress(ModelNotFound):
            here = library.find(name).bundle  # the GGUF of exactly that quantization
    if here is not None and here.hub_id:
        plain = ModelRef.of_hub(here.hub_id, revision=hub.revision)  # in the hub's own spelling
    gguf = here is not None and here.format is Format.GGUF
    return Original(
        plain=plain, pull_name=plain.display, quant=None if gguf else quant, bundle=here
    )


def check_format(bundle: Bundle) -> None:
    """Refuse files that are neither GGUF nor safetensors on this disk. Raises BadRequest."""
    if bundle.format is Format.REMOTE:
        raise BadRequest(
            f"cannot convert '{bundle.name}': its files are on another server",
            hint="run vllama convert on that server",
        )
