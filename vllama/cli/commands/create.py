"""`vllama create`: make a model from a Modelfile."""

from __future__ import annotations

import asyncio
import codecs
import itertools
import sys
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vllama import config
from vllama.base.errors import ConfigError, ModelNotFound, VllamaError
from vllama.base.owner import read_named
from vllama.cli.commands.convert import agree_to_fetch
from vllama.cli.context import change_models, load_settings, local_library, local_quantizer
from vllama.cli.options import argument, option, yes_option
from vllama.cli.output import say_aside
from vllama.cli.progress import open_display, pull_with_progress, show_installer
from vllama.config import Config
from vllama.config.parse import holds_model
from vllama.models.disk import is_file
from vllama.models.names.ref import Kind, ModelRef, is_path
from vllama.models.stores.folder import FolderStore
from vllama.models.stores.local import LocalStore
from vllama.models.types import Bundle, Format

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
    context: typer.Context,
    model: Annotated[str, argument("MODEL", "Name of the new model.")],
    file: Annotated[
        Path, option("--file -f FILE", "Modelfile; - reads it from stdin.", allow_dash=True)
    ] = DEFAULT_FILE,
    quantize: Annotated[
        str | None, option("--quantize -q QUANT", "Quantization, such as Q4_K_M.")
    ] = None,
    draft_quantize: Annotated[
        str | None, option("--draft-quantize QUANT", "Quantization of the DRAFT model.")
    ] = None,
    link: Annotated[
        bool, option("--link", "Hard-link model files instead of copying them.")
    ] = False,
    yes: Annotated[bool, yes_option("Download without asking.")] = False,
    experimental: Annotated[bool, typer.Option("--experimental", hidden=True)] = False,
) -> None:
    """Create a model from another one, with its own defaults."""
    from vllama.models.convert.adapter import bring_adapters
    from vllama.models.create import NewModel, add_projector, check_new_name, choose_quant
    from vllama.models.create import create as create_model
    from vllama.models.modelfile import parse_modelfile
    from vllama.plan.choose import list_loadable_formats
    from vllama.server.preflight import gather_facts

    check_new_name(model)  # fail before anything is pulled
    order = parse_modelfile(_text(file))
    folder = Path.cwd() if file == STDIN else file.absolute().parent
    settings = load_settings()
    context.with_resource(change_models(settings))
    library = local_library(settings)
    source, *more = (_locate(text, folder) for text in order.sources)
    base = _base(settings, library, source)
    for extra in more:
        base = add_projector(base, Path(extra))

    def convert_if_wanted(model: Bundle, wanted: str | None) -> Bundle:
        quant = choose_quant(
            library, model, wanted, lambda: list_loadable_formats(gather_facts(settings))
        )
        return model if quant is None else _convert(settings, library, model, quant, yes)

    base = convert_if_wanted(given := base, quantize)
    adapters = [
        bring_adapters(library, base, name, _adapter_files(_adapter(library, name, folder)))
        for name in order.adapter_names
    ]
    if draft_quantize and not order.draft_name:
        raise ConfigError("cannot quantize a draft model: the Modelfile has no DRAFT line")
    draft = _locate(order.draft_name, folder) if order.draft_name else ""
    drafts = library.find(draft).bundle if draft else None
    if drafts is not None and draft_quantize:
        drafts = convert_if_wanted(drafts, draft_quantize)
    definition = replace(
        order,
        adapters=tuple(itertools.chain(*adapters)),
        draft=drafts.path if drafts else None,
    )
    named = {*map(Path, more), *definition.adapters, definition.draft if is_path(draft) else None}
    if is_path(source) and base.store == FolderStore.name:
        if base.format is Format.GGUF and len(base.files) - bool(base.projector) == 1:
            named.update(base.files)
        else:
            say_aside(f"using '{base.path}' in place: do not move or change it")

    @cache
    def bring(path: Path) -> Path:
        if path not in named or path.parent == library.local.blobs.folder or not path.is_file():
            return path
        with open_display() as display:
            place = library.local.blobs.bring(path, display, link=link)
        if link:
            how = "in place, as it cannot be linked" if place == path else "via a hard link"
            say_aside(f"using '{path}' {how}: do not change it")
        return place

    recipe = NewModel(
        **definition.defined,
        name=model,
        base=base,
        new_base=base is not given,
        notes=tuple(f"ignoring {name}: not supported" for name in order.unused),
        bring=bring,
    )
    create_model(library, recipe, say_aside)


def _text(file: Path) -> str:
    try:
        content = sys.stdin.buffer.read() if file == STDIN else read_named(file)
        # as Ollama's parser/parser.go (unicode.BOMOverride)
        is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return content.decode("utf-16" if is_wide else "utf-8-sig")
    except OSError as error:
        raise VllamaError(
            f"cannot read the Modelfile '{file}': {error.strerror or error}",
            hint="specify another file with -f, or read from stdin with -f -",
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read the Modelfile '{file}': it is not UTF-8 text") from None


def _locate(text: str, folder: Path) -> str:
    """Return a file's path, relative to the Modelfile, or the name of a model."""
    if text.startswith(("/", "~")):
        return text
    path = folder / text
    is_model = is_file(path) or holds_model(path)
    return str(path) if is_model or text.startswith(("./", "../")) or text == "." else text


def _base(settings: Config, library: Library, name: str) -> Bundle:
    """Return the model to build on, pulled if it is missing."""
    if is_path(name):  # one in a store stands for the model there
        found, apart = library.find(name).bundle, (FolderStore.name, LocalStore.name)
        same = (b for b in library.list() if b.path == found.path and b.store not in apart)
        return next(same, found)
    with suppress(ModelNotFound):
        return library.find(name).bundle
    pull_with_progress(settings, name)
    return library.find(name).bundle


def _adapter(library: Library, name: str, folder: Path) -> Path:
    """Return where an adapter lies: a path from the Modelfile's folder, or a name on the hub."""
    path = folder / Path(name).expanduser()
    is_path = path.exists() or path.parent.exists() or name.startswith((".", "/", "~"))
    ref = None if is_path else ModelRef.parse(name)
    if ref is None or ref.kind is not Kind.HUB:
        return path
    with open_display() as display:
        return library.remote.pull_adapter(ref, display)


def _adapter_files(path: Path) -> dict[str, Path]:
    """Return an adapter's file, or those of its folder by their names. Raises OSError."""
    folder = path.parent if path.suffix == ".safetensors" else path
    files = sorted(folder.iterdir()) if folder.is_dir() else [path]
    kinds = (path.suffix, ".gguf", ".safetensors", ".json")
    return {file.name: file for file in files if file.suffix in kinds}


def _convert(settings: Config, library: Library, base: Bundle, quant: str, yes: bool) -> Bundle:
    """Return `base` as a GGUF of the type `quant`. Raises VllamaError."""
    from vllama.engines.child_env import build_child_env
    from vllama.models.convert.job import requantize
    from vllama.models.convert.tools import ConverterMissing, install_converter

    find, env = partial(local_quantizer, settings), build_child_env(config.environ())

    def convert() -> Bundle:
        with open_display() as display:
            return asyncio.run(requantize(library, base, quant, find, env=env, tell=display))

    try:
        return convert()
    except ConverterMissing:
        agree_to_fetch(base.name, 0, converter=True, yes=yes)
    with open_display() as display:
        asyncio.run(install_converter(settings.data_dir, display, show_installer(display)))
    return convert()
