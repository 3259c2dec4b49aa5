"""A model folder as the converter is shown it: weights and texts, no programs.

The converter lets transformers run what a model's folder brings as code, and reads pickles. It is
therefore given a folder of links in which neither is to be found, unless the user trusts the model.
What cannot be converted for reasons that are seen at once is refused here, before anything large
is fetched for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from vllama.errors import BadModelFile
from vllama.models.safetensors import is_mlx, weight_files

CODE = frozenset({".py"})
LEFT_OUT = frozenset(
    {".bin", ".gguf", ".h5", ".msgpack", ".onnx", ".pickle", ".pkl", ".pt", ".pth"}
)
POINTS_AT_CODE = "auto_map"
UNDONE_BY_NOBODY = frozenset({"aqlm", "awq", "bitsandbytes", "eetq", "exl2", "hqq", "quanto"})
"""Quantisations (`quantization_config.quant_method`) that llama.cpp's converter cannot undo; FP8,
GPTQ, MXFP4 and compressed-tensors it can, in most of their forms."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model")
_TOKENIZER_PATTERNS = ("*.tiktoken", "tekken.json", "*tokenizer*", "*.vocab", "*.spm", "*.model")


def check_folder(folder: Path, name: str) -> None:
    """Refuse a model that cannot be converted. Raises BadModelFile."""
    weights = weight_files(folder)
    if missing := [path.name for path in weights if not path.is_file()]:
        raise BadModelFile(
            f"cannot convert '{name}': {missing[0]} is missing"
            + (f", and {len(missing) - 1} more" if len(missing) > 1 else ""),
            hint="fetch the model again",
        )
    if is_mlx(folder):
        raise BadModelFile(
            f"cannot convert '{name}': it was made for Apple's MLX",
            hint="convert the model that it was made from",
        )
    method = quant_method(folder)
    if method in UNDONE_BY_NOBODY:
        raise BadModelFile(
            f"cannot convert '{name}': its weights are quantised with {method}, which the "
            "converter cannot undo",
            hint="convert the model that it was made from",
        )
    if not _has_tokenizer(folder):
        raise BadModelFile(
            f"cannot convert '{name}': there is no tokenizer in '{folder}'",
            hint="put the model's tokenizer.json (or tokenizer.model) there",
        )


def quant_method(folder: Path) -> str | None:
    """Return how a model's weights are quantised, in its config's word; None if they are not."""
    scheme = _object(folder / "config.json").get("quantization_config")
    return str(scheme.get("quant_method", "")).lower() or None if isinstance(scheme, dict) else None


def show(folder: Path, place: Path, *, trusted: bool = False) -> Path:
    """Make the folder of links at `place` and return it. Raises OSError."""
    return show_files(((path.name, path) for path in sorted(folder.iterdir())), place, trusted)


def show_files(files: Iterable[tuple[str, Path]], place: Path, trusted: bool = False) -> Path:
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
    try:
        value = json.loads(path.read_bytes()) if path.stat().st_size < 16 * 1024 * 1024 else {}
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _has_tokenizer(folder: Path) -> bool:
    if any((folder / name).is_file() for name in _TOKENIZERS):
        return True
    found = (path for pattern in _TOKENIZER_PATTERNS for path in folder.glob(pattern))
    return any(path.name not in ("tokenizer_config.json",) and path.is_file() for path in found)
