"""Entry point of the `vllama` command; the commands are in `vllama.cli`."""

import sys

from vllama.cli.app import run


def main() -> int:
    """Run the command line and return its exit code."""
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
