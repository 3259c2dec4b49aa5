"""Entry point of the `vllama` command; what it does is in `vllama.cli.app`."""

import sys

from vllama.cli.app import run


def main() -> int:
    """Run the command line and return its exit code."""
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
