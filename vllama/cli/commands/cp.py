"""`vllama cp`: give a model a second name."""

from __future__ import annotations

from typing import Annotated

from vllama.base.errors import BadRequest, ModelNotFound
from vllama.cli.context import change_models, load_settings, local_library
from vllama.cli.options import argument, model_argument
from vllama.cli.output import say
from vllama.config.parse import whole_path

EXAMPLES = """\
\b
Examples:
  vllama cp smollm2:135m gpt-3.5-turbo
"""


def cp(
    source: Annotated[str, model_argument("Name of the model.", "SOURCE")],
    destination: Annotated[str, argument("DESTINATION", "New name.")],
) -> None:
    """Copy a model to a new name; the files are shared."""
    from vllama.models.create import check_copy_name, copy, make_no_source_error

    name, settings = check_copy_name(destination), load_settings()
    if source == destination:
        raise BadRequest(f"cannot copy '{source}' to itself")
    library = local_library(settings)
    try:
        bundle = library.find(whole_path(source), may_pull=False).bundle
    except ModelNotFound as error:
        raise make_no_source_error(source, error) from None
    with change_models(settings):
        copy(library, bundle, name)
    say(f"copied '{source}' to '{destination}'")
