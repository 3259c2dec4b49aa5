"""Ways to cut a stream into reads, and running a translator over them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from vllama.chat.reply import Reply


def ways(data: bytes, seeds: int = 12) -> Iterator[list[bytes]]:
    """Whole, byte by byte, and cut at random places, always the same ones."""
    yield [data]
    yield [data[n : n + 1] for n in range(len(data))]
    for seed in range(seeds):
        chance = random.Random(seed)
        places = sorted(chance.sample(range(len(data) + 1), min(len(data), chance.randint(1, 40))))
        yield [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def hide_ids(answer: bytes) -> bytes:
    """Put the same id in the place of those of calls, which are random."""
    return re.sub(rb'"call_[a-z0-9]{8}"', b'"call_random"', answer)


def run(reply: Reply, reads: list[bytes], *, start_ns: int = 10, step_ns: int = 10) -> bytes:
    """Feed all reads and finish, the time moving on by a step a read."""
    out, now_ns = [], start_ns
    for read in reads:
        now_ns += step_ns
        out.append(reply.feed(read, now_ns))
    out.append(reply.finish(now_ns + step_ns))
    return b"".join(out)
