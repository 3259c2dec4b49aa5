"""`vllama show`: what a model on this disk is."""

from __future__ import annotations

from typing import Annotated

from vllama.base.errors import ConfigError
from vllama.cli.context import load_settings, local_library
from vllama.cli.model_output import show_model
from vllama.cli.options import AsJson, model_argument, option
from vllama.config.parse import whole_path

EXAMPLES = """\
\b
Examples:
  vllama show smollm2:135m
  vllama show smollm2:135m --template
  vllama show smollm2:135m --json
"""


def show(
    model: Annotated[str, model_argument("Model name, or the path of a file.")],
    license_: Annotated[bool, option("--license", "Show the license.")] = False,
    modelfile: Annotated[bool, option("--modelfile", "Show the Modelfile.")] = False,
    parameters: Annotated[bool, option("--parameters", "Show the default parameters.")] = False,
    template: Annotated[bool, option("--template", "Show the chat template.")] = False,
    system: Annotated[bool, option("--system", "Show the system message.")] = False,
    verbose: Annotated[bool, option("--verbose -v", "Also show metadata and tensors.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the details of a model."""
    parts = {
        "license": license_,
        "modelfile": modelfile,
        "parameters": parameters,
        "template": template,
        "system": system,
    }
    wanted = [name for name, given in parts.items() if given]
    if len(wanted) > 1 or (wanted and as_json):
        raise ConfigError(
            "use only one of --license, --modelfile, --parameters, --template, --system and --json"
        )
    library = local_library(load_settings())
    bundle = library.find(whole_path(model)).bundle.without_settings()
    from vllama.models.shown import describe_to_owner

    shown = describe_to_owner(library, bundle, verbose=verbose)
    show_model(shown, "".join(wanted), as_json=as_json, verbose=verbose)
