"""Long work beside the event loop, which goes first whenever it has something to do."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

TURN_S = 0.0005
"""How long the work may keep the interpreter when the loop wants it; Python's own is 5 ms."""


async def beside(work: Callable[..., Result], *arguments: object) -> Result:
    """Do `work` in a thread and return its result; requests are answered meanwhile.

    For imports, above all: they hold the interpreter for longer than a request may wait.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        return await asyncio.to_thread(work, *arguments)
    finally:
        sys.setswitchinterval(before)
