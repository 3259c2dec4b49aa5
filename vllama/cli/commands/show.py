"""`vllama show`: what a model on this disk is."""

from __future__ import annotations

from typing import Annotated

from vllama.base.errors import ConfigError
from vllama.cli.context import load_settings, local_library
from vllama.cli.options import AsJson, model_argument, option
from vllama.cli.output import say, show_json
from vllama.config.parse import whole_path
from vllama.models.types import Bundle, ModelInfo

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
    from vllama.cli.model_view import format_sections, make_sections

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
    shown = describe(bundle, library.info(bundle), verbose=verbose)
    if as_json:
        show_json(shown)
    elif wanted:
        say(str(shown.get(wanted[0]) or "").rstrip("\n"))
    else:
        for line in format_sections(make_sections(shown, verbose=verbose)):
            say(line)


def describe(bundle: Bundle, info: ModelInfo, *, verbose: bool) -> dict[str, object]:
    """Return the response of `/api/show`, and details for this machine's user only."""
    import msgspec

    from vllama.models.headers.info import build_details, describe_template
    from vllama.models.shown import describe_model

    shown: dict[str, object] = {
        **msgspec.to_builtins(describe_model(bundle, info, verbose=verbose)),
        "details": msgspec.to_builtins(build_details(bundle, info)),
        "path": str(bundle.path),
    }
    if not verbose:
        shown.pop("tensors", None)
    if bundle.revision:
        shown["revision"] = bundle.revision
    if words := describe_template(bundle, info):
        shown["vllama"] = {"template": words}
    return shown
