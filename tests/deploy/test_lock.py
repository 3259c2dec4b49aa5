"""uv.lock: it is made of pyproject.toml as that is, and every file in it has a hash."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
NAME = "vllama-serve"
LOCK = tomllib.loads((ROOT / "uv.lock").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

Wanted = set[tuple[str, SpecifierSet]]


def written(texts: list[str]) -> Wanted:
    found = [Requirement(text) for text in texts if not text.startswith(NAME)]
    return {(canonicalize_name(item.name), item.specifier) for item in found}


def locked(rows: list[dict[str, str]]) -> Wanted:
    return {(row["name"], SpecifierSet(row.get("specifier", ""))) for row in rows}


def test_it_is_made_of_what_the_project_wants() -> None:
    (own,) = (package for package in LOCK["package"] if package["name"] == NAME)
    project, metadata = PROJECT["project"], own["metadata"]
    extras = [item for texts in project["optional-dependencies"].values() for item in texts]
    assert locked(metadata["requires-dist"]) == written(project["dependencies"] + extras), (
        "run: make lock"
    )
    for group, texts in PROJECT["dependency-groups"].items():
        assert locked(metadata["requires-dev"][group]) == written(texts), "run: make lock"


def test_all_files_have_hashes_and_come_from_the_public_index() -> None:
    for package in LOCK["package"]:
        if package["name"] != NAME:
            assert package["source"] == {"registry": "https://pypi.org/simple"}
            files = [*package.get("wheels", ()), *filter(None, [package.get("sdist")])]
            assert files and all(file["hash"].startswith("sha256:") for file in files)


FLOORS = {  # the first versions without the holes of their advisories
    "jinja2": ("3.1.5", "3.1.6"),  # a way out of the sandbox
    "urllib3": ("2.5.0", "2.6.0"),  # compressed bodies without limit
    "filelock": ("3.20.0", "3.20.1"),  # a race with links
    "httptools": ("0.8.0", "0.9.0"),  # the parser whose forms test_http_forms.py tests
}


def test_versions_with_known_holes_are_not_installed() -> None:
    wanted = {item.name: item for item in map(Requirement, PROJECT["project"]["dependencies"])}
    for name, (bad, good) in FLOORS.items():
        assert bad not in wanted[name].specifier and good in wanted[name].specifier
