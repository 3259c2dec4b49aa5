"""Entry point of the `vllama` command; the commands are in `vllama.cli`."""

import gc
import sys

from vllama.cli.app import run

GC_THRESHOLD = 50_000
"""Objects: what a short command imports is no garbage, and looking for some takes a tenth of it."""


def main() -> int:
    """Run the command line and return its exit code."""
    gc.set_threshold(GC_THRESHOLD)
    status = run(sys.argv[1:])
    gc.freeze()  # else the end of the interpreter looks through all objects
    return status


if __name__ == "__main__":
    sys.exit(main())
