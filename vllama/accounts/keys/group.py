"""Groups of keys: limits that the keys of a group share, from `[groups.NAME]` of the config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vllama.accounts.keys.key import Rate, parse_rate, parse_tokens
from vllama.accounts.usage.entries import identify_group
from vllama.accounts.usage.money import MoneyLimit, parse_budget
from vllama.base import kinds
from vllama.base.setting import list_declared, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The limits of a group: those of all its keys together."""

    name: str = ""
    rate: Annotated[Rate, kinds.text("N/PERIOD", parse_rate)] | None = setting(
        "requests in a period", example='"600/min"'
    )
    tokens: Annotated[Rate, kinds.text("N/PERIOD", parse_tokens)] | None = setting(
        "tokens per day, month or minute", example='"100M/month"'
    )
    concurrent: kinds.Count | None = setting("parallel requests", example="16")
    budget: Annotated[MoneyLimit, kinds.text("N/PERIOD", parse_budget)] | None = setting(
        "money per day or month, by the prices of models", example='"50/month"'
    )

    @property
    def identity(self) -> str:
        """Identity for the limits."""
        return identify_group(self.name)

    @property
    def title(self) -> str:
        """The group in a sentence."""
        return f"the group '{self.name}'"

    @property
    def token_limit(self) -> Rate | None:
        """The limit of tokens."""
        return self.tokens


GROUP_FIELDS = list_declared(Group)
