"""`vllama keys`: who may use the server, for what, and how much."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllama.cli.complete import complete_key, complete_words
from vllama.cli.options import AsJson, argument

if TYPE_CHECKING:
    from vllama.config import Config
    from vllama.keys.key import Key

EXAMPLES = """\
\b
Examples:
  vllama keys add alice
  vllama keys add ci --models "qwen3*" --rate 60/min --tokens 1M/day --concurrent 4
  vllama keys add grafana --scope read
  vllama keys add guest --expires 30d
  vllama keys change ci --rate 120/min --tokens none
  vllama keys rotate ci              a new secret for the same key
  vllama keys revoke guest
  vllama keys rm guest               the revoked key leaves the list; its usage stays
  vllama keys list

Running servers with the same data folder accept every change at once. With the first key, a
server refuses all requests without one. See docs/guide/keys.md.
"""
ACTIONS = ("list", "add", "change", "rotate", "revoke", "rm")
DONE = {"change": "changed", "revoke": "revoked", "rm": "removed"}
NONE = "none"
COLUMNS = (
    "NAME", "KEY", "SCOPE", "MODELS", "RATE", "TOKENS", "CONCURRENT", "PRIORITY", "EXPIRES",
)  # fmt: skip
OPTIONAL_COLUMNS = ("PRIORITY", "CONCURRENT", "MODELS", "KEY", "SCOPE")


def keys(
    action: Annotated[
        str,
        argument("ACTION", "list, add, change, rotate, revoke or rm.", complete_words(*ACTIONS)),
    ] = "list",
    name: Annotated[str | None, argument("NAME", "The key's name.", complete_key)] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="SCOPES", help="infer, read, admin; several by commas."),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--models", metavar="GLOB", help="Models it may use, such as 'qwen3*'."),
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="N/PERIOD", help="Requests, such as 60/min.")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="N/day", help="Tokens, such as 1M/day.")
    ] = None,
    concurrent: Annotated[
        str | None, typer.Option("--concurrent", metavar="N", help="Requests at once.")
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option("--priority", metavar="N", help="Turns in a queue for each of others'."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="AGE", help="How long it holds, such as 30d.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Manage the keys of the server: list, add, change, rotate, revoke, remove."""
    from vllama.cli.context import load_settings
    from vllama.errors import ConfigError

    if action not in ACTIONS:
        raise ConfigError(
            f"cannot do '{action}' with keys", hint=f"choose one of {', '.join(ACTIONS)}"
        )
    settings = load_settings()
    options = {
        "scope": scope, "models": models, "rate": rate, "tokens": tokens, "concurrent": concurrent,
        "priority": priority, "expires": expires,
    }  # fmt: skip
    given = {option: value for option, value in options.items() if value}
    if given and action not in ("add", "change"):
        raise ConfigError(f"cannot {action} a key with --{next(iter(given))}")
    if action == "list":
        show_keys(settings, name or "", as_json=as_json)
        return
    if name is None:
        hint = "vllama keys add NAME" if action == "add" else "vllama keys list"
        raise ConfigError(f"cannot {action} a key: none is named", hint=hint)
    change_file(settings, action, name, given, as_json=as_json)


def change_file(
    settings: Config, action: str, name: str, given: dict[str, Any], *, as_json: bool
) -> None:
    """Change the file of keys, and show what comes of it."""
    from vllama.cli.output import say, say_aside, show_json
    from vllama.config import keys_file
    from vllama.keys import changes
    from vllama.keys.key import make_secret
    from vllama.keys.store import change_keys

    secret = make_secret() if action in ("add", "rotate") else ""
    now_s, fields = time.time(), read_fields(given)
    file = keys_file(settings.data_dir)
    is_first = not file.exists() and not settings.api_key

    def change(known: dict[str, Key]) -> Key:
        match action:
            case "add":
                return changes.add_key(known, name, secret, fields, now_s)
            case "rotate":
                return changes.rotate_key(known, name, secret)
            case "revoke":
                return changes.revoke_key(known, name, now_s)
            case "rm":
                return changes.remove_key(known, name)
        return changes.change_key(known, name, fields)

    key = change_keys(file, change)
    if as_json:
        show_json(describe_key(key) | ({"key": secret} if secret else {}))
    elif secret:
        say(secret)
        say_aside(f"this is the key of '{name}'; it is not shown again")
    else:
        say(f"{DONE[action]} key '{name}'")
    if is_first:
        say_aside("the server refuses requests without a key from now on, also those of this user;")
        say_aside("for the commands: export OLLAMA_API_KEY=KEY, of a key with --scope admin")
    if secret:
        warn_of_other_server(settings, secret)


