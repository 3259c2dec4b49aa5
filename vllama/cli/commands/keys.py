"""`vllama keys`: who may use the server, for what, and how much."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from vllama.base.errors import ServerUnreachable, VllamaError
from vllama.base.units import format_until
from vllama.cli.context import load_settings
from vllama.cli.options import AsJson, Flags, argument, complete_key, option, with_options
from vllama.cli.output import can_ask, confirm, say, say_aside, show_json, show_table, show_warning
from vllama.config import Config, keys_file

if TYPE_CHECKING:
    from vllama.accounts.keys.key import ApiKey

EXAMPLES = """\
\b
Examples:
  vllama keys add alice
  vllama keys add ci --models "qwen3*" --rate 60/min --tokens 1M/day --concurrent 4
  vllama keys add dev --model-tokens "llama3.3:70b=100k/day"
  vllama keys add bob --group research --budget 20/month
  vllama keys add grafana --scope read
  vllama keys add guest --expires 30d
  vllama keys change ci --rate 120/min --tokens none
  vllama keys rotate ci              a new secret for the same key
  vllama keys rotate ci --overlap 24h     the old secret works for another day
  vllama keys revoke guest
  vllama keys remove guest           remove the revoked key, but not its usage
  vllama keys list
  vllama keys open                   accept requests without a key again

Running servers with the same data folder apply changes at once. After the first key, a
server rejects all requests without one. See docs/guide/keys.md.
"""
ADMIN = "admin"
DONE = {"change": "changed", "revoke": "revoked", "remove": "removed"}
COLUMNS = (
    "NAME", "KEY", "SCOPE", "MODELS", "RATE", "TOKENS", "CONCURRENT", "BUDGET", "GROUP", "PRIORITY",
    "EXPIRES",
)  # fmt: skip
OPTIONAL_COLUMNS = ("PRIORITY", "CONCURRENT", "BUDGET", "MODELS", "KEY", "SCOPE")


Many: TypeAlias = list[str] | None
Name: TypeAlias = Annotated[str, argument("NAME", "Name of the key.", complete_key)]


def list_keys(
    prefix: Annotated[str, argument("PREFIX", "Prefix of the key names.", complete_key)] = "",
    as_json: AsJson = False,
) -> None:
    """List the keys."""
    show_keys(load_settings(), prefix, as_json=as_json)


with_limits = with_options(
    scope=Annotated[Many, option("--scope SCOPES", "Comma-separated: infer, read, admin, engine.")],
    models=Annotated[Many, option("--models GLOB", "Models, such as 'qwen3*'.")],
    rate=Annotated[str | None, option("--rate N/PERIOD", "Request limit, such as 60/min.")],
    tokens=Annotated[str | None, option("--tokens N/PERIOD", "Token limit, such as 1M/day.")],
    model_rate=Annotated[Many, option("--model-rate MODEL=N/PERIOD", "Request limits, by model.")],
    model_tokens=Annotated[
        Many, option("--model-tokens MODEL=N/PERIOD", "Token limits, by model.")
    ],
    concurrent=Annotated[str | None, option("--concurrent N", "Maximum parallel requests.")],
    budget=Annotated[str | None, option("--budget N/PERIOD", "Spending limit, such as 50/month.")],
    trusts_user=Annotated[
        str | None, option("--trusts-user yes|no", "Trust the user named in a header.")
    ],
    group=Annotated[str | None, option("--group NAME", "Group with shared limits.")],
    priority=Annotated[str | None, option("--priority N", "Queue weight, 1 to 100.")],
    expires=Annotated[str | None, option("--expires AGE", "Lifetime, such as 30d.")],
)


@with_limits
def add(name: Name, flags: Flags, as_json: AsJson = False) -> None:
    """Add a key, and print its secret."""
    change_file(load_settings(), "add", name, flags, as_json=as_json)


@with_limits
def change(name: Name, flags: Flags, as_json: AsJson = False) -> None:
    """Change the scopes or limits of a key."""
    change_file(load_settings(), "change", name, flags, as_json=as_json)


def rotate(
    name: Name,
    overlap: Annotated[
        str | None, option("--overlap AGE", "Time for which the old secret stays valid.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rotate the secret of a key."""
    change_file(load_settings(), "rotate", name, {"overlap": overlap}, as_json=as_json)


def revoke(name: Name, as_json: AsJson = False) -> None:
    """Revoke a key permanently; it stays in the list."""
    change_file(load_settings(), "revoke", name, {}, as_json=as_json)


def remove(name: Name, as_json: AsJson = False) -> None:
    """Remove a revoked key from the list; its usage is kept."""
    change_file(load_settings(), "remove", name, {}, as_json=as_json)


def open_server() -> None:
    """Accept requests without a key again."""
    from vllama.accounts.keys.store import change_keys

    change_keys(keys_file(load_settings().data_dir), lambda _: None, opens=True)
    say("Requests without a key are accepted again.")


ACTIONS = {
    "list": list_keys, "add": add, "change": change, "rotate": rotate, "revoke": revoke,
    "remove": remove, "open": open_server,
}  # fmt: skip


