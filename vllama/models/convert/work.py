"""Runs the conversion tools in a workspace, and moves their results to the final place.

No file gets its final name before it is complete. Everything is asynchronous, and a cancelled
conversion ends cleanly: it leaves neither processes nor files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vllama.base import executors, private
from vllama.base.errors import BadModelFile
from vllama.models.convert.tools import Converter, Quantiser, converter_environment, run_tool
from vllama.models.convert.workspace import link_folder, sync_and_hash
from vllama.models.headers.gguf.header import read_header
from vllama.models.headers.safetensors import read_folder
from vllama.models.stores.base import sum_real_sizes
from vllama.models.stores.local import LocalStore
from vllama.models.types import Bundle, Capability, Format, Progress, PullEvent

NO_DIGEST = "0000000000000000000"
"""What Ollama sends as the digest while it quantises (server/quantization.go)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionOrder:
    """What to make of the safetensors in `folder`.

    `name` is what the model calls itself. `via` is the type that the converter writes: `quant`, or
    what is quantised then; `via_bytes` is how much that will be, about. `projector` None: if the
    model sees and the converter can.
    """

    folder: Path
    name: str
    quant: str
    via: str
    via_bytes: int
    projector: bool | None = None
    trusted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedFiles:
    """Complete files, still in the workspace; `notes` are for the user."""

    model: Path
    quant: str
    projector: Path | None = None
    notes: tuple[str, ...] = ()


async def convert(
    order: ConversionOrder,
    converter: Converter,
    quantiser: Quantiser | None,
    *,
    env: Mapping[str, str],
    folder: Path,
    tell: Progress,
) -> ConvertedFiles:
    """Make a GGUF of safetensors in the workspace `folder`. Raises BadModelFile, VllamaError."""
    sees = sees_images(order.folder)
    if order.projector and not sees:
        raise BadModelFile(
            f"cannot make a projector of '{order.name}': it takes text only",
            hint="leave --mmproj out",
        )
    shown = await executors.storage.run(
        link_folder, order.folder, folder / "model", trusted=order.trusted
    )
    allowed = converter_environment(env, folder)

    async def run(target: Path, status: str, *, projector: bool = False) -> None:
        via = "F16" if projector and order.via not in ("F32", "BF16", "Q8_0") else order.via
        argv = converter.argv(shown, target, via, name=order.name, projector=projector)
        await run_tool(
            argv,
            task=f"convert '{order.name}'",
            env=allowed,
            folder=folder,
            on_line=_share(parse_converter_progress, status, tell, total=order.via_bytes),
        )

    plain = folder / f"{order.via}.gguf"
    tell(PullEvent(status="converting model"))
    status, total = f"converting model to {order.via}", order.via_bytes
    await run(plain, status)
    tell(PullEvent(status=status, total_bytes=total, completed_bytes=total))
    check_result(plain, order.name)
    notes: tuple[str, ...] = ()
    projector: Path | None = None
    if sees and order.projector is not False:
        tell(PullEvent(status="converting projector"))
        try:
            await run(folder / "mmproj.gguf", "converting projector", projector=True)
            projector = _projector_in(folder)
        except BadModelFile as error:
            if order.projector:
                raise
            notes = (f"without its projector, it takes text only: {error.message}",)
    if order.via == order.quant:
        return ConvertedFiles(model=plain, quant=order.quant, projector=projector, notes=notes)
    assert quantiser is not None  # whoever orders another type has one
    model = await quantise(
        plain, order.quant, quantiser, name=order.name, has=order.via, folder=folder, tell=tell
    )
    plain.unlink()
    return ConvertedFiles(model=model, quant=order.quant, projector=projector, notes=notes)


async def quantise(
    source: Path,
    quant: str,
    quantiser: Quantiser,
    *,
    name: str,
    has: str,
    folder: Path,
    tell: Progress,
) -> Path:
    """Make a smaller GGUF of `source` in `folder`; `has` is its type. Raises BadModelFile.

    Paths are absolute: the tool runs in the folder.
    """
    target = folder / f"{quant}.gguf"
    total = sum_real_sizes([source])
    status = f"quantizing {has} model to {quant}"
    tell(PullEvent(status=status, digest=NO_DIGEST, total_bytes=total, completed_bytes=0))
    await run_tool(
        quantiser.argv(source, target, quant),
        task=f"quantize '{name}' to {quant}",
        env=quantiser.env,
        folder=folder,
        on_line=_share(parse_quantiser_progress, status, tell, total=total, digest=NO_DIGEST),
    )
    tell(PullEvent(status=status, digest=NO_DIGEST, total_bytes=total, completed_bytes=total))
    tell(PullEvent(status="verifying conversion"))
    check_result(target, name)
    return target


def check_result(file: Path, name: str) -> None:
    """Check that a tool has left a complete model. Raises BadModelFile."""
    if not file.is_file():
        raise BadModelFile(f"cannot convert '{name}': its tool ended without a result")
    if not read_header(file).tensors:
        raise BadModelFile(f"cannot convert '{name}': the result has no weights")


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


def sees_images(folder: Path) -> bool:
    """Tell whether a model's config has a part for images or sound."""
    return bool({Capability.VISION, Capability.AUDIO} & read_folder(folder).capabilities)


def _projector_in(folder: Path) -> Path | None:
    """Return the projector, which the converter may have given a name of its own."""
    return next((path for path in sorted(folder.glob("*mmproj*.gguf"))), None)


def _share(
    share: Share, status: str, tell: Progress, *, total: int, digest: str | None = None
) -> Callable[[str], None]:
    """Return a function that turns a tool's lines into progress events."""

    def on_line(line: str) -> None:
        done = share(line)
        if done is not None:
            tell(
                PullEvent(
                    status=status,
                    digest=digest,
                    total_bytes=total,
                    completed_bytes=int(done * total),
                )
            )

    return on_line


Share = Callable[[str], float | None]
_BAR = re.compile(r"^(?:Writing|Shard \(\d+/\d+\)): +(\d+)%")
_NUMBERED = re.compile(r"^\[ *(\d+)/ *(\d+)\]")


def parse_converter_progress(line: str) -> float | None:
    """Return the share that the converter has written, 0 to 1; None if a line does not say."""
    match = _BAR.match(line)
    return min(int(match[1]), 100) / 100 if match else None


def parse_quantiser_progress(line: str) -> float | None:
    """Return the share of tensors that the quantiser has begun; None if a line does not say."""
    match = _NUMBERED.match(line)
    if match is None or int(match[2]) == 0:
        return None
    return min(int(match[1]) / int(match[2]), 1.0)
