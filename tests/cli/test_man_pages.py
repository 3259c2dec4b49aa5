"""The man pages that a wheel brings."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from man_pages import write_pages

from tests.lacking import lacking
from vllama.cli.command_index import GROUPS
from vllama.config import SETTINGS


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return write_pages("1.2.3")


def test_every_command_and_every_variable_has_its_place(pages: dict[str, str]) -> None:
    names = {name for rows in GROUPS.values() for name in rows}
    assert set(pages) == {"vllama", *(f"vllama-{name}" for name in names)}
    overview = pages["vllama"].replace("\\-", "-")
    assert all(f"vllama-{name}(1)" in overview for name in names)
    assert all(setting.env in overview for setting in SETTINGS)


@pytest.mark.slow
def test_troff_has_nothing_to_complain_about(pages: dict[str, str], tmp_path: Path) -> None:
    for name, text in pages.items():
        file = tmp_path / f"{name}.1"
        file.write_text(text)
        try:
            shown = subprocess.run(
                ["man", "--warnings", "--local-file", file],
                env={"PATH": "/usr/bin:/bin", "MANWIDTH": "80", "LANG": "C.UTF-8"},
                capture_output=True,
                text=True,
                check=True,
            )
        except FileNotFoundError:
            lacking("man is missing")
        assert not shown.stderr
        assert name.replace("-", " ") in shown.stdout or "VLLAMA(1)" in shown.stdout
