"""`vllama show`: what a model on this disk is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllama.cli.commands.completion import model_names
from vllama.cli.declare import argument, option

if TYPE_CHECKING:
    from vllama.models.types import Bundle, ModelInfo

EXAMPLES = """\
\b
Examples:
  vllama show smollm2:135m
  vllama show smollm2:135m --template
  vllama show smollm2:135m --json
"""


@argument("model", help="Name as in list, or the path of a file.", shell_complete=model_names)
@option("--license", "license_", is_flag=True, help="Show the licence.")
@option("--modelfile", is_flag=True, help="Show a Modelfile.")
@option("--parameters", is_flag=True, help="Show the default parameters.")
@option("--template", is_flag=True, help="Show the chat template.")
@option("--system", is_flag=True, help="Show the system message.")
@option("--verbose", "-v", is_flag=True, help="Show metadata and tensors too.")
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(
    model: str,
    license_: bool,
    modelfile: bool,
    parameters: bool,
    template: bool,
    system: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Show what a model is."""
    from vllama.cli.context import load_settings, local_library
    from vllama.cli.model_view import section_lines, sections
    from vllama.cli.output import say, show_json
    from vllama.config.parse import whole_path
    from vllama.errors import ConfigError

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
            "only one of --license, --modelfile, --parameters, --template, --system and --json "
            "can be shown at a time"
        )
    books = local_library(load_settings())
    bundle = books.find(whole_path(model))
    shown = describe(bundle, books.info(bundle), verbose=verbose)
    if as_json:
        show_json(shown)
    elif wanted:
        say(str(shown.get(wanted[0]) or "").rstrip("\n"))
    else:
        for line in section_lines(sections(shown, verbose=verbose)):
            say(line)


def describe(bundle: Bundle, info: ModelInfo, *, verbose: bool) -> dict[str, object]:
    """Build what `/api/show` would answer, and the path."""
    from vllama.models.info import details, model_info, projector_info, template_words
    from vllama.models.modelfile import modelfile_text, parameters_text
    from vllama.models.types import Capability
    from vllama.units import rfc3339_local

    shown: dict[str, object] = {
        "license": bundle.license or info.license or "",
        "modelfile": modelfile_text(bundle, info),
        "parameters": parameters_text(bundle.parameters),
        "template": bundle.template or info.chat_template or "",
        "system": bundle.system or "",
        "details": details(bundle, info),
        "model_info": model_info(info, verbose=verbose),
        "capabilities": [str(item) for item in Capability if item in info.capabilities],
        "modified_at": rfc3339_local(bundle.modified_s),
        "path": str(bundle.path),
    }
    if words := template_words(bundle, info):
        shown["vllama"] = {"template": words}
    if bundle.projector is not None:
        shown["projector_info"] = projector_info(bundle.projector)
    if verbose:
        shown["tensors"] = [
            {"name": name, "type": kind, "shape": list(shape)} for name, kind, shape in info.tensors
        ]
    return shown
