"""Entry point of the `vllama` command; answers `--version` before anything heavy is imported."""

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    if sys.argv[1:] in (["--version"], ["-v"]):
        from vllama import __version__

        sys.stdout.write(f"vllama version is {__version__}\n")
        return 0
    from vllama.cli.app import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
