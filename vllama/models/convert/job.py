"""A conversion that `prepare` has decided on: what it starts from, and how it is carried out.

The steps are: pull, install the converter, convert, quantise, keep.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.base import executors
from vllama.base.errors import BadRequest, ModelNotFound, NoPlan
from vllama.models.convert.tools import (
    FETCHED_BYTES,
    INSTALLED_BYTES,
    Quantiser,
    estimate_size,
    find_converter,
    install_converter,
)
from vllama.models.convert.work import ConvertedFiles, Workshop, keep
from vllama.models.convert.workspace import (
    check_folder,
    check_free_space,
    open_workspace,
    sync_and_hash,
)
from vllama.models.disk import get_free_bytes
from vllama.models.names.quant import parse_quant_tag
from vllama.models.names.ref import Kind, ModelRef
from vllama.models.types import Bundle, Format, ModelInfo, Progress, PullEvent

if TYPE_CHECKING:
    from vllama.models.library import Library
    from vllama.models.resolve.search import Resolution


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionOptions:
    """What the user said; None: what suits.

    `outtype` is what the converter writes ("auto" as well), `output` a name or a path that ends in
    `.gguf`, `projector` whether a file for images is made too.
    """

    quantize: str | None = None
    outtype: str | None = None
    output: str | None = None
    projector: bool | None = None
    trusted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionJob:
    """A decided conversion. `found` is what has to be pulled for it, `via` None: it is a GGUF.

    `result` is the new model's name, or the file that it is written to.
    """

    name: str
    original: Original
    found: Resolution | None
    info: ModelInfo
    quant: str
    via: str | None
    result: str | Path
    wishes: ConversionOptions

    @property
    def needs_quantiser(self) -> bool:
        """Tell whether the converter alone does not suffice."""
        return self.via != self.quant

    @property
    def sizes(self) -> dict[str, int]:
        """How much disk each step takes, about, without what is pulled."""
        return {step: estimate_size(self.info, step) for step in (self.quant, self.via) if step}

    @property
    def pulled_bytes(self) -> int:
        """How much has to be pulled, if nothing of it is here."""
        return self.found.variant.size_bytes if self.found else 0

    async def run(
        self,
        library: Library,
        quantiser: Quantiser | None,
        *,
        env: Mapping[str, str],
        tell: Progress,
        on_line: Callable[[str], object] | None = None,
        update: bool = False,
        free_space: Callable[[Path], int] = get_free_bytes,
    ) -> Bundle | Path:
        """Do it; return the model as kept, or the file.

        `env` is what the tools may see, `on_line` is told the installer's lines. Raises
        BadModelFile, DiskFull, EnvironmentFailed, VllamaError and what a pull raises.
        """
        store = library.local
        data_dir = store.root
        parent = self.result.parent if isinstance(self.result, Path) else store.blobs.folder
        check_free_space(parent, sum(self.sizes.values()), f"convert '{self.name}'", free_space)
        bundle = self.original.bundle or await self._pulled(library, tell)
        if bundle.format is Format.SAFETENSORS:
            check_folder(bundle.path, self.name)
        converter = None
        if self.via is not None:
            if find_converter(data_dir) is None or update:
                check_free_space(data_dir, INSTALLED_BYTES, "install the converter", free_space)
                tell(PullEvent(status="installing the converter"))
            converter = await install_converter(data_dir, update=update, on_line=on_line)
        with open_workspace(parent) as folder:
            workshop = Workshop(
                folder=folder, tell=tell, env=env, converter=converter, quantiser=quantiser
            )
            made = await workshop.make(
                bundle.path,
                self.quant,
                name=self.original.plain.model if converter else self.name,
                has=self.via or self.info.quant or "F16",
                sizes=self.sizes,
                projector=self.wishes.projector,
                trusted=self.wishes.trusted,
            )
            for note in made.notes:
                tell(PullEvent(status=note))
            tell(PullEvent(status="writing manifest"))
            if isinstance(self.result, Path):
                kept: Bundle | Path = await executors.storage.run(_put, made, self.result)
            else:
                kept = await keep(store, made, self.result, bundle)
        tell(PullEvent(status="success"))
        return kept

    async def _pulled(self, library: Library, tell: Progress) -> Bundle:
        """Pull the safetensors; a cancelled pull ends before this does."""
        cancel = threading.Event()

        def report(event: PullEvent) -> None:
            if event.status != "success":  # the end of the pull is not that of the whole
                tell(event)

        pull = asyncio.ensure_future(
            executors.downloads.run(
                library.remote.pull,
                self.original.pull_name,
                formats=SAFETENSORS,
                progress=report,
                cancel=cancel,
            )
        )
        try:
            return await asyncio.shield(pull)
        finally:
            cancel.set()
            await asyncio.wait({pull})


def _put(made: ConvertedFiles, target: Path) -> Path:
    """Give a made model the name that the user wants; its projector the same with `mmproj-`."""
    for source, place in (
        (made.projector, target.with_name(f"mmproj-{target.name}")),
        (made.model, target),
    ):
        if source is not None:
            sync_and_hash(source)
            source.chmod(0o644)
            os.replace(source, place)  # noqa: PTH105
    return target


def count_bytes_to_fetch(
    data_dir: Path, job: ConversionJob, *, update: bool = False
) -> tuple[int, int]:
    """Return what a job has to fetch: (the model, the converter), 0 for what is here."""
    installed = find_converter(data_dir) is not None and not update
    return job.pulled_bytes, 0 if job.via is None or installed else FETCHED_BYTES


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
            return ModelRef.of_hub(self.plain.hub_id, quant, self.plain.revision).display
        return self.plain.display


def find_original(library: Library, name: str) -> Original:
    """Find what `name` means: a path, a model of this disk, or one to be pulled.

    Raises InvalidModelRef, ModelNotFound, BadRequest.
    """
    ref = ModelRef.parse(name)
    if ref.kind is Kind.PATH:
        return Original(plain=_named(ref.model), pull_name=name, bundle=library.find(name))
    hub = library.stored.find_alias(ref) or (ref if ref.kind is Kind.HUB else None)
    quant = parse_quant_tag((hub or ref).tag)
    if hub is None or hub.hub_id is None:
        bundle = library.find(name)
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
        here = _gguf(library, name)
    if here is not None and here.hub_id:
        plain = ModelRef.of_hub(here.hub_id, revision=hub.revision)  # in the hub's own spelling
    gguf = here is not None and here.format is Format.GGUF
    return Original(
        plain=plain, pull_name=plain.display, quant=None if gguf else quant, bundle=here
    )


def make_no_safetensors_error(name: str, error: NoPlan) -> NoPlan:
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
