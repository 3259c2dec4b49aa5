"""The folder a conversion works in, and the model as the converter sees it there.

The folder is on the disk of the result and is removed afterwards. A lock inside distinguishes a
running conversion from the leftovers of a killed one, which the next conversion removes.

The converter lets transformers run code from a model's folder, and it reads pickles. So it gets a
folder of links without either, unless the user trusts the model. Models that visibly cannot be
converted are refused here, before anything large is fetched for them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from vllama.base import private
from vllama.base.errors import BadModelFile, DiskFull, VllamaError
from vllama.base.units import format_bytes_decimal
from vllama.models.disk import get_free_bytes
from vllama.models.headers.safetensors import is_mlx, list_names, list_weight_files
from vllama.models.limits import decode_object, read_limited
from vllama.models.names.quant import UNDONE_BY_NOBODY
from vllama.models.names.variants import has_tokenizer, is_mistral_format

PREFIX = ".convert-"
_LOCK = "lock"
_READ_BYTES = 8 * 1024 * 1024
RESERVE_BYTES = 256 * 1024 * 1024


@contextlib.contextmanager
def open_workspace(parent: Path) -> Iterator[Path]:
    """Make a folder below `parent` to work in; remove it with all that is still in it.

    Raises VllamaError, DiskFull for what the disk refuses, inside the block too.
    """
    try:
        private.make_folder(parent)
        remove_leftovers(parent)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            with FileLock(folder / _LOCK):
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        text = f"cannot write '{error.filename or parent}': {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(text, hint="remove models with vllama rm") from error
        raise VllamaError(text, hint="check the folder's owner and permissions") from error


def remove_leftovers(parent: Path) -> None:
    """Remove the leftovers of killed conversions."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            with FileLock(folder / _LOCK, timeout=0):
                shutil.rmtree(folder, ignore_errors=True)
        except (Timeout, OSError):
            continue


def check_free_space(
    folder: Path, need_bytes: int, what: str, free_space: Callable[[Path], int] = get_free_bytes
) -> None:
    """Raise DiskFull if `need_bytes` more do not fit where `folder` is or will be."""
    free = free_space(folder)
    if need_bytes + RESERVE_BYTES > free:
        raise DiskFull(
            f"cannot {what}: it temporarily needs about {format_bytes_decimal(need_bytes)}, "
            f"and {format_bytes_decimal(free)} is free at {folder}",
            hint="remove models with vllama rm, or use --output with a file on a larger disk",
        )


def sync_and_hash(file: Path) -> str:
    """Bring a file's bytes to the disk; return their SHA-256, 64 hex digits. Raises OSError."""
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while data := content.read(_READ_BYTES):
            digest.update(data)
        os.fsync(content.fileno())
    return digest.hexdigest()


CODE = frozenset({".py"})
LEFT_OUT = frozenset(
    {".bin", ".gguf", ".h5", ".msgpack", ".onnx", ".pickle", ".pkl", ".pt", ".pth"}
)
POINTS_AT_CODE = "auto_map"


def check_folder(folder: Path, name: str) -> None:
    """Refuse a model that cannot be converted. Raises BadModelFile."""
    weights = list_weight_files(folder)
    if missing := [path.name for path in weights if not path.is_file()]:
        raise BadModelFile(
            f"cannot convert '{name}': {missing[0]} is missing"
            + (f", and {len(missing) - 1} more" if len(missing) > 1 else ""),
            hint="download the model again",
        )
    method = "MLX" if is_mlx(folder) else read_quant_method(folder)
    check_weights(name, method, is_mistral=is_mistral_format(list_names(folder)))
    if not has_tokenizer(path.name for path in folder.iterdir() if path.is_file()):
        raise BadModelFile(
            f"cannot convert '{name}': '{folder}' has no tokenizer",
            hint="add the model's tokenizer.json (or tokenizer.model)",
        )


def check_weights(name: str, method: str | None, *, is_mistral: bool) -> None:
    """Refuse weights that the converter cannot read; `method` quantized them. BadModelFile."""
    if is_mistral:
        raise BadModelFile(
            f"cannot convert '{name}': its weights are in Mistral's own format",
            hint="convert the model in the transformers format, or find a GGUF of it",
        )
    reason = None
    if (method or "").startswith("MLX"):
        reason = "it is in Apple's MLX format"
    elif (method or "").lower() in UNDONE_BY_NOBODY:
        reason = f"its weights are quantized with {method}, which the converter does not support"
    if reason is not None:
        raise BadModelFile(f"cannot convert '{name}': {reason}", hint="convert the original model")


def read_quant_method(folder: Path) -> str | None:
    """Return how a model's weights are quantized, in its config's word; None if they are not."""
    scheme = _object(folder / "config.json").get("quantization_config")
    return str(scheme.get("quant_method", "")).lower() or None if isinstance(scheme, dict) else None


def link_folder(folder: Path, place: Path, *, trusted: bool = False) -> Path:
    """Make the folder of links at `place` and return it. Raises OSError."""
    return link_files(((path.name, path) for path in sorted(folder.iterdir())), place, trusted)


def link_files(files: Iterable[tuple[str, Path]], place: Path, trusted: bool = False) -> Path:
    """Make a folder of links to `files`, by the names that they have in it. Raises OSError."""
    place.mkdir()
    for name, path in files:
        suffix = Path(name).suffix.lower()
        if suffix in LEFT_OUT or name.startswith(".") or (suffix in CODE and not trusted):
            continue
        content = _without_code(path) if suffix == ".json" and not trusted else None
        if content is not None:
            (place / name).write_text(content)
        else:
            (place / name).symlink_to(path.absolute())
    return place


def _without_code(path: Path) -> str | None:
    """Return a JSON file's text without what points at code; None if it does not."""
    value = _object(path) if path.name.endswith("config.json") or path.is_symlink() else {}
    if POINTS_AT_CODE not in value:
        return None
    del value[POINTS_AT_CODE]
    return json.dumps(value)


def _object(path: Path) -> dict[str, object]:
    with contextlib.suppress(OSError, ValueError):
        return decode_object(read_limited(path))
    return {}
