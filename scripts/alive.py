"""Run a long command quietly and show that it is alive; on failure show the end of its output.

Usage: alive.py "what it does" -- COMMAND ARG…   (standard library only: nothing is set up yet)
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

TICK_S = 1.0
PLAIN_TICK_S = 15.0
HINTS = {
    "CMAKE_C_COMPILER": "a C/C++ compiler is missing; on Debian: apt-get install g++ cmake make",
    "CMAKE_CXX_COMPILER": "a C++ compiler is missing; on Debian: apt-get install g++ cmake make",
    "No space left on device": "the disk is full; free about 1 GB",
    "Temporary failure in name resolution": "the package index cannot be reached",
}


def main() -> int:
    """Run the command; return its exit code."""
    what, _, *command = sys.argv[1:]
    terminal = sys.stdout.isatty()
    begun = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        if not terminal:
            print(f"{what} …", flush=True)
        tick = TICK_S if terminal else PLAIN_TICK_S
        while True:
            try:
                code = process.wait(timeout=tick)
                break
            except subprocess.TimeoutExpired:
                took = time.monotonic() - begun
                text = f"{what} … {int(took) // 60}:{int(took) % 60:02d}"
                print(f"\r{text}" if terminal else text, end="" if terminal else "\n", flush=True)
            except KeyboardInterrupt:
                process.terminate()
                process.wait()
                return 130
        took = time.monotonic() - begun
        start, end = "\r" if terminal else "", "failed" if code else "done"
        print(f"{start}{what}: {end} ({took:.0f} s)")
        if code:
            output.seek(0)
            text = output.read().decode("utf-8", "replace")
            print("\n".join(text.splitlines()[-40:]))
            for sign, hint in HINTS.items():
                if sign in text:
                    print(f"\nhint: {hint}")
                    break
        return code


if __name__ == "__main__":
    sys.exit(main())
