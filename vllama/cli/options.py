"""Parameters that commands share, and what the shell offers for the word that is being typed.

Where nothing is offered, the shell offers files.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, TypeAlias

import typer

from vllama import config
from vllama.base.errors import VllamaError

LIMIT_S = 1.0
"""A shell that waits for a slow server is worse than one that offers nothing."""

Complete = Callable[[str], list[str]]


def complete_model(incomplete: str) -> list[str]:
    """Return the names of the server's models that begin so; none where there is no server."""
    from vllama.cli.client import Client

    try:
        settings = config.load({}, config.environ())
        with Client(settings.url, key=settings.key_to_send, limit_s=LIMIT_S) as client:
            models = client.get("/api/tags").get("models") or []
    except VllamaError:
        return []
    return begin(incomplete, (str(model.get("name", "")) for model in models))


def complete_engine(incomplete: str) -> list[str]:
    """Return the names of the known engines that begin so."""
    from vllama.engines.registry import list_points

    return begin(incomplete, sorted(point.name for point in list_points()))


def complete_key(incomplete: str) -> list[str]:
    """Return the names of the keys in the data folder that begin so."""
    from vllama.accounts.keys.store import read_keys

    try:
        settings = config.load({}, config.environ())
        keys = read_keys(config.keys_file(settings.data_dir))
    except VllamaError:
        return []
    return begin(incomplete, (key.name for key in keys))


def complete_words(*words: str) -> Complete:
    """Return a completer for one of some words."""
    return lambda incomplete: begin(incomplete, words)


def complete_schema(schema: Mapping[str, Any]) -> Complete | None:
    """Return a completer for the words that a JSON schema allows; None if it lists none."""
    parts = (schema, *schema.get("anyOf", ()))
    words = [str(word) for part in parts for word in part.get("enum", ())]
    return complete_words(*words) if words else None


def begin(incomplete: str, words: Iterable[str]) -> list[str]:
    """Return the words that begin so."""
    return [word for word in words if word.startswith(incomplete)]


COMPLETED = {"model": complete_model, "engine": complete_engine}


def yes_option(help: str = "Do not ask.") -> Any:
    """Return the option that answers all questions beforehand."""
    return typer.Option("--yes", "-y", help=help)


def argument(metavar: str, help: str, complete: Callable[[str], list[str]] | None = None) -> Any:
    """Return an argument; `complete` returns the values that begin with what is typed."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete, show_default=False)


def option(
    flags: str, help: str, complete: Callable[[str], list[str]] | None = None, **more: Any
) -> Any:
    """Return an option from `--lines -n N`, its names and what its value is called."""
    words = flags.split()
    names = [word for word in words if word.startswith("-")]
    metavar = next((word for word in words if not word.startswith("-")), None)
    return typer.Option(*names, metavar=metavar, help=help, autocompletion=complete, **more)


AsJson: TypeAlias = Annotated[bool, option("--json", "Print JSON.")]
MaxKl: TypeAlias = Annotated[
    float,
    option(
        "--max-kl NATS",
        "Maximum mean KL divergence of the probabilities.",
        min=0,
    ),
]
Insecure: TypeAlias = Annotated[bool, typer.Option("--insecure", hidden=True)]


def model_argument(help: str, metavar: str = "MODEL") -> Any:
    """Return an argument that takes a model's name, which the shell completes."""
    return argument(metavar, help, complete_model)


Command = Callable[..., Any]


def with_settings(*fields: str) -> Callable[[Command], Command]:
    """Give a command the options of some settings, or of all that have a flag.

    The command gets them as its argument `flags`: by field, as text, None where one is not given.
    """
    chosen = [one for one in config.SETTINGS if one.flag and (not fields or one.field in fields)]
    return partial(_add_options, [_option(setting) for setting in chosen])


def with_options(**declared: Any) -> Callable[[Command], Command]:
    """Give a command options of text, as `flags` too: the types of their parameters by name."""
    kind = inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(name, kind, default=None, annotation=each)
        for name, each in declared.items()
    ]
    return partial(_add_options, options)


def _add_options(options: list[inspect.Parameter], function: Command) -> Command:
    signature = inspect.signature(function, eval_str=True)
    own = [each for each in signature.parameters.values() if each.name != "flags"]

    def command(**given: Any) -> Any:
        flags = {option.name: given.pop(option.name) or None for option in options}
        return function(**given, flags=flags)

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + options
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


def _option(setting: config.Setting) -> inspect.Parameter:
    """Return the parameter of one setting; its text is read later, with all other sources."""
    kind: Any = bool if setting.is_switch else list[str] if setting.kind.is_list else str
    declared = typer.Option(
        *(name for name in (setting.flag, setting.short) if name),
        metavar=None if setting.is_switch else setting.kind.metavar,
        help=_help(setting),
        autocompletion=COMPLETED.get(setting.field) or complete_schema(setting.kind.schema),
    )
    return inspect.Parameter(
        setting.field,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, declared],
    )


def _help(setting: config.Setting) -> str:
    text = f"{setting.help[0].upper()}{setting.help[1:]}."
    if setting.kind.is_list:
        text = f"{text[:-1]}; may be repeated."
    shown = "" if setting.default in (False, 0) else setting.default_text
    return f"{text} [{shown}]" if shown else text


Flags = Mapping[str, Any]
"""What a command is given of the settings: by field, None where a flag was not given."""
