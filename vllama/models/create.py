"""Make a model of one's own: a name with defaults, on top of a model or of uploaded files.

`create`: 1. resolve the name; 2. read the base's metadata, which proves that it can be used;
3. merge the settings over the base's own, not those of the config file; 4. write. Knows stores
through `Library` only. Blocking.
What replaces what follows Ollama's server/create.go.

See docs/reference/ollama-api.md#create.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from vllama.base.errors import BadModelFile, BadRequest, InvalidModelRef, ModelNotFound, VllamaError
from vllama.models.companions import (
    check_adapter,
    check_draft,
    is_adapter,
    is_projector,
    read_given_header,
)
from vllama.models.disk import list_model_files
from vllama.models.headers.chat_templates import find_stops
from vllama.models.library import Library
from vllama.models.modelfile import BARE_TEMPLATE
from vllama.models.names.quant import UNQUANTIZED, choose_intermediate, find_quant
from vllama.models.names.ref import HUB_HOST, INVALID_NAME, Kind, ModelRef, is_cloud
from vllama.models.stores.base import sum_real_sizes
from vllama.models.stores.local import LocalStore
from vllama.models.types import Bundle, Definition, Format, ModelInfo

Tell = Callable[[str], None]
QUANTS = ("F32", "F16", "BF16", "Q4_K_S", "Q4_K_M", "Q8_0")
"""What Ollama can quantize to."""
MAX_TAG = 80

UNUSED_RENDERER = (
    "renderer and parser are stored but not used: prompts, thinking and tool calls follow the "
    "model's template"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewModel(Definition):
    """Parts of a new model.

    `parameters` are merged over the base's, whatever else it says replaces that. `notes` are told
    to the user, one status each. `new_base`: its weights were made for this. `bring` stores a file.
    """

    name: str
    base: Bundle
    notes: tuple[str, ...] = ()
    new_base: bool = False
    bring: Callable[[Path], Path] = Path


def create(library: Library, recipe: NewModel, tell: Tell = lambda status: None) -> Bundle:
    """Create a model, or replace the one of that name. Raises BadRequest, VllamaError.

    A base in another quantization has to be made before (`choose_quant`).
    """
    name = check_new_name(recipe.name)
    base = recipe.base.without_settings()
    info = _info(library, base)
    for path in recipe.adapters:
        check_adapter(path, info)
    if recipe.draft:
        check_draft(recipe.draft, base, info)
    base, recipe = _bring_files(base, recipe)
    parameters = {**(base.parameters or _derive_parameters(info)), **recipe.parameters}
    given = {**recipe.given, "parameters": parameters}
    bundle = replace(base, name=name, base=_base_name(library, base), **given)
    if bundle.template == (info.chat_template or BARE_TEMPLATE):
        bundle = replace(bundle, template=None)  # what `show --modelfile` gave: the model's own
    if bundle.template and bundle.template != base.template:
        from vllama.chat.templates.go_template_prompt import parse_go_template  # no copy has one

        parse_go_template(bundle.template)
    own = {*list_model_files(*base.adapters, base.draft)}
    files = [file for file in base.files if file not in own]
    bundle = replace(bundle, files=(*files, *list_model_files(*bundle.adapters, bundle.draft)))
    if bundle.base is None and not recipe.new_base:
        tell("parsing GGUF")
    tell(f"{'creating new' if recipe.new_base else 'using existing'} layer sha256:{base.digest}")
    _tell_layers(bundle, base, tell)
    if recipe.renderer or recipe.parser:
        tell(UNUSED_RENDERER)
    for note in recipe.notes:
        tell(note)
    tell("writing manifest")
    kept = library.local.write(bundle)
    tell("success")
    return kept


def _bring_files(base: Bundle, recipe: NewModel) -> tuple[Bundle, NewModel]:
    """Bring the files to where they stay; the model of one that moves is the store's own."""
    adapters, draft = tuple(map(recipe.bring, recipe.adapters)), recipe.draft
    recipe = replace(recipe, adapters=adapters, draft=draft and recipe.bring(draft))
    projector, files = base.projector, tuple(map(recipe.bring, base.files))
    if (path := recipe.bring(base.path)) != base.path:
        digest = path.name.removeprefix("sha256-")
        base = replace(base, path=path, store=LocalStore.name, digest=digest)
    return replace(base, projector=projector and recipe.bring(projector), files=files), recipe


def _derive_parameters(info: ModelInfo) -> dict[str, object]:
    """Return the parameters that a model has by its own chat template, as in Ollama."""
    is_own = info.template_family is None
    stops = find_stops(info.chat_template or "") if is_own else []
    return {"stop": stops} if stops else {}


def copy(library: Library, bundle: Bundle, name: str) -> Bundle:
    """Give a model the second name `name` (from `check_copy_name`). Raises VllamaError."""
    if bundle.name.lower() == name.lower():
        return bundle
    copied = replace(bundle.without_settings(), name=name, base=_base_name(library, bundle))
    return library.local.write(copied, digest=bundle.digest)


def check_copy_name(destination: str) -> str:
    """Return the display form of a name for a copy. Raises BadRequest."""
    try:
        return check_new_name(destination)
    except BadRequest as error:
        text = f'destination "{destination}" is invalid'
        raise InvalidModelRef(text, hint=error.hint) from None


