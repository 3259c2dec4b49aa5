"""Prices and budgets are read exactly, and what tokens cost is exact, too."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest

from vllama.accounts.usage.entries import Amounts
from vllama.accounts.usage.money import UNIT, Price, parse_budget, read_amount


@pytest.mark.parametrize(
    ("text", "amount"),
    [("0", "0"), ("50", "50"), (" 0.15 ", "0.15"), ("1e-06", "0.000001"), ("1000000", "1000000")],
)
def test_amounts(text: str, amount: str) -> None:
    assert read_amount(text) == Decimal(amount)


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "0.0000001", "1000001", "nan", "snan", "inf", "1e999999", "0,15"]
)
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match="at most 6 decimals"):
        read_amount(text)


@pytest.mark.parametrize("text", ["50/month", "2.5/day"])
def test_budgets(text: str) -> None:
    assert str(parse_budget(text)) == text
    assert parse_budget(text.upper().replace("/", " / ")) == parse_budget(text)


@pytest.mark.parametrize("text", ["50", "50/min", "/day", "0/day", "-1/day", "x/month"])
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(ValueError):
        parse_budget(text)


PRICE = Price(prompt=Decimal("0.15"), cached=Decimal("0.02"), generated=Decimal("0.6"))


@pytest.mark.parametrize(
    ("price", "tokens", "spend"),
    [
        (PRICE, (1_000_000, 0, 0), "0.15"),
        (PRICE, (1_000_000, 1_000_000, 0), "0.02"),
        (PRICE, (0, 0, 1_000_000), "0.6"),
        (PRICE, (7, 3, 1), "0.00000126"),
        (PRICE, (3, 9, 0), "0.00000006"),  # an engine that counts oddly
        (Price(prompt=Decimal("0.000001")), (1, 1, 1), "0.000000000001"),
        (Price(generated=Decimal(1)), (9, 9, 1), "0.000001"),
    ],
)
def test_what_tokens_cost(price: Price, tokens: tuple[int, int, int], spend: str) -> None:
    prompt, cached, generated = tokens
    amounts = Amounts(prompt_tokens=prompt, cached_tokens=cached, generated_tokens=generated)
    assert price.compute(amounts) == Decimal(spend) * UNIT
    assert price.highest == max(price.prompt, price.cached or 0, price.generated) * 10**6


def test_sums_of_many_are_exact() -> None:
    chance, total, spend = random.Random(1), Amounts(), 0
    for _ in range(10_000):
        prompt = chance.randrange(5000)
        one = Amounts(
            prompt_tokens=prompt,
            cached_tokens=chance.randrange(prompt + 1),
            generated_tokens=chance.randrange(3000),
        )
        spend += PRICE.compute(one)
        total.add(one)
    assert spend == PRICE.compute(total)
