"""Entry point of the `vllama` command; what it does is in `vllama.cli.app`."""

import sys

BRIEF = ("list", "ls", "ps", "show", "stop")
"""Commands that end at once. They leave no thread, no temporary file and nothing unwritten, so
that Python need not tear itself down; that, and collecting garbage, takes a fifth of their time."""


def main() -> int:
    """Run the command line and return its exit code."""
    if sys.argv[1:] in (["--version"], ["-v"]):  # before anything at all is imported
        from vllama import __version__

        sys.stdout.write(f"vllama version is {__version__}\n")
        return 0
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "serve" or command in BRIEF:
        import gc

        gc.disable()  # a start makes no garbage; the daemon turns it on when it has started
    if command == "serve":
        from vllama import early

        early.listen(sys.argv[1:])
    from vllama.cli.app import run

    status = run(sys.argv[1:])
    if command in BRIEF:
        import os

        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
