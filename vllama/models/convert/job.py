"""Conversions, from what they start from to the model that is kept.

`vllama convert` does what `prepare` has decided on; the steps are: pull, install the converter,
convert, quantize, keep. `create` with `quantize`, or of safetensors, first makes the base that it
builds on, by a converter that is installed already (nobody can be asked there).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.base import executors
from vllama.base.errors import BadModelFile, BadRequest
from vllama.models.convert.tools import (
    DIRECT,
    ConverterMissing,
    Quantizer,
    estimate_size,
    find_converter,
    install_converter,
)
from vllama.models.convert.work import ConvertedFiles, Workshop, keep, move_to_store
from vllama.models.convert.workspace import (
    check_folder,
    check_free_space,
    link_files,
    open_workspace,
    sync_and_hash,
)
from vllama.models.create import choose_quant
from vllama.models.disk import get_free_bytes
from vllama.models.library import Library
from vllama.models.names.quant import choose_intermediate
from vllama.models.names.ref import Kind, ModelRef, path_stem
from vllama.models.stores.folder import make_safetensors_bundle
from vllama.models.types import Bundle, Format, ModelInfo, Progress, PullEvent

if TYPE_CHECKING:
    from vllama.models.resolve.search import Resolution

FindQuantizer = Callable[[], Quantizer]
SAFETENSORS = (Format.SAFETENSORS,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionOptions:
    """Options of the user; None: chosen automatically.

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
    def needs_quantizer(self) -> bool:
        """Tell whether the converter alone does not suffice."""
        return self.via != self.quant

    @property
    def sizes(self) -> dict[str, int]:
        """Approximate disk space of each step, without the download."""
        return {step: estimate_size(self.info, step) for step in (self.quant, self.via) if step}

    @property
    def pulled_bytes(self) -> int:
        """Bytes to pull, if nothing is on this disk yet."""
        return self.found.variant.size_bytes if self.found else 0

    async def run(
        self,
        library: Library,
        quantizer: Quantizer | None,
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
        bundle = self.original.bundle or await self._pull(library, tell)
        if bundle.format is Format.SAFETENSORS:
            check_folder(bundle.path, self.name)
        converter = None
        if self.via is not None:
            converter = await install_converter(data_dir, tell, on_line, update=update)
        with open_workspace(parent) as folder:
            workshop = Workshop(
                folder=folder, tell=tell, env=env, converter=converter, quantizer=quantizer
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

    async def _pull(self, library: Library, tell: Progress) -> Bundle:
        """Pull the safetensors; a canceled pull ends before this does."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """Source of a conversion. `bundle` None: to be pulled, as `pull_name`.

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


async def requantize(
    library: Library,
    base: Bundle,
    quant: str,
    find_quantizer: FindQuantizer,
    *,
    env: Mapping[str, str],
    tell: Progress,
    name: str | None = None,
) -> Bundle:
    """Return `base` with weights of the type `quant`, its files in our store.

    They are an upload like any other until a model is created of them. `find_quantizer` is called
    if one is needed; `name` is what safetensors are called in their GGUF. Raises BadModelFile,
    ConverterMissing, DiskFull, EngineMissing, VllamaError.
    """
    info = await executors.storage.run(library.info, base)
    has, task = info.quant or base.quant or "F16", "quantize"
    source = "FOLDER" if name else base.hub_id or base.path
    if converts := base.format is not Format.GGUF:
        name = name or (base.hub_id or path_stem(base.path)).rpartition("/")[2]
        check_folder(base.path, name)
        has, task = quant if quant in DIRECT else choose_intermediate(info.quant), "convert"
    quantizer = None if converts and has == quant else find_quantizer()
    name = name or base.name
    steps = {has, quant} if converts else {quant}
    sizes = {step: estimate_size(info, step) for step in steps}
    parent = library.local.blobs.folder
    check_free_space(parent, sum(sizes.values()), f"{task} '{name}'")
    converter = find_converter(library.local.root) if converts else None
    if converts and converter is None:
        raise ConverterMissing(
            f"cannot convert '{name}': llama.cpp's converter is not installed",
            hint=f"on the server's machine, run 'vllama convert {source} -q {quant}', which "
            "installs it",
        )
    with open_workspace(parent) as folder:
        workshop = Workshop(
            folder=folder, tell=tell, env=env, converter=converter, quantizer=quantizer
        )
        made = await workshop.make(base.path, quant, name=name, has=has, sizes=sizes)
        return await executors.storage.run(move_to_store, library.local, made, base)


async def convert_uploads(
    library: Library,
    name: str,
    files: Sequence[tuple[str, Path]],
    quant: str | None,
    find_quantizer: FindQuantizer,
    *,
    env: Mapping[str, str],
    tell: Progress,
) -> Bundle:
    """Return the GGUF of uploaded safetensors: (name in their folder, where it lies).

    Without `quant` it is 16 bits wide, as in Ollama. Raises BadRequest and as `requantize`.
    """
    if odd := next((name for name, _ in files if Path(name).name != name), None):
        raise BadRequest(f"invalid file name '{odd}'", hint="use file names without folders")
    with open_workspace(library.local.blobs.folder) as folder:
        shown = await executors.storage.run(link_files, files, folder / "upload")
        base = await executors.storage.run(make_safetensors_bundle, shown)
        try:
            wanted = await executors.storage.run(choose_quant, library, base, quant, tuple)
            assert wanted is not None  # nothing reads them as they are
            return await requantize(
                library,
                base,
                wanted,
                find_quantizer,
                name=name.partition(":")[0].rpartition("/")[2],
                env=env,
                tell=tell,
            )
        except BadModelFile as error:
            raise BadRequest(error.message, hint=error.hint) from error
