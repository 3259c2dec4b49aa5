"""The options that are made from the settings' declarations."""

from __future__ import annotations

from typing import Any

import pytest

from vllama import config
from vllama.cli.options import Flags, with_settings
from vllama.cli.parser import root

WITH_FLAG = [setting for setting in config.SETTINGS if setting.flag]


def options_of(command: str) -> dict[str, Any]:
    """Return a command's options by the name of their parameter."""
    parsed = root().get_command(None, command)
    return {each.name: each for each in parsed.params if each.param_type_name == "option"}


@pytest.mark.parametrize("setting", WITH_FLAG, ids=lambda setting: setting.key)
def test_serve_has_an_option_for_every_flag(setting: config.Setting) -> None:
    option = options_of("serve")[setting.field]
    assert setting.flag in option.opts
    assert option.multiple is setting.kind.is_list
    assert option.is_flag is setting.is_switch
    assert option.default is None  # else it would win over variables and file


def test_other_commands_take_some() -> None:
    taken = {"engine", "context_length", "gpu_layers", "inspect", "strict"}
    assert options_of("plan").keys() & {each.field for each in config.SETTINGS} == taken


def test_the_command_gets_the_flags_that_were_given() -> None:
    seen: list[tuple[str, Flags]] = []

    @with_settings("engine", "strict", "upstreams")
    def command(flags: Flags, model: str) -> int:
        """Do something."""
        seen.append((model, flags))
        return 3

    assert command(model="m", engine="x", strict=False, upstreams=["a", "b"]) == 3  # type: ignore[call-arg]
    assert seen == [("m", {"engine": "x", "strict": None, "upstreams": ["a", "b"]})]
    assert command.__doc__ == "Do something."
