"""A start reads its arguments without click: as click does, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama import config
from vllama.cli.parser import root
from vllama.cli.serving import plain_flags

FLAGS = [row.flag for row in config.SETTINGS if row.flag]
VALUES = ["x", "8080", "", "-1", "a=b", "--port", "http://h:1", "-m", "0"]


def by_click(args: list[str]) -> tuple[dict[str, Any], Path | None, bool]:
    command = root().get_command(click.Context(root()), "serve")
    assert command
    with command.make_context("serve", list(args)) as context:
        flags = dict(context.params)
    file, yes = flags.pop("config_file"), flags.pop("yes")
    return {name: value for name, value in flags.items() if value not in (None, ())}, file, yes


def test_click_and_the_table_know_the_same_flags() -> None:
    command = root().get_command(click.Context(root()), "serve")
    assert command
    known = {
        (each.name, each.multiple, each.is_flag)
        for each in command.params
        if isinstance(each, click.Option)
    } - {("config_file", False, False), ("yes", False, True)}
    assert known == {(row.field, row.many, row.is_switch) for row in config.SETTINGS if row.flag}


@given(
    st.lists(
        st.one_of(
            st.sampled_from([*FLAGS, "-m", "-y", "--yes", "--config", "--", "stray", "-mx", "-ym"]),
            st.sampled_from(VALUES),
            st.builds(
                "{}={}".format, st.sampled_from([*FLAGS, "--config"]), st.sampled_from(VALUES)
            ),
            st.builds(lambda flag, value: f"{flag} {value}", st.sampled_from(FLAGS), st.just("v")),
        ),
        max_size=6,
    )
)
def test_what_is_read_is_read_as_click_does(words: list[str]) -> None:
    args = [part for word in words for part in word.split(" ")]
    plain = plain_flags(args)
    if plain is not None:
        assert plain == by_click(args)


@pytest.mark.parametrize(
    ("args", "flags", "file", "yes"),
    [
        ([], {}, None, False),
        (["-m", "a", "--port", "1", "-y"], {"model": "a", "port": "1"}, None, True),
        (["--upstream", "a", "--upstream=b"], {"upstreams": ("a", "b")}, None, False),
        (["--debug", "--config=c.toml"], {"debug": True}, Path("c.toml"), False),
    ],
)
def test_usual_starts_do_without_click(
    args: list[str], flags: dict[str, Any], file: Path | None, yes: bool
) -> None:
    assert plain_flags(args) == (flags, file, yes)


@pytest.mark.parametrize(
    "args", [["model"], ["--prot", "1"], ["--port"], ["--debug=true"], ["-mx"], ["--"], ["-x"]]
)
def test_the_rest_is_for_click(args: list[str]) -> None:
    assert plain_flags(args) is None
