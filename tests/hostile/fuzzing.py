# ruff: noqa: E501 (tables of pieces)
"""How the fuzzers vary what is honest, and how long they go on.

`FUZZ_EXAMPLES=20000` takes so many of each kind, `FUZZ_SEED=7` other ones than the usual, which are
always the same: `FUZZ_SEED=7 FUZZ_EXAMPLES=20000 python -m pytest tests/hostile -k fuzz`.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st

Text = TypeVar("Text", str, bytes)
Edit = tuple[int, int, int, int]

MOST = 64
"""A piece is put in so many times at most, which is enough to see what grows faster than that."""


def fuzz(examples: int) -> Callable[[Any], Any]:
    """Decorate a test: so many examples, unless the environment says otherwise."""
    chosen = os.environ.get("FUZZ_SEED")
    configured = settings(
        max_examples=int(os.environ.get("FUZZ_EXAMPLES", examples)),
        derandomize=chosen is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )

    def decorate(test: Any) -> Any:
        return configured(test if chosen is None else seed(int(chosen))(test))

    return decorate


_EDITS = st.lists(
    st.tuples(
        st.integers(0, 2**16), st.integers(0, 40), st.integers(0, 2**16), st.integers(0, MOST)
    ),
    max_size=6,
)


def varied(seeds: Sequence[Text], pieces: Sequence[Text]) -> st.SearchStrategy[Text]:
    """Give one of the seeds after some edits, each of which puts pieces in for what was there."""

    def apply(chosen: Text, edits: list[Edit]) -> Text:
        for at, cut, piece, times in edits:
            at %= len(chosen) + 1
            chosen = chosen[:at] + pieces[piece % len(pieces)] * times + chosen[at + cut :]
        return chosen

    return st.builds(apply, st.sampled_from(seeds), _EDITS)


HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 1.5, 1e308, 2**31, 2**63, -(2**63), 2**64, 10**30, "", " ", "\0",
    "x" * 5000, "\ud800", "😀", "../..", "/etc/passwd", "{{", "{{ .Prompt }}", "{% for", "-x", "a:b:c",
    "http://127.0.0.1:1/a/b", "data:image/png;base64,AAAA", "[INST]", [], {}, [[]], [{}], [None],
    ["x"] * 1000, {"": ""}, {"type": "object"}, {"$ref": "#"}, {"a": {"b": {"c": [1, "x", None]}}},
    "json", "low", "5m", "-1", "nan",
]  # fmt: skip


def changed(seeds: Sequence[dict[str, Any]], keys: Sequence[str]) -> st.SearchStrategy[bytes]:
    """Give the JSON of one of the seeds with other values, here and there, or more keys."""
    spots = st.tuples(
        st.integers(0, 2**16), st.integers(0, len(HOSTILE) - 1), st.sampled_from(["", *keys])
    )

    def apply(chosen: dict[str, Any], edits: list[tuple[int, int, str]]) -> bytes:
        value = json.loads(json.dumps(chosen))
        for at, hostile, key in edits:
            places = list(_places(value))
            holder, name = places[at % len(places)]
            holder[key or name if isinstance(holder, dict) else name] = copy.deepcopy(
                HOSTILE[hostile]
            )
        return json.dumps(value).encode()

    return st.builds(apply, st.sampled_from(seeds), st.lists(spots, min_size=1, max_size=4))


def _places(value: Any) -> Any:
    """Yield every list and object with each of its indexes and keys."""
    todo = [value]
    while todo:
        found = todo.pop()
        inside = found.items() if isinstance(found, dict) else enumerate(found)
        for name, inner in list(inside):
            yield found, name
            if isinstance(inner, dict | list) and inner:
                todo.append(inner)
