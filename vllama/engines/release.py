"""Builds that a project releases itself: found, downloaded, verified, unpacked, tried.

A release is described as GitHub's API does it: `GET {releases}/tags/{tag}` or `{releases}/latest`
names its assets with `name`, `size`, `digest` ("sha256:…") and `browser_download_url`.
The variable VLLAMA_RELEASES_URL replaces the address of the releases: a mirror answers in the same
way, and may name its archives relative to that answer.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import signal
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import urljoin

import msgspec

from vllama.base.errors import DiskFull, EnvironmentFailed, SourceError
from vllama.engines.recipe import Archive
from vllama.machine.probe import run_command
from vllama.net.web.bodies import GZIP, find_place, iter_raw, read_body
from vllama.net.web.connections import Connections, RequestFailed, StreamedResponse

LATEST = "latest"
PARTIAL = ".part"
TRIAL_S = 30.0
_CONNECT_S, _SILENCE_S = 10.0, 20.0
_MAX_DESCRIPTION = 8 * 1024 * 1024
_MAX_UNPACKED, _MAX_FILES = 4 * 1024**3, 10_000
_TRIES = 4
_PAUSE_S = 0.1
"""Before the second try; it doubles with each."""
_TIME_DIGITS = 11  # of a Unix time
_TAG = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")

Tell = Callable[[str, int | None, int | None], object]
"""Told of progress: what is done, the bytes so far and in all, None where there are none."""


class Asset(msgspec.Struct):
    """A file of a release."""

    name: str
    browser_download_url: str
    size: Annotated[int, msgspec.Meta(ge=0)] = 0
    digest: str | None = None


class Release(msgspec.Struct):
    """A release; `tag_name` such as "b11434"."""

    tag_name: str
    assets: list[Asset]


def install_build(
    archive: Archive,
    folder: Path,
    *,
    tell: Tell,
    connections: Connections,
    cancelled: threading.Event,
) -> tuple[str, Path]:
    """Download a build and unpack it below `folder`; return its tag, and the programs' folder.

    Its tag may be "latest". A build that is there already is used again. A download that is
    broken off resumes; what is there in the end is whole and was tried. Blocking. Raises
    EnvironmentFailed with the cause, and DiskFull.
    """
    version = archive.tag
    name = archive.name.format(tag=version)
    with _mapped_errors(archive.project, folder):
        if (found := _find_programs(folder / _stem(name), archive.program)) is not None:
            return version, found
        release = _describe_release(connections, archive.releases, version)
        name = archive.name.format(tag=release.tag_name)
        place = folder / _stem(name)
        if (found := _find_programs(place, archive.program)) is not None:
            return release.tag_name, found
        asset = _choose_asset(release, name, archive.digests.get(name))
        file = folder / f"{name}{PARTIAL}"
        _download(connections, asset, file, tell, cancelled)
        tell("unpacking", None, None)
        new = folder / f"tmp-{_stem(name)}"
        shutil.rmtree(new, ignore_errors=True)
        try:
            _unpack(file, new, cancelled)
            _try_build(new, archive.program)
            shutil.rmtree(place, ignore_errors=True)  # what lacks the program is of no use
            new.replace(place)
        finally:
            shutil.rmtree(new, ignore_errors=True)
            file.unlink(missing_ok=True)
    programs = _find_programs(place, archive.program)
    assert programs is not None
    return release.tag_name, programs


def list_builds(archive: Archive, folder: Path) -> dict[str, Path]:
    """Return the programs' folders of the builds below `folder` by their tags, newest first."""
    before, after = _stem(archive.name).split("{tag}")
    found = {
        place.name[len(before) : -len(after)]: programs
        for place in folder.glob(f"{before}*{after}")
        if (programs := _find_programs(place, archive.program)) is not None
    }
    return dict(sorted(found.items(), key=lambda item: item[1].stat().st_mtime, reverse=True))


def open_releases() -> Connections:
    """Return connections to servers of releases; none of them is asked yet."""
    return Connections(connect_s=_CONNECT_S, silence_s=_SILENCE_S)


def describe_release(connections: Connections, archive: Archive, version: str) -> Release:
    """Return the project's description of a release. Raises EnvironmentFailed."""
    with _mapped_errors(archive.project, Path()):
        return _describe_release(connections, archive.releases, version)


class _Unusable(Exception):
    """A release or an archive that cannot be used, and why."""


@contextmanager
def _mapped_errors(project: str, folder: Path) -> Iterator[None]:
    """Say in our words why a build cannot be had."""
    hint = "set a mirror (VLLAMA_RELEASES_URL), or see: vllama engines"
    try:
        yield
    except _Unusable as error:
        raise EnvironmentFailed(f"cannot use {project}'s own build: {error}", hint=hint) from None
    except (RequestFailed, SourceError) as error:
        text = f"cannot download {project}'s own build: {error}"
        raise EnvironmentFailed(text, hint=hint) from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull(
                f"cannot install into '{folder}': the disk is full", hint="free some space"
            ) from None
        raise EnvironmentFailed(
            f"cannot install into '{folder}': {error.strerror or error}"
        ) from None


def _describe_release(connections: Connections, base: str, version: str) -> Release:
    """Ask for the description of a release, with its assets' addresses made whole."""
    if not _TAG.fullmatch(version):
        raise _Unusable(f"'{version}' is not a release name")
    address = f"{base.rstrip('/')}/{LATEST if version == LATEST else f'tags/{version}'}"
    with connections.ask(address, {"accept": "application/vnd.github+json", **GZIP}) as response:
        if response.status != 200:
            raise _Unusable(_explain_status(response, version))
        content = read_body(response, _MAX_DESCRIPTION)
        try:
            release = msgspec.json.decode(content, type=Release)
            for asset in release.assets:
                asset.browser_download_url = urljoin(response.url, asset.browser_download_url)
        except (ValueError, RecursionError):
            raise _Unusable(f"{find_place(response)} does not describe a release") from None
    if not _TAG.fullmatch(release.tag_name) or version not in (LATEST, release.tag_name):
        raise _Unusable(f"{find_place(response)} describes another release")
    return release


