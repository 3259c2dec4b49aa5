"""Entry point of the `vllama` command; what it does is in `vllama.cli.app`."""

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    if sys.argv[1:] in (["--version"], ["-v"]):  # before anything at all is imported
        from vllama import __version__

        sys.stdout.write(f"vllama version is {__version__}\n")
        return 0
    if sys.argv[1:2] == ["serve"]:
        import gc

        from vllama import early

        gc.disable()  # a start makes no garbage; the daemon turns it on when it has started
        early.listen(sys.argv[1:])
    from vllama.cli.app import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
