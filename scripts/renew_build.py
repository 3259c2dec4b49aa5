# SPDX-License-Identifier: MIT
"""Renew the pin of llama.cpp's own build: its tag, and the SHA-256 of each archive that we install.

    python scripts/renew_build.py b11500

Takes "latest", too. VLLAMA_RELEASES_URL names a mirror. Test that build before you commit the pin.
"""

from __future__ import annotations

import os
import pprint
import re
import sys
from dataclasses import replace
from pathlib import Path

from vllama.base.errors import VllamaError
from vllama.engines.llamacpp import llama_server
from vllama.engines.release import describe_release, open_releases

PIN = re.compile(r"^TAG = .*\nDIGESTS: Mapping\[str, str\] = \{[^}]*\}$", re.MULTILINE)


def main(version: str, file: Path) -> int:
    """Rewrite the pin in the adapter's source."""
    archives = [way.archive for way in llama_server.BUILDS if way.archive is not None]
    with open_releases() as connections:
        where = os.environ.get("VLLAMA_RELEASES_URL") or archives[0].releases
        release = describe_release(connections, replace(archives[0], releases=where), version)
    found = {asset.name: (asset.digest or "").removeprefix("sha256:") for asset in release.assets}
    names = [archive.name.format(tag=release.tag_name) for archive in archives]
    if missing := [name for name in names if not found.get(name)]:
        raise SystemExit(f"{release.tag_name} has no SHA-256 of {', '.join(missing)}")
    digests = pprint.pformat({name: found[name] for name in names}, width=100)
    pin = f'TAG = "{release.tag_name}"\nDIGESTS: Mapping[str, str] = {digests}'
    file.write_text(PIN.sub(lambda _: pin, file.read_text(), count=1))
    print(f"{file}: {release.tag_name}, {len(names)} archives")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], Path(llama_server.__file__)))
    except (IndexError, VllamaError) as error:
        sys.exit(__doc__ if isinstance(error, IndexError) else str(error))
