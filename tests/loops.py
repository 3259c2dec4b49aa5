"""Tests that are coroutines: each runs in an event loop of its own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

import uvloop

P = ParamSpec("P")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in a loop of asyncio."""

    @functools.wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*args, **named))

    return run


def in_uvloop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in a loop of uvloop, as the server runs: its transports differ from asyncio's."""

    @functools.wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> None:
        uvloop.run(test(*args, **named))

    return run
