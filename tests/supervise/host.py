"""A supervisor as a program of its own, to be killed: `host.py FOLDER flags…`.

Prints `ready` when the engine serves, and then lives until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.supervise.conftest import Lab


async def main() -> None:
    """Run one fake engine for ever."""
    lab = Lab(Path(sys.argv[1]))
    proc = lab.process(*sys.argv[2:])
    async with asyncio.TaskGroup() as group:
        group.create_task(proc.run())
        await proc.ensure_ready()
        print("ready", flush=True)


asyncio.run(main())
