"""The handlers of settings: which hold, and changes of those that may be changed over HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct

from vllama.base import executors
from vllama.base.errors import BadRequest, ConfigError, Forbidden
from vllama.base.meaning import says
from vllama.base.spelling import suggest
from vllama.chat.bodies import decode_as
from vllama.config import SETTINGS, Config, find_config_file, removed
from vllama.config.edit import NEW_FILE, read_text, save_text, set_values
from vllama.config.report import Settings
from vllama.net.http.request import Request
from vllama.routes.route import RouteKind, server_route

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

MAX_VALUE = 200  # characters
REMOTE = {setting.key: setting for setting in SETTINGS if setting.remote}


class CannotWrite(ConfigError):
    """Something else decides about the value, or the file cannot be written."""

    status = 409


async def list_settings(gateway: Gateway, request: Request) -> None:
    """List all settings with their values, sources and descriptions, without secrets."""
    request.json(200, gateway.in_use.now.report)


async def change_settings(gateway: Gateway, request: Request) -> None:
    """Change settings in the config file, and apply them.

    Only settings marked `changeable` can be changed. Null removes a setting from the file. If one
    value is rejected, nothing is changed. Comments in the file are preserved.
    """
    form = dict[str, dict[str, bool | int | float | str | None]]
    values = decode_as(await request.body(), form).get("settings")
    if values is None:
        raise BadRequest("cannot change settings: the body has none", hint='send {"settings": …}')
    old = gateway.in_use.config
    for key, value in values.items():
        check_value(key, value, old, gateway.facts.found.engines)
    path = Path(os.path.realpath(old.config_file or find_config_file(gateway.environ)))  # noqa: ASYNC240
    try:
        undo = await executors.disk.run(write_values, path, values, gateway.environ)
        await gateway.reload()
        if refused := gateway.in_use.now.refused:
            await executors.disk.run(undo)
            await gateway.reload()
            raise BadRequest(f"cannot change settings: {refused}")
    except OSError as error:
        raise CannotWrite(f"cannot write the config file: {error.strerror}") from None
    request.json(200, gateway.in_use.now.report)


def check_value(key: str, value: Any, config: Config, engines: Mapping[str, Any]) -> None:
    """Raise the error of changing a setting to a value over HTTP."""
    setting, known = REMOTE.get(key), [one.key for one in SETTINGS]
    if key not in known:
        if advice := removed.SETTINGS.get(key):
            raise BadRequest(f"cannot set '{key}': it was removed", hint=advice)
        raise BadRequest(f"cannot set '{key}': not a setting", hint=suggest(key, known))
    if setting is None:
        raise Forbidden(f"cannot set '{key}' over HTTP", hint="on its machine: vllama config edit")
    source = config.sources.get(setting.field)
    if source and source != str(config.config_file):
        raise CannotWrite(f"cannot set '{key}': it is set by {source}, which overrides the file")
    text = str(value)[:MAX_VALUE]
    try:
        if value is not None:
            setting.kind.read(value if len(str(value)) <= MAX_VALUE else "…")
            if key == "engine" and text not in ("auto", *engines):
                raise ValueError(f"must be one of auto, {', '.join(engines)}")
    except ValueError as error:
        hint = f"use the form {setting.example}"
        raise BadRequest(f'cannot set {key} to "{text}": {error}', hint=hint) from None


def write_values(
    path: Path, values: Mapping[str, object], environ: Mapping[str, str]
) -> Callable[[], None]:
    """Write values into the config file, made if there is none; return what undoes it."""
    before = read_text(path)
    after = set_values(NEW_FILE if before is None else before, values)
    save_text(path, before, after, environ)

    def undo() -> None:
        if before is None:
            path.unlink(missing_ok=True)
        else:
            save_text(path, after, before, environ)

    return undo


# generators of clients cannot read the schemas of some settings; `GET /api/config` has them
_VALUE = {"type": ["string", "integer", "number", "boolean", "null"]}
_VALUES = {key: _VALUE | {"description": one.help} for key, one in REMOTE.items()}


class SettingsBody(Struct):
    """Changed settings."""

    settings: Annotated[
        dict[str, Any],
        says(
            "values by setting; null removes a setting from the file",
            properties=_VALUES,
        ),
    ]


ROUTES = (
    server_route("GET /api/config", list_settings, tells=True, answer=Settings),
    server_route(
        "PATCH /api/config",
        change_settings,
        RouteKind.SETS,
        body=SettingsBody,
        answer=Settings,
        errors=(409,),
    ),
)
