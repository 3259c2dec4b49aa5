"""What is remembered of the grammars that an engine could make does not grow with their sizes."""

from __future__ import annotations

import asyncio
import tracemalloc
from types import SimpleNamespace
from typing import Any

from vllama.routes.inference.engine_log import MAX_PROVEN, GrammarTrials
from vllama.supervise.logs import LogRing

SIZE = 100_000


def test_proven_grammars_take_no_memory_for_their_text() -> None:
    part: Any = SimpleNamespace(output=LogRing)
    trials = GrammarTrials(part, "error: (.+)")

    async def prove(count: int) -> int:
        """Return how many grammars had to be tried."""
        tried = 0
        for number in range(count):
            relay: Any = SimpleNamespace(before_first=None)
            async with trials.begin(relay, b"%d" % number + b"x" * SIZE):
                if relay.before_first is not None:
                    tried += 1
                    relay.before_first()
        return tried

    tracemalloc.start()
    try:
        assert asyncio.run(prove(MAX_PROVEN // 10)) == MAX_PROVEN // 10
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 10 * SIZE
    assert asyncio.run(prove(MAX_PROVEN // 10)) == 0
