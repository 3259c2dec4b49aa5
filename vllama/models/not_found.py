"""The errors for models that cannot be found, here or elsewhere, with what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vllama.base.errors import ModelNotFound, VllamaError
from vllama.base.spelling import find_similar
from vllama.models.aliases import list_families, list_tags
from vllama.models.names.ref import DEFAULT_TAG, CloudDisabled, Kind, ModelRef, is_cloud
from vllama.models.stored import StoredModels
from vllama.models.types import Bundle


def make_missing_error(
    name: str,
    stored: StoredModels,
    list_models: Callable[[], Sequence[Bundle]],
    *,
    may_pull: bool = True,
) -> VllamaError:
    """Make the error for a model that is not among those in `stored`.

    `list_models` returns all models, under all their names. `may_pull`: the hint may be to pull it.
    """
    ref = ModelRef.parse(name)
    if is_cloud(ref):
        return CloudDisabled()
    if ref.kind is Kind.PATH:
        return make_missing_path_error(name, ref)
    shown = name.strip() if ref.kind is Kind.HUB else ref.display
    return ModelNotFound(shown, hint=_advise(ref, stored, list_models, may_pull=may_pull))


def make_missing_path_error(name: str, ref: ModelRef) -> ModelNotFound:
    """Make the error for a path, parsed as `ref`, at which no model lies."""
    return ModelNotFound(
        name,
        message=f"cannot find a model at '{name}'",
        hint="name a .gguf file, or a folder with config.json (or params.json) and *.safetensors"
        if ref.path is not None and ref.path.exists()
        else "there is no such file or folder",
    )


def _advise(
    ref: ModelRef,
    stored: StoredModels,
    list_models: Callable[[], Sequence[Bundle]],
    *,
    may_pull: bool,
) -> str:
    """Return the hint for a model that is not here: a similar name, a pull, or the list."""
    for item in stored.skipped():
        if ref.means(item.name):
            return f"it lies in '{item.path}', but is left out: {item.reason}"
    keys: dict[str, str] = {}
    for bundle in list_models():
        here = ModelRef.parse(bundle.name)
        # also without the tag and the organisation: any of them may be misspelt
        for key in (f"{here.plain}:{here.tag}", here.plain, here.model):
            keys.setdefault(key.lower(), bundle.name)
    wanted = f"{ref.plain}:{ref.tag}" if ref.has_tag else ref.plain
    near = list(dict.fromkeys(keys[key] for key in find_similar(wanted, keys)))
    if not may_pull:
        other = "see what is here: vllama list"
    elif ref.kind is Kind.HUB or stored.find_alias(ref):
        other = f"run: vllama pull {ref.text}"
    else:
        other = "pull it from the hub by its full name: vllama pull hf.co/org/repo"
    return f"did you mean {' or '.join(near)}? Otherwise {other}" if near else other


def make_removed_error(name: str) -> ModelNotFound:
    """Make the error for a model that another process removed while it came."""
    return ModelNotFound(name, hint="it was removed while it was pulled: pull again")


def make_no_repository_error(ref: ModelRef) -> ModelNotFound:
    """Make the error for a name that stands for nothing on the hub."""
    message = f"cannot find '{ref.display}': no repository on the hub is known for it"
    elsewhere = (
        "name a repository: vllama pull hf.co/org/repo[:QUANT], or take it from Ollama's registry: "
        f"vllama pull ollama://{ref.display}"
    )
    if tags := list_tags(ref.model):
        known = ", ".join(f"{ref.model}:{tag}" for tag in tags if tag != DEFAULT_TAG)
        return ModelNotFound(
            ref.display, message=message, hint=f"take one of: {known}; or {elsewhere}"
        )
    near = find_similar(ref.model, list_families())
    meant = f"did you mean {' or '.join(near)}? Otherwise " if near else ""
    return ModelNotFound(ref.display, message=message, hint=f"{meant}{elsewhere}")
