"""`vllama vectors`: steering vectors with names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from vllama.base.errors import ConfigError
from vllama.cli.context import load_settings, local_library
from vllama.cli.options import AsJson, argument, check_action, complete_words, model_argument
from vllama.cli.output import say, show_json, show_table
from vllama.config.parse import whole_path

EXAMPLES = """\
\b
Examples:
  vllama vectors add smollm2:135m calm calm.safetensors
  vllama vectors ls
  vllama vectors rm smollm2:135m calm

A vector is a safetensors file with one row of numbers. Requests name it in "inspect"; see
docs/guide/inspect.md.
"""
ACTIONS = ("ls", "add", "rm")


def vectors(
    action: Annotated[
        str, argument("ACTION", f"One of {', '.join(ACTIONS)}.", complete_words(*ACTIONS))
    ] = "ls",
    model: Annotated[str | None, model_argument("The model that it was made with.")] = None,
    name: Annotated[str | None, argument("NAME", "The name of the vector.")] = None,
    file: Annotated[Path | None, argument("FILE", "With add: its safetensors file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Manage the vectors that answers can be steered by."""
    check_action(action, ACTIONS, "vectors")
    from vllama.models.names.ref import ModelRef
    from vllama.models.vectors import VectorStore

    settings = load_settings()
    store = VectorStore(settings.data_dir)
    if action == "ls":
        of = ModelRef.parse(model).display if model else None
        rows = [each for each in store.list() if of in (None, each.model)]
        if as_json:
            show_json([{"model": x.model, "name": x.name, "size": x.size} for x in rows])
        else:
            cells = [(each.model, each.name, str(each.size)) for each in rows]
            show_table(("MODEL", "NAME", "NUMBERS"), cells)
        return
    if model is None or name is None or (file is None) == (action == "add"):
        wanted = "MODEL NAME FILE" if action == "add" else "MODEL NAME"
        raise ConfigError(f"cannot {action}: write vllama vectors {action} {wanted}")
    library = local_library(settings)
    bundle = library.find(whole_path(model))
    if file is None:
        store.remove(bundle, name)
        say(f"{name} of {bundle.name} is removed")
        return
    width = library.info(bundle).embedding_length
    if width is None:
        raise ConfigError(f"cannot add a vector for {bundle.name}: its files do not tell its size")
    try:
        added = store.add(bundle, width, name, file)
    except OSError as error:
        raise ConfigError(f"cannot read '{file}': {error.strerror or error}") from None
    say(f"{added.name} is added for {added.model}: {added.size} numbers")
