"""Build a release in `dist/`, and check all that can be checked before it is uploaded.

`make release` runs it after all tests, and before them with `--check`, which ends when the state of
the repository has been checked. It changes nothing outside `dist/` and `build/`, and prints
what is left to do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
UV = Path(sys.executable).with_name("uv")


def main() -> None:
    """Check the state of the repository, build, and check what was built."""
    version = find_version()
    check_changelog(version)
    check_pins()
    run(UV, "lock", "--check")
    if sys.argv[1:] == ["--check"]:
        return
    # two builds give the same bytes: files have the date of the commit
    os.environ["SOURCE_DATE_EPOCH"] = read("git", "log", "-1", "--format=%ct")
    shutil.rmtree(DIST, ignore_errors=True)
    build(ROOT, DIST)
    wheel, sdist = find_one("*.whl"), find_one("*.tar.gz")
    with tempfile.TemporaryDirectory() as scratch:
        check_reproducible(wheel, sdist, Path(scratch))
        check_installed(wheel, version, Path(scratch))
    run(UV, "tool", "run", "check-wheel-contents", wheel)
    run(UV, "tool", "run", "twine", "check", "--strict", wheel, sdist)
    shutil.copy(ROOT / "uv.lock", DIST)
    (DIST / "constraints.txt").write_text(list_constraints() + "\n")
    formula = DIST / "vllama.rb"
    formula.write_text(read(sys.executable, "packaging/homebrew.py", str(sdist)) + "\n")
    print(
        f"\nvllama {version} is in {DIST.relative_to(ROOT)}. To publish it:\n"
        f"  git push origin v{version}\n"
        f"  {UV.relative_to(ROOT)} publish {wheel.relative_to(ROOT)} {sdist.relative_to(ROOT)}\n"
        "  attach uv.lock and constraints.txt to the release\n"
        f"  copy {formula.relative_to(ROOT)} to the tap, and add [Unreleased] to CHANGELOG.md"
    )


def find_version() -> str:
    """Return the version of the tag of this commit; end with an error if there is none."""
    if changes := read("git", "status", "--porcelain"):
        sys.exit(f"cannot release: the working tree has changes; commit them first\n{changes}")
    tags = read("git", "tag", "--points-at", "HEAD", "v*").split()
    if len(tags) == 1:
        return tags[0].removeprefix("v")
    if tags:
        sys.exit(f"cannot release: this commit has several tags: {', '.join(tags)}")
    newest = re.search(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    version = newest[1] if newest else "1.2.3"
    sys.exit(
        "cannot release: this commit has no tag; the version comes from it:\n"
        f"  git tag --annotate v{version} --message 'vllama {version}'"
    )


def check_changelog(version: str) -> None:
    """End with an error unless the changelog has a dated section for the version."""
    head = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    if not re.search(head, (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        sys.exit(f"cannot release: CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD'")


def check_pins() -> None:
    """End with an error unless the SHA-256 of each of llama.cpp's builds is in the adapter."""
    from vllama.engines.llamacpp import llama_server

    names = [
        way.archive.name.format(tag=way.archive.tag) for way in llama_server.BUILDS if way.archive
    ]
    if missing := [name for name in names if name not in llama_server.DIGESTS]:
        sys.exit(
            f"cannot release: the SHA-256 of {', '.join(missing)} is not pinned; with access to "
            f"GitHub run: python scripts/renew_build.py {llama_server.TAG}"
        )


def check_reproducible(wheel: Path, sdist: Path, scratch: Path) -> None:
    """Build again, from the repository and from the sdist; all must be equal to what is there."""
    build(ROOT, scratch / "again")
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch, filter="data")
    unpacked = scratch / sdist.name.removesuffix(".tar.gz")
    build(unpacked, scratch / "from-sdist", "--wheel")
    for copy in (
        scratch / "again" / wheel.name,
        scratch / "again" / sdist.name,
        scratch / "from-sdist" / wheel.name,
    ):
        if copy.read_bytes() != (DIST / copy.name).read_bytes():
            sys.exit(f"cannot release: {copy.name} differs between builds ({copy.parent.name})")


def check_installed(wheel: Path, version: str, scratch: Path) -> None:
    """Install the wheel as a user does, and see that its version is the tag's."""
    os.environ |= {
        "UV_TOOL_DIR": str(scratch / "tools"),
        "UV_TOOL_BIN_DIR": str(scratch / "bin"),
    }
    run(UV, "tool", "install", "--quiet", wheel)
    said = read(str(scratch / "bin" / "vllama"), "--version")
    if said != f"vllama version is {version}":
        sys.exit(f"cannot release: the installed wheel says '{said}', the tag v{version}")


def build(source: Path, target: Path, *options: str) -> None:
    """Build distributions of the project in `source`."""
    run(UV, "build", "--quiet", "--out-dir", target, *options, source)


def list_constraints() -> str:
    """Return the versions of `uv.lock`, extras' too, for `pip install --constraint`."""
    what = "--frozen --no-emit-project --no-default-groups --all-extras"
    form = "--quiet --no-header --no-hashes --no-annotate"
    return read(str(UV), "export", *what.split(), *form.split())


def find_one(pattern: str) -> Path:
    """Return the only file in `dist/` that matches."""
    (found,) = DIST.glob(pattern)
    return found


def run(*command: str | Path) -> None:
    """Run a command; end if it fails."""
    if code := subprocess.run(list(map(str, command)), cwd=ROOT, check=False).returncode:
        sys.exit(f"cannot release: '{' '.join(map(str, command))}' failed with {code}")


def read(*command: str) -> str:
    """Return what a command prints; end if it fails."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"cannot release: '{' '.join(command)}' failed with {done.returncode}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
