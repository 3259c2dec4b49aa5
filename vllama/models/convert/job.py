"""One conversion that was decided (`prepare`), carried out.

Pull, install the converter, convert, quantise, keep.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.models.convert.converter import (
    FETCHED_BYTES,
    INSTALLED_BYTES,
    find_converter,
    install_converter,
)
from vllama.models.convert.originals import check_folder
from vllama.models.convert.quantiser import Quantiser
from vllama.models.convert.quants import BITS, size_of
from vllama.models.convert.source import SAFETENSORS, Original
from vllama.models.convert.work import Made, Order, convert, keep, quantise
from vllama.models.convert.workplace import check_room, settle, workplace
from vllama.models.disk import free_bytes
from vllama.models.types import Bundle, Format, ModelInfo, Progress, PullEvent

if TYPE_CHECKING:
    from vllama.models.library import Library
    from vllama.models.resolve import Resolution


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
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
class Job:
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
    wishes: Wishes

    @property
    def needs_quantiser(self) -> bool:
        """Tell whether the converter alone does not suffice."""
        return self.via != self.quant

    @property
    def needed_bytes(self) -> int:
        """How much disk it takes while it is done, without what is pulled."""
        parameters = self.info.parameter_count or self.info.weights_bytes // 2
        return sum(size_of(parameters, step) for step in {self.quant, self.via} if step)

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
        free_space: Callable[[Path], int] = free_bytes,
    ) -> Bundle | Path:
        """Do it; return the model as kept, or the file.

        `env` is what the tools may see, `on_line` is told the installer's lines. Raises
        BadModelFile, DiskFull, EnvironmentFailed, VllamaError and what a pull raises.
        """
        store = library.local
        data_dir = store.root
        parent = self.result.parent if isinstance(self.result, Path) else store.blobs.folder
        check_room(parent, self.needed_bytes, f"convert '{self.name}'", free_space)
        bundle = self.original.bundle or await self._pulled(library, tell)
        if bundle.format is Format.SAFETENSORS:
            check_folder(bundle.path, self.name)
        converter = None
        if self.via is not None:
            if find_converter(data_dir) is None or update:
                check_room(data_dir, INSTALLED_BYTES, "install the converter", free_space)
                tell(PullEvent(status="installing the converter"))
            converter = await install_converter(data_dir, update=update, on_line=on_line)
        with workplace(parent) as folder:
            if converter is None or self.via is None:
                assert quantiser is not None  # see `needs_quantiser`
                model = await quantise(
                    bundle.path,
                    self.quant,
                    quantiser,
                    name=self.name,
                    has=self.info.quant or "F16",
                    folder=folder,
                    tell=tell,
                )
                made = Made(model=model, quant=self.quant)
            else:
                order = Order(
                    folder=bundle.path,
                    name=self.original.plain.model,
                    quant=self.quant,
                    via=self.via,
                    via_bytes=max(1, int((self.info.parameter_count or 1) * BITS[self.via] / 8)),
                    projector=self.wishes.projector,
                    trusted=self.wishes.trusted,
                )
                made = await convert(order, converter, quantiser, env=env, folder=folder, tell=tell)
            for note in made.notes:
                tell(PullEvent(status=note))
            tell(PullEvent(status="writing manifest"))
            if isinstance(self.result, Path):
                kept: Bundle | Path = await asyncio.to_thread(_put, made, self.result)
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
            asyncio.to_thread(
                library.pull,
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


def _put(made: Made, target: Path) -> Path:
    """Give a made model the name that the user wants; its projector the same with `mmproj-`."""
    for source, place in (
        (made.projector, target.with_name(f"mmproj-{target.name}")),
        (made.model, target),
    ):
        if source is not None:
            settle(source)
            source.chmod(0o644)
            os.replace(source, place)  # noqa: PTH105
    return target


def fetched_bytes(data_dir: Path, job: Job, *, update: bool = False) -> tuple[int, int]:
    """Return what a job has to fetch: (the model, the converter), 0 for what is here."""
    installed = find_converter(data_dir) is not None and not update
    return job.pulled_bytes, 0 if job.via is None or installed else FETCHED_BYTES
