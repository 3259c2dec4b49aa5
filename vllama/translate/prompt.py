"""What to know of a prompt without its template: which of its messages can be dropped.

Truncation: contract §3.6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vllama.translate.types import Message


def fit_messages(
    messages: Sequence[Message], count: Callable[[Sequence[Message]], int], limit: int
) -> tuple[tuple[Message, ...], int]:
    """Drop the oldest turns until `count` is at most `limit`; return what stays and how many went.

    System messages and the last message always stay, so that the result may still be too long.
    A cut is made before a message of the user (else before the last one): templates refuse an
    answer without its question. `count` is called a logarithmic number of times.
    """
    everything = tuple(messages)
    if len(everything) < 2 or count(everything) <= limit:
        return everything, 0
    last = len(everything) - 1
    starts = [n for n in range(1, last) if everything[n].role == "user"] + [last]
    low, high = 0, len(starts) - 1
    while low < high:  # the first start that fits; dropping more never makes it longer
        middle = (low + high) // 2
        if count(_from(everything, starts[middle])) <= limit:
            high = middle
        else:
            low = middle + 1
    kept = _from(everything, starts[low])
    return kept, len(everything) - len(kept)


def _from(messages: Sequence[Message], start: int) -> tuple[Message, ...]:
    system = (message for message in messages[:start] if message.role in ("system", "developer"))
    return (*system, *messages[start:])
