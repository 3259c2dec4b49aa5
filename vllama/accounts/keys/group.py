"""Groups of keys: limits that the keys of a group share, from `[groups.NAME]` of the config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from vllama.accounts.usage.money import MoneyLimit, parse_budget
from vllama.base import kinds
from vllama.base.setting import list_declared, setting

if TYPE_CHECKING:
    from vllama.accounts.keys.key import Rate


# the settings, which commands read, come here: what takes long to import is imported when needed
def parse_rate(text: str) -> Rate:
    """Read a rate of requests, as that of a key."""
    from vllama.accounts.keys import key

    return key.parse_rate(text)


def parse_tokens(text: str) -> Rate:
    """Read a rate of tokens, as that of a key."""
    from vllama.accounts.keys import key

    return key.parse_tokens(text)


RATE, TOKENS = kinds.text("N/PERIOD", parse_rate), kinds.text("N/PERIOD", parse_tokens)
MODEL_RATE = kinds.table("model=N/period", Annotated[Any, RATE])
MODEL_TOKENS = kinds.table("model=N/period", Annotated[Any, TOKENS])


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The limits of a group: those of all its keys together."""

    name: str = ""
    rate: Annotated[Any, RATE] | None = setting("request limit per period", example='"600/min"')
    tokens: Annotated[Any, TOKENS] | None = setting(
        "token limit per day, month or minute", example='"100M/month"'
    )
    model_rate: Annotated[Any, MODEL_RATE] = setting(
        "request limit per period, by model", (), example='{ "llama3.3:70b" = "60/min" }'
    )
    model_tokens: Annotated[Any, MODEL_TOKENS] = setting(
        "token limit per period, by model", (), example='{ "qwen3:*" = "10M/day" }'
    )
    concurrent: kinds.Count | None = setting("maximum parallel requests", example="16")
    budget: Annotated[MoneyLimit, kinds.text("N/PERIOD", parse_budget)] | None = setting(
        "spending limit per day or month, by model prices", example='"50/month"'
    )

    @property
    def identity(self) -> str:
        """Identity for the limits."""
        from vllama.accounts.usage.entries import identify_group

        return identify_group(self.name)

    @property
    def title(self) -> str:
        """The group in a sentence."""
        return f"group '{self.name}'"

    @property
    def token_limit(self) -> Rate | None:
        """The limit of tokens."""
        tokens: Rate | None = self.tokens
        return tokens


GROUP_FIELDS = list_declared(Group)
