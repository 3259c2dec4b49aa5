"""Description of a model: the fields of `/api/show`, for the server and for `vllama show`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from vllama.base.units import rfc3339_local
from vllama.dialects.ollama.answer_types import Tensor
from vllama.models.headers.info import (
    build_details,
    build_model_info,
    describe_template,
    read_projector_info,
)
from vllama.models.modelfile import (
    BARE_TEMPLATE,
    format_modelfile,
    format_parameters,
    list_parameters,
)
from vllama.models.types import Bundle, Capability, ModelInfo

if TYPE_CHECKING:
    from vllama.models.library import Library

LAYER = re.compile(r"blk\.(\d+)\.")
ALWAYS = ("details", "model_info", "modified_at")  # what is shown even if it is empty


def describe_model(bundle: Bundle, info: ModelInfo, *, verbose: bool) -> dict[str, Any]:
    """Return the fields of a model's description, without those that are empty.

    With `verbose` the long arrays of the metadata are read from the file again, and always that of
    the projector. Raises BadModelFile.
    """
    shown = {
        "license": bundle.license or info.license,
        "modelfile": format_modelfile(bundle, info),
        "parameters": format_parameters(list_parameters(bundle, info)),
        "template": bundle.template or info.chat_template or BARE_TEMPLATE,
        "system": bundle.system,
        "renderer": bundle.renderer,
        "parser": bundle.parser,
        "details": build_details(bundle, info, lengths=False),
        "messages": list(bundle.messages),
        "model_info": build_model_info(info, verbose=verbose),
        "projector_info": read_projector_info(bundle.projector) if bundle.projector else None,
        "tensors": list_tensors(info),
        "capabilities": list_capabilities(info),
        "modified_at": rfc3339_local(bundle.modified_s),
        "requires": bundle.requires,
    }
    return {name: value for name, value in shown.items() if value or name in ALWAYS}


def describe_to_owner(library: Library, bundle: Bundle, *, verbose: bool) -> dict[str, Any]:
    """Return the description, and details for this machine's user only. Raises BadModelFile."""
    info = library.info(bundle)
    shown = {
        **msgspec.to_builtins(describe_model(bundle, info, verbose=verbose)),
        "details": msgspec.to_builtins(build_details(bundle, info)),
        "path": str(bundle.path),
    }
    if not verbose:
        shown.pop("tensors", None)
    if bundle.revision:
        shown["revision"] = bundle.revision
    if words := describe_template(bundle, info):
        shown["vllama"] = {"template": words}
    return shown


def list_capabilities(info: ModelInfo | None) -> list[str]:
    """Return capabilities in the order of Ollama's own list."""
    if info is None:
        return []
    return [str(item) for item in Capability if item in info.capabilities]


def list_tensors(info: ModelInfo) -> list[Tensor]:
    """Return the tensors in Ollama's order: those of no layer by name, then those of each layer."""
    rows = [
        (int(found[1]) if (found := LAYER.match(name)) else -1, name, kind, shape)
        for name, kind, shape in info.tensors
    ]
    return [Tensor(name, kind, list(shape)) for _, name, kind, shape in sorted(rows)]
