"""Run the stand-in hub: `python -m tests.hub --repo org/name=DIR --port N`.

Then, in another terminal: `HF_ENDPOINT=http://127.0.0.1:N vllama pull org/name`.
"""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from tests.hub import Fault, StandInHub


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hub", description=__doc__)
    parser.add_argument("--repo", action="append", default=[], metavar="ORG/NAME=DIR")
    parser.add_argument("--gated", action="append", default=[], metavar="ORG/NAME")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--mb-per-s", type=float, help="slow each connection down")
    arguments = parser.parse_args()
    with StandInHub(port=arguments.port) as hub:
        for entry in arguments.repo:
            name, _, folder = entry.partition("=")
            gated = "manual" if name in arguments.gated else False
            hub.add_repo(name, Path(folder), gated=gated)
        if arguments.mb_per_s:
            slow = Fault(bytes_per_s=arguments.mb_per_s * 1e6)
            hub.fault = lambda method, path, headers, server: slow if server == "cdn" else None
        print(hub.url, flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
