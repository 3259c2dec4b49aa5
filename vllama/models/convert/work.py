"""Runs the conversion tools in a workspace, and moves their results to the final place.

No file gets its final name before it is complete. Everything is asynchronous, and a canceled
conversion ends cleanly: it leaves neither processes nor files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vllama.base import executors, private
from vllama.base.errors import BadModelFile
from vllama.models.convert.tools import (
    DIRECT,
    Converter,
    Quantizer,
    converter_environment,
    run_tool,
)
from vllama.models.convert.workspace import link_folder, sync_and_hash
from vllama.models.headers.gguf.header import read_header
from vllama.models.headers.safetensors import read_folder
from vllama.models.stores.base import sum_real_sizes
from vllama.models.stores.local import LocalStore
from vllama.models.types import Bundle, Capability, Format, Progress, PullEvent

NO_DIGEST = "0000000000000000000"
"""What Ollama sends as the digest while it quantizes (server/quantization.go)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedFiles:
    """Complete files, still in the workspace; `notes` are for the user."""

    model: Path
    quant: str
    projector: Path | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """The tools of one conversion and the workspace `folder`; `env` is what the converter may see.

    `converter` None: a GGUF is quantized. `quantizer` None: the converter alone suffices.
    """

    folder: Path
    tell: Progress
    env: Mapping[str, str]
    converter: Converter | None = None
    quantizer: Quantizer | None = None

    async def make(
        self,
        source: Path,
        quant: str,
        *,
        name: str,
        has: str,
        sizes: Mapping[str, int],
        projector: bool | None = None,
        trusted: bool = False,
    ) -> ConvertedFiles:
        """Make a GGUF of the type `quant` of a GGUF, or of a folder of safetensors.

        `has` is the type of the GGUF, or what the converter writes; `sizes` are about how many
        bytes each type takes. `projector` None: if the model sees and the converter can. Raises
        BadModelFile, VllamaError.
        """
        if self.converter is None:
            return ConvertedFiles(model=await self._quantize(source, quant, name, has), quant=quant)
        sees = {Capability.VISION, Capability.AUDIO} & read_folder(source).capabilities
        if projector and not sees:
            raise BadModelFile(
                f"cannot convert the projector of '{name}': it is a text-only model",
                hint="omit --mmproj",
            )
        shown = await executors.storage.run(
            link_folder, source, self.folder / "model", trusted=trusted
        )
        self.tell(PullEvent(status="converting model"))
        status = f"converting model to {has}"
        plain = await self._convert(shown, f"{has}.gguf", has, name, status, sizes[has])
        check_result(plain, name)
        notes: tuple[str, ...] = ()
        eyes: Path | None = None
        if sees and projector is not False:
            status = "converting projector"
            self.tell(PullEvent(status=status))
            via = has if has in DIRECT else "F16"
            try:
                await self._convert(shown, "mmproj.gguf", via, name, status, sizes[has], "--mmproj")
                # the converter may have given it a name of its own
                eyes = next(iter(sorted(self.folder.glob("*mmproj*.gguf"))), None)
            except BadModelFile as error:
                if projector:
                    raise
                notes = (f"without its projector, the model accepts only text: {error.message}",)
        model = plain
        if has != quant:
            model = await self._quantize(plain, quant, name, has)
            plain.unlink()
        return ConvertedFiles(model=model, quant=quant, projector=eyes, notes=notes)

    async def _convert(
        self, shown: Path, target: str, quant: str, name: str, status: str, total: int, *more: str
    ) -> Path:
        """Run the converter on the folder `shown`. Raises BadModelFile, VllamaError."""
        assert self.converter is not None
        await run_tool(
            (*self.converter.argv(shown, self.folder / target, quant, name=name), *more),
            task=f"convert '{name}'",
            env=converter_environment(self.env, self.folder),
            folder=self.folder,
            on_progress=self._bar(status, total),
            hint="a newer converter may support the model: add --update; "
            "custom model code runs only with --trust-remote-code",
        )
        self._bar(status, total)(1.0)
        return self.folder / target

    async def _quantize(self, source: Path, quant: str, name: str, has: str) -> Path:
        """Make a smaller GGUF of `source`, whose type is `has`. Raises BadModelFile."""
        assert self.quantizer is not None  # whoever wants another type has one
        target = self.folder / f"{quant}.gguf"
        bar = self._bar(f"quantizing {has} model to {quant}", sum_real_sizes([source]), NO_DIGEST)
        bar(0.0)
        await run_tool(
            self.quantizer.argv(source, target, quant),
            task=f"quantize '{name}' to {quant}",
            env=self.quantizer.env,
            folder=self.folder,
            on_progress=bar,
        )
        bar(1.0)
        self.tell(PullEvent(status="verifying conversion"))
        check_result(target, name)
        return target

    def _bar(self, status: str, total: int, digest: str | None = None) -> Callable[[float], object]:
        """Return a function that tells the share of `total` bytes that is done."""
        return lambda share: self.tell(
            PullEvent(
                status=status,
                digest=digest,
                total_bytes=total,
                completed_bytes=int(share * total),
            )
        )


def check_result(file: Path, name: str) -> None:
    """Check that a tool has left a complete model. Raises BadModelFile."""
    if not file.is_file():
        raise BadModelFile(f"cannot convert '{name}': the converter produced no output")
    if not read_header(file).tensors:
        raise BadModelFile(f"cannot convert '{name}': the output has no weights")


async def keep(store: LocalStore, made: ConvertedFiles, name: str, like: Bundle) -> Bundle:
    """Store the files that were made of `like` as a model called `name`, and return that model."""
    made_of = await executors.storage.run(move_to_store, store, made, like)
    return await executors.storage.run(store.write, replace(made_of, name=name))


def move_to_store(store: LocalStore, made: ConvertedFiles, like: Bundle) -> Bundle:
    """Move the files that were made of `like` to their final place; keep all else of `like`.

    Raises OSError.
    """
    model = move_to_blobs(store, made.model)
    old = like.projector if like.format is Format.GGUF else None
    projector = move_to_blobs(store, made.projector) if made.projector else old
    files = (model, projector) if projector else (model,)
    return replace(
        like,
        store=LocalStore.name,
        format=Format.GGUF,
        path=model,
        files=(*files, *like.adapters),
        size_bytes=sum_real_sizes(files),
        digest=model.name.removeprefix("sha256-"),
        modified_s=model.stat().st_mtime,
        quant=made.quant,
        projector=projector,
        base=None,
        info=None,
    )


def move_to_blobs(store: LocalStore, file: Path) -> Path:
    """Move a complete file to our blobs, named by its checksum. Raises OSError."""
    place = store.blobs.path(f"sha256:{sync_and_hash(file)}")
    file.chmod(private.FILE)
    os.replace(file, place)  # noqa: PTH105
    return place