def change_file(settings: Config, action: str, name: str, given: Flags, *, as_json: bool) -> None:
    """Change the file of keys, and show what comes of it."""
    from msgspec import to_builtins

    from vllama.accounts.keys import store
    from vllama.accounts.keys.key import make_secret
    from vllama.accounts.keys.store import change_keys, describe_key, read_fields
    from vllama.scheduler.slot_cache.store import remove_where

    secret = make_secret() if action in ("add", "rotate") else ""
    now_s = time.time()
    fields = read_fields({flag: value for flag, value in given.items() if value}, "--")
    overlap_s = fields.pop("overlap_s", 0.0)
    file = keys_file(settings.data_dir)
    if action == "add":
        offer_admin(settings, fields)
    is_first = action == "add" and not settings.wants_keys

    def change(known: dict[str, ApiKey]) -> ApiKey:
        match action:
            case "add":
                return store.add_key(known, name, secret, fields, now_s)
            case "rotate":
                return store.rotate_key(known, name, secret, overlap_s=overlap_s, now_s=now_s)
            case "revoke":
                return store.revoke_key(known, name, now_s)
            case "remove":
                return store.remove_key(known, name)
        return store.change_key(known, name, fields)

    key = change_keys(file, change, action)
    if fields.get("group") and fields["group"] not in {each.name for each in settings.groups}:
        show_warning(f"the config has no [groups.{key.group}]: the group has no limits")
    if as_json:
        show_json(to_builtins(describe_key(key)) | ({"key": secret} if secret else {}))
    elif secret:
        say_aside(f"Key for '{name}' (shown only once):")
        say(secret)
    else:
        say(f"{DONE[action]} key '{name}'")
    if is_first:
        say_aside("The server now rejects requests without a key, including your own.")
        say_aside("For commands: export OLLAMA_API_KEY=KEY (a key with --scope admin)")
    if secret:
        warn_of_other_server(settings, secret)
    if action in ("revoke", "remove"):
        remove_where(settings.slot_dir, lambda each: each.owner == key.identity)
        show_way_out(settings)


def offer_admin(settings: Config, fields: dict[str, Any]) -> None:
    """Before the first keys without an admin's: warn, and offer to add one of an admin."""
    from vllama.accounts.keys.key import Scope
    from vllama.accounts.keys.store import read_keys

    known, now_s = read_keys(keys_file(settings.data_dir)), time.time()
    has_admin = any(key.allows(Scope.ADMIN) and not key.find_fault(now_s) for key in known)
    if has_admin or settings.api_key or Scope.ADMIN in fields.get("scopes", ()):
        return
    show_warning("no admin key exists, so you cannot pull or remove models either")
    is_free = ADMIN not in [key.name for key in known]
    if is_free and can_ask() and confirm(f"Add the admin key '{ADMIN}' first?"):
        change_file(settings, "add", ADMIN, {"scope": [ADMIN]}, as_json=False)


def show_way_out(settings: Config) -> None:
    """Say how to open a server that wants keys and has none."""
    from vllama.accounts.keys.store import read_file

    content = read_file(keys_file(settings.data_dir))
    if content.open or settings.api_key or settings.require_keys:
        return
    if all(key.find_fault(time.time()) for key in content.keys):
        why = "All keys are revoked or expired" if content.keys else "No key is left"
        say_aside(f"{why}, so every request is rejected.")
        say_aside("To accept requests without a key: vllama keys open")


def warn_of_other_server(settings: Config, secret: str) -> None:
    """Warn if a server runs at the usual address and does not know the new key."""
    from vllama.cli.client import Client

    try:
        with Client(settings.url, key=secret) as client:
            client.get("/api/version")
    except ServerUnreachable:
        return
    except VllamaError as error:
        show_warning(
            f"the server at {settings.url} does not accept the key: {error.message}; it may "
            f"use a data folder other than '{settings.data_dir}': set VLLAMA_DATA_DIR to its folder"
        )


def show_keys(settings: Config, prefix: str, *, as_json: bool) -> None:
    """Print the keys whose names begin with `prefix`."""
    from vllama.accounts.keys.store import describe_key, read_keys

    file = keys_file(settings.data_dir)
    found = [key for key in read_keys(file) if key.name.startswith(prefix)]
    if as_json:
        show_json({"file": str(file), "keys": [describe_key(key) for key in found]})
        return
    show_table(COLUMNS, [list_cells(key) for key in found], optional=OPTIONAL_COLUMNS)
    if not found:
        say_aside(f"no keys in '{file}'; to add one: vllama keys add NAME")
    show_way_out(settings)


def list_cells(key: ApiKey) -> tuple[str, ...]:
    """Return the cells of one key."""
    from vllama.accounts.keys.store import describe_key

    row = describe_key(key)
    if key.revoked_s is not None:
        end = "Revoked"
    elif key.expires_s is None:
        end = "Never"
    else:
        left_s = key.expires_s - time.time()
        end = "Expired" if left_s <= 0 else format_until(left_s)
    shown = key.shown
    if (old := key.replaced) and old.works(time.time()):
        shown += f"; {old.shown} until {format_until(old.until_s - time.time())}"
    return (
        key.name,
        shown,
        ",".join((*key.scopes, *["trusts-user"] * key.trusts_user)),
        ",".join(key.models) or "all",
        ", ".join(filter(None, (row.rate, *row.model_rate))) or "-",
        ", ".join(filter(None, (str(key.token_limit or ""), *row.model_tokens))) or "-",
        str(key.concurrent or "-"),
        str(key.budget or "-"),
        key.group or "-",
        str(key.priority),
        end,
    )