def read_fields(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a key that options set; `none` removes a limit. Raises ConfigError."""
    from vllama.errors import ConfigError
    from vllama.keys import amounts, changes

    readers = {
        "scope": ("scopes", changes.read_scopes),
        "models": ("models", changes.read_patterns),
        "rate": ("rate", amounts.parse_rate),
        "tokens": ("tokens", amounts.parse_daily_tokens),
        "concurrent": ("concurrent", amounts.parse_count),
        "priority": ("priority", changes.read_priority),
        "expires": ("expires_s", lambda text: time.time() + amounts.parse_age(text)),
    }
    fields: dict[str, Any] = {}
    for option, value in given.items():
        field, read = readers[option]
        if value in (NONE, [NONE]) and option not in ("scope", "priority"):
            fields[field] = () if option == "models" else None
            continue
        try:
            fields[field] = read(value)
        except ValueError as error:
            raise ConfigError(f"cannot use --{option}: {error}") from None
    return fields


def warn_of_other_server(settings: Config, secret: str) -> None:
    """Warn if a server runs at the usual address and does not know the new key."""
    from vllama.cli.client import Client
    from vllama.cli.output import show_warning
    from vllama.errors import ServerUnreachable, VllamaError

    try:
        with Client(settings.url, key=secret) as client:
            client.get("/api/version")
    except ServerUnreachable:
        return
    except VllamaError as error:
        show_warning(
            f"the server at {settings.url} does not accept the key: {error.message}; it may have "
            f"another data folder than '{settings.data_dir}': set VLLAMA_DATA_DIR to that of the "
            "server"
        )


def show_keys(settings: Config, prefix: str, *, as_json: bool) -> None:
    """Print the keys whose names begin with `prefix`."""
    from vllama.cli.output import say_aside, show_json, show_table
    from vllama.config import keys_file
    from vllama.keys.store import read_keys

    file = keys_file(settings.data_dir)
    found = [key for key in read_keys(file) if key.name.startswith(prefix)]
    if as_json:
        show_json({"file": str(file), "keys": [describe_key(key) for key in found]})
        return
    show_table(COLUMNS, [list_cells(key) for key in found], optional=OPTIONAL_COLUMNS)
    if not found:
        say_aside(f"there are no keys in '{file}'; to add one: vllama keys add NAME")


def list_cells(key: Key) -> tuple[str, ...]:
    """Return the cells of one key."""
    from vllama.keys.amounts import format_count
    from vllama.units import format_until

    if key.revoked_s is not None:
        end = "Revoked"
    elif key.expires_s is None:
        end = "Never"
    else:
        left_s = key.expires_s - time.time()
        end = "Expired" if left_s <= 0 else format_until(left_s)
    return (
        key.name,
        key.shown,
        ",".join(key.scopes),
        ",".join(key.models) or "all",
        str(key.rate or "-"),
        f"{format_count(key.tokens)}/day" if key.tokens else "-",
        str(key.concurrent or "-"),
        str(key.priority),
        end,
    )


def describe_key(key: Key) -> dict[str, Any]:
    """Return a key as JSON shows it, without what identifies its secret."""
    from vllama.units import rfc3339_local

    def show(time_s: float | None) -> str | None:
        return None if time_s is None else rfc3339_local(time_s)

    return {
        "name": key.name,
        "shown": key.shown,
        "scopes": [str(scope) for scope in key.scopes],
        "models": list(key.models),
        "rate": str(key.rate) if key.rate else None,
        "tokens_per_day": key.tokens,
        "concurrent": key.concurrent,
        "priority": key.priority,
        "created_at": show(key.created_s),
        "expires_at": show(key.expires_s),
        "revoked_at": show(key.revoked_s),
    }