def make_no_source_error(name: str, error: ModelNotFound) -> ModelNotFound:
    """Say in Ollama's words that there is nothing to copy."""
    return ModelNotFound(name, message=f'model "{name}" not found', hint=error.hint)


def check_new_name(text: str) -> str:
    """Return the display form of a name for a new model.

    Raises BadRequest for what is no name of a local model: paths, the hub's and cloud names.
    """
    try:
        ref = ModelRef.parse(text)
    except BadRequest:
        raise InvalidModelRef(INVALID_NAME, hint="use the form name[:tag]") from None
    taken = ref.kind is Kind.PATH or ref.host == HUB_HOST or is_cloud(ref) or "://" in text
    if taken or len(ref.tag) > MAX_TAG:
        raise InvalidModelRef(
            INVALID_NAME, hint="use name[:tag]; paths, hub and cloud names are reserved"
        )
    # two segments look like a hub repository, but here they are a namespace and a name
    return replace(ref, kind=Kind.LIBRARY).display


def make_bundle(files: Iterable[tuple[str, Path]]) -> Bundle:
    """Return the model that GGUF files are: (name as uploaded, where it lies). Raises BadRequest.

    One file is the model; one more may be its projector.
    """
    models: list[tuple[str, Path]] = []
    projectors: list[Path] = []
    for name, path in files:
        header = read_given_header(name, path)
        if is_projector(header):
            projectors.append(path)
        elif is_adapter(header):
            raise BadRequest(f"cannot use '{name}': it is an adapter", hint="use ADAPTER")
        elif header.metadata.get("split.count", 0) not in (0, 1):
            raise BadRequest(
                f"cannot use '{name}': it is one part of a split model",
                hint="merge the parts first: llama-gguf-split --merge",
            )
        else:
            models.append((name, path))
    if len(models) != 1 or len(projectors) > 1:
        raise BadRequest(
            f"cannot combine {len(models)} model files and {len(projectors)} projectors",
            hint="specify one GGUF file, and optionally its projector",
        )
    (name, path), projector = models[0], projectors[0] if projectors else None
    everything = (path, projector) if projector else (path,)
    return Bundle(
        name=Path(name).name,
        store=LocalStore.name,
        format=Format.GGUF,
        path=path,
        files=everything,
        size_bytes=sum_real_sizes(everything),
        digest=path.name.removeprefix("sha256-"),
        modified_s=path.stat().st_mtime,
        quant=find_quant(name),
        projector=projector,
    )


def add_projector(bundle: Bundle, path: Path) -> Bundle:
    """Add a second FROM line to a model: a projector in a file. Raises BadRequest."""
    if not is_projector(read_given_header(path.name, path)):
        raise BadRequest(f"cannot use '{path}' with '{bundle.name}': it is not a projector")
    bundle = bundle.without_settings()
    files = tuple(file for file in bundle.files if file != bundle.projector)
    return replace(bundle, projector=path, files=(*files, path))


def choose_quant(
    library: Library, base: Bundle, wanted: str | None, formats: Callable[[], Collection[Format]]
) -> str | None:
    """Return the type that a base has to be brought into first; None if it is fine as it is.

    `formats` returns what the engines here read: safetensors that none reads get 16 bits. The
    answers are those of Ollama's server/create.go. Raises BadRequest.
    """
    if not wanted:
        is_read = base.format is not Format.SAFETENSORS or Format.SAFETENSORS in formats()
        return None if is_read else choose_intermediate(_info(library, base).quant)
    quant = wanted.strip().upper()
    if quant not in QUANTS:
        raise BadRequest(
            f'unsupported quantization "{wanted}"', hint=f"supported: {', '.join(QUANTS)}"
        )
    has = (_info(library, base).quant or base.quant or "unknown").upper()
    if base.format is Format.SAFETENSORS:
        return quant  # becomes a GGUF
    if has == quant:
        return None
    if base.format is not Format.GGUF or has not in UNQUANTIZED:
        raise BadRequest("quantization is only supported for F16, BF16 and F32 models")
    return quant


def _info(library: Library, base: Bundle) -> ModelInfo:
    try:
        return library.info(base)
    except BadModelFile as error:
        raise BadRequest(error.message, hint=error.hint) from error


def _base_name(library: Library, bundle: Bundle) -> str | None:
    """Return the name by which the files can be found again; None if there is none."""
    if bundle.store == LocalStore.name:
        return bundle.base
    if bundle.name == str(bundle.path):  # another model has the file's own name
        return None
    try:  # a file that was named by its path has a name of its own, but nobody else knows it
        return bundle.name if library.find(bundle.name).bundle.path == bundle.path else None
    except VllamaError:
        return None


def _tell_layers(bundle: Bundle, base: Bundle, tell: Tell) -> None:
    """Say, in Ollama's words, what is new and what is there, beside the weights."""
    for own, old in (
        (bundle.template, base.template),
        (bundle.system, base.system),
        (bundle.parameters, base.parameters),
        (bundle.messages, base.messages),
        (bundle.license, base.license),
        ([str(path) for path in bundle.adapters], [str(path) for path in base.adapters]),
    ):
        if own:
            digest = hashlib.sha256(msgspec.json.encode(own)).hexdigest()
            tell(f"{'using existing' if own == old else 'creating new'} layer sha256:{digest}")
