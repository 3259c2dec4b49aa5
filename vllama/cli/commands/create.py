"""`vllama create`: make a model from a Modelfile."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vllama import config
from vllama.base.errors import ConfigError, ModelNotFound
from vllama.cli.context import load_settings, local_library, local_quantiser
from vllama.cli.options import argument, option
from vllama.cli.output import say_aside
from vllama.cli.progress import open_display, pull_with_progress
from vllama.config import Config
from vllama.config.parse import holds_model
from vllama.models.names.ref import Kind, ModelRef
from vllama.models.types import Bundle

if TYPE_CHECKING:
    from vllama.models.library import Library

EXAMPLES = """\
\b
Examples:
  vllama create pirate -f Modelfile
  vllama show smollm2:135m --modelfile | vllama create mine -f -
"""

DEFAULT_FILE = Path("Modelfile")
STDIN = Path("-")


def create(
    model: Annotated[str, argument("MODEL", "The new model's name.")],
    file: Annotated[
        Path, option("--file -f FILE", "The Modelfile; - reads it from stdin.", allow_dash=True)
    ] = DEFAULT_FILE,
    quantize: Annotated[
        str | None, option("--quantize -q QUANT", "Quantization to make, such as Q4_K_M.")
    ] = None,
    experimental: Annotated[bool, typer.Option("--experimental", hidden=True)] = False,
) -> None:
    """Create a model from another one, with defaults of its own."""
    from vllama.models.create import Recipe, add_projector, check_new_name, choose_quant
    from vllama.models.create import create as create_model
    from vllama.models.modelfile import parse_modelfile

    check_new_name(model)  # fail before anything is pulled
    order = parse_modelfile(_text(file))
    folder = Path.cwd() if file == STDIN else file.absolute().parent
    settings = load_settings()
    library = local_library(settings)
    source, *more = (_located(text, folder) for text in order.sources)
    base = _base(settings, library, source)
    for extra in more:
        base = add_projector(base, Path(extra))
    quant = choose_quant(library, base, quantize)
    if quant is not None:
        base = _smaller(settings, library, base, quant)
    definition = replace(
        order,
        adapters=tuple(Path(_located(name, folder)) for name in order.adapter_names),
        draft=_draft(library, _located(order.draft_name, folder)) if order.draft_name else None,
    )
    recipe = Recipe(
        **definition.defined,
        name=model,
        base=base,
        new_base=quant is not None,
        notes=tuple(f"leaving out {name}: not used here" for name in order.unused),
    )
    create_model(library, recipe, say_aside)


def _text(file: Path) -> str:
    try:
        content = sys.stdin.buffer.read() if file == STDIN else file.read_bytes()
        return content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"cannot read the Modelfile '{file}': {error.strerror or error}",
            hint="name another file with -f, or read one from stdin with -f -",
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read the Modelfile '{file}': it is no UTF-8 text") from None


def _located(text: str, folder: Path) -> str:
    """Return a file's path, relative to the Modelfile, or the name of a model."""
    if text.startswith(("/", "~")):
        return text
    path = folder / text
    is_model = path.is_file() or holds_model(path)
    return str(path) if is_model or text.startswith(("./", "../")) or text == "." else text


def _draft(library: Library, name: str) -> Path:
    """Return the file of a draft model: one that is named by its path, or a model that is here."""
    path = Path(name).expanduser()
    return path if path.is_file() else library.find(name).path


def _base(settings: Config, library: Library, name: str) -> Bundle:
    """Return the model to build on, pulled if it is missing."""
    try:
        return library.find(name)
    except ModelNotFound:
        if ModelRef.parse(name).kind is Kind.PATH:
            raise
    pull_with_progress(settings, name)
    return library.find(name)


def _smaller(settings: Config, library: Library, base: Bundle, quant: str) -> Bundle:
    """Return `base` quantised to `quant`. Raises VllamaError."""
    from vllama.engines.child_env import build_child_env
    from vllama.models.convert.requantise import requantise

    with open_display() as display:
        return asyncio.run(
            requantise(
                library,
                base,
                quant,
                lambda: local_quantiser(settings),
                env=build_child_env(config.environ()),
                tell=display,
            )
        )
