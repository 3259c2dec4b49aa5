"""Images named in a prompt: takes their paths out of the text, and reads the files."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

from vllama.base.errors import VllamaError

MAX_BYTES = 100 * 1024 * 1024
_ENDING = r"\.(?:png|jpe?g|webp)"
_END = re.compile(_ENDING + r"(?![\w.-]*\w)", re.IGNORECASE)
_QUOTED = re.compile(rf"""(["'])([^"'\n]+{_ENDING})\1""", re.IGNORECASE)
_START = re.compile(r"(?<![\w.~/\\])(?:~/|\.{0,2}/|[A-Za-z]:[\\/]|(?=[\w.-]+/))")
_ESCAPED = re.compile(r"\\(.)")
_KINDS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")


def take_images(text: str) -> tuple[str, list[tuple[Path, str]]]:
    """Return the text without the paths of images, and the images: path and base64.

    A path is absolute, or relative with a slash in it, with spaces as they are or
    escaped, or quoted as a whole. What names no file stays text. Raises VllamaError for a file
    that is no image, or too big (100 MB, Ollama's limit).
    """
    images: list[tuple[Path, str]] = []
    kept, at = [], 0
    for start, end, path in _find_paths(text):
        kept.append(text[at:start])
        images.append((path, base64.b64encode(_read(path)).decode()))
        at = end
    return "".join([*kept, text[at:]]).strip(), images


def find_images(text: str) -> list[Path]:
    """Return the images that a text names, without reading them."""
    return [path for _, _, path in _find_paths(text)]


def names_image(text: str) -> bool:
    """Tell whether a text begins with the path of an existing image."""
    return any(start == 0 for start, _, _ in _find_paths(text))


def _find_paths(text: str) -> Iterator[tuple[int, int, Path]]:
    """Yield where a path that names a file begins and ends, from left to right."""
    at = 0
    while at < len(text):
        quoted, bare = _QUOTED.search(text, at), _START.search(text, at)
        if quoted and (bare is None or quoted.start() <= bare.start()):
            if path := _file(quoted.group(2)):
                yield quoted.start(), quoted.end(), path
                at = quoted.end()
            else:
                at = quoted.start() + 1
        elif bare:
            at = bare.start() + 1
            for ending in _END.finditer(text, bare.end()):
                name = text[bare.start() : ending.end()]
                if "\n" in name:
                    break
                if path := _file(_ESCAPED.sub(r"\1", name)) or _file(name):
                    yield bare.start(), ending.end(), path
                    at = ending.end()
                    break
        else:
            return


def _file(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, no such home
        return None


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise VllamaError(f"cannot use the image '{path}': it is larger than 100 MB")
        content = path.read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise VllamaError(f"cannot read the image '{path}': {reason}") from error
    if not content.startswith(_KINDS) and not (content[:4] == b"RIFF" and content[8:12] == b"WEBP"):
        raise VllamaError(
            f"cannot use the image '{path}': it is not a PNG, JPEG or WebP file",
            hint="convert it, or enter its name without the extension",
        )
    return content
