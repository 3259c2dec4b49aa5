"""Fetch the page's libraries from npm into `vllama/ui/vendor`, as `vendor.json` there lists them.

    python scripts/vendor.py            fetch the listed versions and compare checksums
    python scripts/vendor.py --accept   write the checksums of what was fetched (after an update)

The files are those of the packages, unchanged. Needs npm; who installs or tests vllama does not.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "vllama" / "ui" / "vendor"
MANIFEST = FOLDER / "vendor.json"


def main(accept: bool) -> int:
    """Fetch all packages; return 1 if a file is not the expected one."""
    manifest = json.loads(MANIFEST.read_text())
    wrong = []
    for name, package in manifest.items():
        with tempfile.TemporaryDirectory() as scratch:
            root = unpack(package.get("package", name), package["version"], Path(scratch))
            for file in package["files"]:
                data = (root / file["from"]).read_bytes()
                digest = hashlib.sha256(data).hexdigest()
                if accept:
                    file["sha256"] = digest
                elif digest != file["sha256"]:
                    wrong.append(f"{name}: {file['from']} has sha256 {digest}")
                    continue
                target = FOLDER / file["to"]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


def unpack(name: str, version: str, folder: Path) -> Path:
    """Fetch a package with npm, which checks its integrity, and return the unpacked folder."""
    command = ["npm", "pack", "--silent", f"{name}@{version}"]
    archive = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    with tarfile.open(folder / archive.stdout.strip()) as packed:
        packed.extractall(folder, filter="data")
    return folder / "package"


if __name__ == "__main__":
    sys.exit(main("--accept" in sys.argv[1:]))
