"""What is recorded of requests: what each took, and the admissions that a rate still counts."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Amounts(msgspec.Struct, kw_only=True):
    """What requests took together: their number, tokens, and time in microseconds.

    `prompt_tokens` include the `cached_tokens`, which the engine had computed before.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    duration_us: int = 0

    @property
    def tokens(self) -> int:
        """All tokens: those of the prompts and those that were generated."""
        return self.prompt_tokens + self.generated_tokens

    def add(self, other: Amounts) -> None:
        """Add what other requests took."""
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.generated_tokens += other.generated_tokens
        self.duration_us += other.duration_us


class Served(msgspec.Struct, frozen=True, array_like=True, tag="served"):
    """A request that has been answered. `key` is the name of its key, "" without one.

    `day` is the one (UTC) on which its answer ended. `identity` is what the limits of the key are
    counted by; "" if there are none to count.
    """

    day: str
    key: str
    model: str
    amounts: Amounts
    identity: str = ""


class Admitted(msgspec.Struct, frozen=True, array_like=True, tag="admitted"):
    """An admission of a key that has a rate; it counts until `until_s`. Times are Unix seconds."""

    identity: str
    time_s: float
    until_s: float


Entry = Served | Admitted
Place = tuple[str, str, str]
"""Day, key and model."""

_decoder = msgspec.json.Decoder(Entry)
_encoder = msgspec.json.Encoder()


def encode_entry(entry: Entry) -> bytes:
    """Return an entry as a line of a journal."""
    return _encoder.encode(entry) + b"\n"


def decode_entries(content: bytes) -> list[Entry]:
    """Return the entries of a journal, without a line that a full disk has cut."""
    entries: list[Entry] = []
    for line in content.splitlines():
        try:
            entries.append(_decoder.decode(line))
        except msgspec.DecodeError:
            continue
    return entries


def sum_up(entries: Iterable[Entry]) -> dict[Place, Amounts]:
    """Return what the requests among `entries` took, by day, key and model."""
    sums: dict[Place, Amounts] = {}
    for entry in entries:
        if isinstance(entry, Served):
            sums.setdefault((entry.day, entry.key, entry.model), Amounts()).add(entry.amounts)
    return sums
