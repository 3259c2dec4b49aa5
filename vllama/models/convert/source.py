"""What there is to convert: a name → safetensors here, at the hub, or a GGUF to be made smaller."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.errors import BadRequest, ModelNotFound, NoPlan
from vllama.models.quant import quant_of_tag
from vllama.models.ref import Kind, ModelRef
from vllama.models.types import Bundle, Format

if TYPE_CHECKING:
    from vllama.models.library import Library

SAFETENSORS = (Format.SAFETENSORS,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """What a name stands for. `bundle` None: it has to be pulled, as `pull_name`.

    `plain` is what the result is called without its tag, `quant` what the name asks for by its tag.
    """

    plain: ModelRef
    pull_name: str
    quant: str | None = None
    bundle: Bundle | None = None

    def result(self, quant: str) -> str:
        """Return the display name of what becomes of it."""
        if self.plain.kind is Kind.HUB and self.plain.hub_id is not None:
            return ModelRef.of_hub(self.plain.hub_id, quant).display
        return self.plain.display


def find_original(library: Library, name: str) -> Original:
    """Find what `name` means; a model's folder here comes first.

    Raises InvalidModelRef, ModelNotFound, BadRequest.
    """
    ref = ModelRef.parse(name)
    if ref.kind is not Kind.PATH and (Path(name) / "config.json").is_file():
        ref = ModelRef.of_path(Path(name))  # a folder here is meant, `models/mine` like `./mine`
        name = str(ref.path)
    if ref.kind is Kind.PATH:
        return Original(plain=_named(ref.model), pull_name=name, bundle=library.find(name))
    hub = library.alias(ref) or (ref if ref.kind is Kind.HUB else None)
    quant = quant_of_tag((hub or ref).tag)
    if hub is None or hub.hub_id is None:
        bundle = library.find(name)
        return Original(plain=ref, pull_name=name, quant=None, bundle=bundle)
    plain = ModelRef.of_hub(hub.hub_id)
    here = next(
        (
            bundle
            for bundle in library.list()
            if bundle.format is Format.SAFETENSORS
            and (bundle.hub_id or "").lower() == hub.hub_id.lower()
        ),
        None,
    )
    if here is None and hub.has_tag:
        here = _gguf(library, name)
    if here is not None and here.hub_id:
        plain = ModelRef.of_hub(here.hub_id)  # in the hub's own spelling
    gguf = here is not None and here.format is Format.GGUF
    return Original(
        plain=plain, pull_name=plain.display, quant=None if gguf else quant, bundle=here
    )


def no_safetensors(name: str, error: NoPlan) -> NoPlan:
    """Say of a hub model without safetensors that it cannot be converted."""
    return NoPlan(
        f"cannot convert '{name}': there are no safetensors of it ({error.message})",
        hint=f"pull it as it is: vllama pull {name}",
    )


def check_format(bundle: Bundle) -> None:
    """Refuse what is neither GGUF nor safetensors on this disk. Raises BadRequest."""
    if bundle.format is Format.REMOTE:
        raise BadRequest(
            f"cannot convert '{bundle.name}': its files are on another server",
            hint="run vllama convert there",
        )


def _gguf(library: Library, name: str) -> Bundle | None:
    """Return the GGUF of exactly that quantisation, if it is here."""
    try:
        return library.find(name)
    except ModelNotFound:
        return None


def _named(stem: str) -> ModelRef:
    return ModelRef(kind=Kind.LIBRARY, text=stem, model=stem)
