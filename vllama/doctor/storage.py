"""Checks of the port, the folders and disks, the models on them, and what a dead server left."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.accounts.usage.store import (
    ASIDE,
    FAILURES,
    FILE_NAME,
    QUARANTINE_NAME,
    UsageStore,
    is_damage,
)
from vllama.base.errors import VllamaError
from vllama.base.units import format_bytes_decimal as size
from vllama.doctor.check import Finding, failure, ok, skip, warning
from vllama.supervise.leftovers import list_leftovers

if TYPE_CHECKING:
    from vllama.models.library import Library


LOW_BYTES = 10_000_000_000
NONE_LEFT_BYTES = 1_000_000_000
OWNER_LIMIT_S = 5.0


def port(host: str, number: int) -> Iterator[Finding]:
    """Tell whether the port is free, and else who has it."""
    if number == 0:
        yield skip("any free port is used")
        return
    problem = _problem(host, number)
    if problem is None:
        yield ok(f"port {number} is free")
        return
    if problem.errno != errno.EADDRINUSE:
        yield failure(
            f"nothing can listen on {host}:{number}: {problem.strerror}",
            "correct OLLAMA_HOST or VLLAMA_HOST: it must be an address of this machine",
        )
        return
    from vllama.net.http.listener import find_port_owner

    who, shown = find_port_owner(host, number, OWNER_LIMIT_S)
    if who == "another vllama":
        yield ok(f"a vllama server{shown} responds on port {number}")
    elif who == "an Ollama server":
        yield failure(
            f"port {number} is used by an Ollama server{shown}",
            "stop it (systemctl stop ollama, or quit its app), or use another port with --port",
        )
    else:
        yield failure(
            f"port {number} is used by another program{shown}",
            "stop it, or use another port with --port or OLLAMA_HOST",
        )


def _problem(host: str, number: int) -> OSError | None:
    """Return the reason why a server cannot listen there."""
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host or None, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        return error
    return None


def leftovers(run_dir: Path) -> Iterator[Finding]:
    """Tell which engines of a dead server still run."""
    found = list_leftovers(run_dir)
    if not found:
        yield ok("no orphaned engines")
    for name, pids in found:
        numbers = ", ".join(map(str, pids))
        yield warning(
            f"the engine of {name} outlived its server (pid {numbers})",
            "start the server, which stops orphaned engines (vllama serve)",
        )


def find_unused(folders: Mapping[Path, str]) -> Iterator[Finding]:
    """Tell which folders (path → content) of removed features are left, with their sizes."""
    here = [folder for folder in folders if folder.is_dir()]
    if not here:
        yield ok("no files from removed features")
    for folder in here:
        stored = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
        yield warning(
            f"{folders[folder]} of version 0.1 are no longer used: '{folder}' ({size(stored)})",
            "remove the folder if you do not need it",
        )


def disks(folders: Mapping[str, Path]) -> Iterator[Finding]:
    """Tell the free space of each disk that one of `folders` (what it is for → where) lies on."""
    shared: dict[int, list[str]] = {}
    places: dict[int, Path] = {}
    for name, folder in folders.items():
        home = existing_part(folder)
        device = home.stat().st_dev
        shared.setdefault(device, []).append(name)
        places.setdefault(device, home)
    for device, home in places.items():
        usage = shutil.disk_usage(home)
        what = ", ".join(dict.fromkeys(shared[device]))
        text = f"{size(usage.free)} of {size(usage.total)} is free for {what} ('{home}')"
        if usage.free < NONE_LEFT_BYTES:
            yield failure(text, "free some space: vllama list, vllama rm MODEL")
        elif usage.free < LOW_BYTES:
            yield warning(text, "free some space: vllama list, vllama rm MODEL")
        else:
            yield ok(text)


def writable(folders: Mapping[str, Path]) -> Iterator[Finding]:
    """Tell which folders of ours cannot be written; asks by writing, as rights alone can lie."""
    bad = False
    for name, folder in folders.items():
        home = existing_part(folder)
        try:
            try_to_write(home)
        except OSError as error:
            bad = True
            yield failure(
                f"the folder of {name} is not writable: {error.strerror} ('{home}')",
                "free some space, correct its owner or permissions, or use another folder",
            )
    if not bad:
        yield ok(f"{', '.join(folders)} are writable")


def try_to_write(folder: Path) -> None:
    """Write a little, and remove it. Raises OSError, also for a full disk."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(4096))


def existing_part(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that there is."""
    absolute = Path(os.path.abspath(folder))  # noqa: PTH100 - without following links
    return next(path for path in (absolute, *absolute.parents) if path.exists())


def usage(folder: Path) -> Iterator[Finding]:
    """Tell whether what is used can be recorded, and what was put aside because it could not be."""
    if not (folder / FILE_NAME).exists() and (folder.is_dir() or not folder.exists()):
        yield skip("nothing has been recorded yet")
        return
    try:
        try_to_write(folder)
        store = UsageStore(folder)
        try:
            store.check()
        finally:
            store.close()
        yield ok(f"usage can be recorded in '{folder}'")
    except FAILURES as error:
        hint = "free some space, or correct the owner or permissions of the folder"
        if is_damage(error):
            hint = "start the server, which renames the file and creates a new one"
        yield failure(f"usage cannot be recorded in '{folder}': {error}", hint)
    aside = [*folder.glob(f"{FILE_NAME}{ASIDE}*Z"), *folder.glob(QUARANTINE_NAME)]
    for path in sorted(aside):
        yield warning(f"unreadable usage was moved to '{path}'", "check it, or remove it")


SHOWN = 5


def models(library: Library) -> Iterator[Finding]:
    """Read the header of every model."""
    here = library.list()
    bad: list[tuple[str, str]] = []
    for bundle in here:
        try:
            library.info(bundle)
        except VllamaError as error:
            bad.append((bundle.name, error.message))
    skipped = [(each.name, each.reason) for each in library.list_skipped()]
    yield ok(f"usable models: {len(here) - len(bad)}")
    for name, reason in [*bad, *skipped][:SHOWN]:
        yield warning(f"{name}: {reason}", f"remove it, and pull it again: vllama rm '{name}'")
    if len(bad) + len(skipped) > SHOWN:
        yield warning(f"and {len(bad) + len(skipped) - SHOWN} more")
