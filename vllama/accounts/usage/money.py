"""Prices, budgets and spend. No float takes part before a sum is shown.

Prices are per million tokens and have at most six decimals, so that one token costs a whole number
of millionths of a millionth. Spend is counted in these, of which a `UNIT` is one of the currency.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Literal

from vllama.base import kinds
from vllama.base.setting import setting

# the settings, which commands read, come here
if TYPE_CHECKING:
    from vllama.accounts.usage.entries import Amounts

UNIT = 10**12
TOKENS = 10**6
LARGEST = 10**6


def read_amount(text: str) -> Decimal:
    """Read an amount of money such as `50` or `0.15`. Raises ValueError."""
    try:
        amount = Decimal(text.strip())
        if 0 <= amount <= LARGEST and amount * TOKENS % 1 == 0:
            return amount
    except InvalidOperation:  # no number, or none that can be compared
        pass
    raise ValueError(f"'{text}' is not an amount up to {LARGEST} with at most 6 decimals")


Amount = Annotated[Decimal, kinds.text("AMOUNT", read_amount, {"type": "number", "minimum": 0})]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Prices per million tokens."""

    prompt: Amount = setting("price of prompt tokens", Decimal(0), example="0.15")
    cached: Amount | None = setting("price of cached prompt tokens", example="0.02")
    generated: Amount = setting("price of generated tokens", Decimal(0), example="0.60")

    @property
    def highest(self) -> int:
        """The price of the most expensive token."""
        return int(max(self.prompt, self.cached or 0, self.generated) * (UNIT // TOKENS))

    def compute(self, amounts: Amounts) -> int:
        """Return the spend for the tokens of a request."""
        from vllama.accounts.usage.entries import MOST

        cached = min(amounts.cached_tokens, amounts.prompt_tokens)
        spend = (amounts.prompt_tokens - cached) * self.prompt
        spend += cached * (self.prompt if self.cached is None else self.cached)
        spend += amounts.generated_tokens * self.generated
        return min(MOST, int(spend * (UNIT // TOKENS)))


@dataclass(frozen=True, slots=True)
class MoneyLimit:
    """At most `amount` per `day` or `month` of the calendar (UTC)."""

    amount: Decimal
    period: Literal["day", "month"]

    def __str__(self) -> str:
        return f"{self.amount:f}/{self.period}"


def parse_budget(text: str) -> MoneyLimit:
    """Read `50/month` or `2.5/day`. Raises ValueError."""
    amount, _, period = text.partition("/")
    for known in ("day", "month"):
        if period.strip().lower() == known and read_amount(amount):
            return MoneyLimit(read_amount(amount), known)
    raise ValueError("use the form 50/month; the periods are day and month")