def _explain_status(response: StreamedResponse, version: str) -> str:
    if response.status == 404:
        return f"no such release: {version}"
    if response.status in (403, 429) and response.headers.get("x-ratelimit-remaining") == "0":
        reset = response.headers.get("x-ratelimit-reset", "")
        known = reset.isascii() and reset.isdigit() and len(reset) <= _TIME_DIGITS
        at = f" until {time.strftime('%H:%M', time.localtime(int(reset)))}" if known else ""
        return f"{find_place(response)} rejects further requests{at} (rate limit)"
    return f"{find_place(response)} returned {response.status} {response.reason}".rstrip()


def _choose_asset(release: Release, name: str, tested: str | None) -> Asset:
    """Return the asset called `name`; `tested` is the SHA-256 that it had when it was tested."""
    found = next((asset for asset in release.assets if asset.name == name), None)
    if found is None:
        raise _Unusable(f"release {release.tag_name} has no {name}")
    if not _DIGEST.fullmatch(found.digest or ""):
        raise _Unusable(f"release {release.tag_name} has no SHA-256 of {name}")
    if tested is not None and found.digest != f"sha256:{tested}":
        raise _Unusable(f"{name} differs from the tested file: its SHA-256 has changed")
    return found


def _download(
    connections: Connections, asset: Asset, file: Path, tell: Tell, cancelled: threading.Event
) -> None:
    """Download an asset to `file`, going on with what is there, and verify it."""
    for attempt in range(1, _TRIES + 1):
        try:
            _receive(connections, asset, file, tell, cancelled)
        except RequestFailed:
            if attempt == _TRIES or cancelled.wait(_PAUSE_S * 2**attempt):
                raise
            continue
        with file.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if f"sha256:{found}" == asset.digest:
            return
        file.unlink()
        raise _Unusable(f"{asset.name} does not match the SHA-256 in its release")


def _receive(
    connections: Connections, asset: Asset, file: Path, tell: Tell, cancelled: threading.Event
) -> None:
    """Receive what is missing of `file`. Raises RequestFailed if it breaks off."""
    done = file.stat().st_size if file.exists() else 0
    if asset.size and done > asset.size:
        file.unlink()
        done = 0
    if asset.size and done == asset.size:
        return
    headers = {"range": f"bytes={done}-"} if done else {}
    with connections.ask(asset.browser_download_url, headers) as response:
        if response.status == 416:  # what is there is no beginning of it
            file.unlink(missing_ok=True)
            raise RequestFailed("the download restarts from the beginning")
        if response.status >= 500:
            raise RequestFailed(f"the server returned {response.status}")
        if response.status not in (200, 206):
            raise _Unusable(
                f"{find_place(response)} returned {response.status} {response.reason}".rstrip()
            )
        part = response.headers.get("content-range", f"bytes {done}-")
        if response.status == 206 and not part.startswith(f"bytes {done}-"):
            file.unlink(missing_ok=True)
            raise RequestFailed("the server sent a different part than requested")
        if response.status == 200:  # from its beginning, whatever was asked for
            done = 0
        total = asset.size or (done + response.length if response.length else None)
        most = _MAX_UNPACKED if total is None else total
        with file.open("r+b" if done else "wb") as out:
            out.seek(done)
            for piece in iter_raw(response):
                if cancelled.is_set():
                    raise RequestFailed("it was canceled")
                out.write(piece)
                done += len(piece)
                if done > most:
                    raise _Unusable(f"{asset.name} is larger than its release states")
                tell(f"downloading {asset.name}", done, total)
    if total is not None and done < total:
        raise RequestFailed(f"the download stopped after {done} of {total} bytes")


def _unpack(file: Path, folder: Path, cancelled: threading.Event) -> None:
    """Unpack an archive; nothing in it gets out of `folder`."""
    folder.mkdir(parents=True)
    size = 0
    try:
        with tarfile.open(file, "r:gz") as archive:
            for number, member in enumerate(archive):
                if cancelled.is_set():
                    raise RequestFailed("it was canceled")
                size += member.size
                if size > _MAX_UNPACKED or number > _MAX_FILES:
                    raise _Unusable("its archive is too large")
                archive.extract(member, folder, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise _Unusable(f"its archive cannot be unpacked: {error}") from None


def _find_programs(folder: Path, program: str) -> Path | None:
    """Return the folder of a build's programs; None if it is not there."""
    found = next(
        (
            path
            for path in (folder / program, *folder.glob(f"*/{program}"))
            if path.is_file() and os.access(path, os.X_OK)
        ),
        None,
    )
    return found.parent if found is not None else None


def _try_build(folder: Path, program: str) -> None:
    programs = _find_programs(folder, program)
    if programs is None:
        raise _Unusable(f"its archive has no executable {program}")
    out = run_command([str(programs / program), "--version"], timeout_s=TRIAL_S)
    if out.status != 0:
        last = next((line for line in reversed(out.text.splitlines()) if line.strip()), "no output")
        if out.status is not None and out.status < 0:
            last = f"{signal.strsignal(-out.status)} (signal {-out.status})"
        raise _Unusable(f"{program} does not start on this machine: {out.problem or last.strip()}")


def _stem(name: str) -> str:
    return name.removesuffix(".tar.gz")
