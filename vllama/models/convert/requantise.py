"""`create` with `quantize`, or of safetensors: the base that it builds on is made first.

A GGUF is quantised; a folder of safetensors is converted before, by a converter that is installed
already (nobody can be asked here).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vllama.base import executors
from vllama.base.errors import BadModelFile, BadRequest, EngineMissing
from vllama.models.convert.tools import (
    DIRECT,
    Quantiser,
    choose_intermediate,
    estimate_size,
    find_converter,
)
from vllama.models.convert.work import Workshop, move_to_store
from vllama.models.convert.workspace import (
    check_folder,
    check_free_space,
    link_files,
    open_workspace,
)
from vllama.models.create import choose_quant
from vllama.models.disk import get_free_bytes
from vllama.models.library import Library
from vllama.models.names.ref import path_stem
from vllama.models.stores.folder import make_safetensors_bundle
from vllama.models.types import Bundle, Format, Progress

FindQuantiser = Callable[[], Quantiser]


async def requantise(
    library: Library,
    base: Bundle,
    quant: str,
    find_quantiser: FindQuantiser,
    *,
    env: Mapping[str, str],
    tell: Progress,
    name: str | None = None,
    free_space: Callable[[Path], int] = get_free_bytes,
) -> Bundle:
    """Return `base` with weights of the type `quant`, its files in our store.

    They are an upload like any other until a model is created of them. `find_quantiser` is called
    if one is needed; `name` is what safetensors are called in their GGUF. Raises BadModelFile,
    DiskFull, EngineMissing, VllamaError.
    """
    info = await executors.storage.run(library.info, base)
    has, converter, task = info.quant or base.quant or "F16", None, "quantize"
    if base.format is not Format.GGUF:
        name = name or (base.hub_id or path_stem(base.path)).rpartition("/")[2]
        converter = find_converter(library.local.root)
        if converter is None:
            raise EngineMissing(
                f"cannot convert '{name}': llama.cpp's converter is not installed",
                hint="on the server's machine run "
                f"'vllama convert FOLDER -q {quant}': it installs it",
            )
        check_folder(base.path, name)
        has, task = quant if quant in DIRECT else choose_intermediate(info.quant), "convert"
    name = name or base.name
    steps = {has, quant} if converter else {quant}
    sizes = {step: estimate_size(info, step) for step in steps}
    parent = library.local.blobs.folder
    check_free_space(parent, sum(sizes.values()), f"{task} '{name}'", free_space)
    quantiser = None if converter and has == quant else find_quantiser()
    with open_workspace(parent) as folder:
        workshop = Workshop(
            folder=folder, tell=tell, env=env, converter=converter, quantiser=quantiser
        )
        made = await workshop.make(base.path, quant, name=name, has=has, sizes=sizes)
        return await executors.storage.run(move_to_store, library.local, made, base)


async def convert_uploads(
    library: Library,
    name: str,
    files: Sequence[tuple[str, Path]],
    quant: str | None,
    find_quantiser: FindQuantiser,
    *,
    env: Mapping[str, str],
    tell: Progress,
) -> Bundle:
    """Return the GGUF of uploaded safetensors: (name in their folder, where it lies).

    Without `quant` it is 16 bits wide, as in Ollama. Raises BadRequest and as `requantise`.
    """
    if odd := next((name for name, _ in files if Path(name).name != name), None):
        raise BadRequest(f"invalid file name '{odd}'", hint="name files without their folder")
    with open_workspace(library.local.blobs.folder) as folder:
        shown = await executors.storage.run(link_files, files, folder / "upload")
        base = await executors.storage.run(make_safetensors_bundle, shown)
        try:
            info = await executors.storage.run(library.info, base)
            wanted = choose_quant(library, base, quant) or choose_intermediate(info.quant)
            return await requantise(
                library,
                base,
                wanted,
                find_quantiser,
                name=name.partition(":")[0].rpartition("/")[2],
                env=env,
                tell=tell,
            )
        except BadModelFile as error:
            raise BadRequest(error.message, hint=error.hint) from error
