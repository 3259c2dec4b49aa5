"""Other quantizations of a model on this disk: which there are, and when one may be taken."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vllama.base.errors import BadModelFile
from vllama.models.names.quant import find_quant, strip_quant
from vllama.models.names.variants import get_stem
from vllama.models.types import Bundle, Format, ModelInfo

if TYPE_CHECKING:
    from vllama.models.library import Library

Form = tuple[Bundle, ModelInfo]


def list_other_forms(bundle: Bundle, models: Sequence[Bundle]) -> tuple[Bundle, ...]:
    """Return the other quantizations of a GGUF model among `models`, the largest first.

    Those of the same repository, or folder, whose files have the same name but for it.
    """

    def family(one: Bundle) -> tuple[str, str] | None:
        if one.format is not Format.GGUF or one.adapters or one.path.suffix != ".gguf":
            return None
        place = f"{one.hub_id}@{one.revision}" if one.hub_id else str(one.path.parent)
        return place, strip_quant(get_stem(one.path.name))

    wanted = family(bundle)
    found = {
        one.path: one
        for one in models
        if wanted is not None
        and one.path != bundle.path
        and one.quant
        and one.quant != bundle.quant
        and family(one) == wanted
    }
    return tuple(sorted(found.values(), key=lambda one: -one.size_bytes))


def list_forms_here(library: Library, bundle: Bundle) -> list[Form]:
    """Return the other quantizations of a model that are on this disk and can be read."""
    forms: list[Form] = []
    for other in list_other_forms(bundle, library.list()):
        with contextlib.suppress(BadModelFile):
            forms.append((other, library.info(other)))
    return forms


def names_form(bundle: Bundle) -> bool:
    """Tell whether a model's name says which quantization it is: then that one was asked for."""
    return find_quant(bundle.name) is not None


def make_substitute(bundle: Bundle, form: Form) -> Form:
    """Return another form under the name of `bundle`, with all that the user set for that."""
    other, info = form
    taken = replace(
        bundle,
        path=other.path,
        files=other.files,
        size_bytes=other.size_bytes,
        digest=other.digest,
        quant=other.quant,
    )
    return taken, info


def smaller_offer(bundle: Bundle, forms: Sequence[Bundle]) -> str | None:
    """Return the hint to take a smaller quantization: one that is here, else one to be pulled."""
    smaller = [form for form in forms if form.size_bytes < bundle.size_bytes]
    if smaller:
        return f"use {smaller[0].name}, which is installed and smaller"
    if bundle.hub_id and bundle.format is Format.GGUF:
        return f"pull a smaller quantization: vllama pull hf.co/{bundle.hub_id}:QUANT"
    return None
