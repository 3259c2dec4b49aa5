"""Current settings of a server and their consequences, swapped as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from vllama.config import Config, describe_answering
from vllama.config.report import Settings, report_settings
from vllama.models.library import Library
from vllama.plan.types import Facts
from vllama.routes.guards import Guards

if TYPE_CHECKING:
    from vllama.targets.nodes.watch import Nodes


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The settings, and what follows from them; none of it ever changes."""

    config: Config
    # None until the machine has been looked at
    facts: Facts | None = None
    library: Library | None = None
    # why the settings that were read last are not these; empty if they are
    refused: str = ""

    @cached_property
    def guards(self) -> Guards:
        """Rules for clients."""
        return Guards.of(self.config)

    @cached_property
    def report(self) -> Settings:
        """The settings as `/api/config` shows them."""
        return report_settings(self.config, self.refused)

    @cached_property
    def answering(self) -> Mapping[str, str]:
        """The settings that captures show, by key."""
        return describe_answering(self.config)


class InUse:
    """Holds the snapshot in use: a reload is one assignment of `now`.

    Whoever needs a setting holds this, and reads it where it is needed.
    """

    def __init__(self, now: Setup) -> None:
        self.now = now
        self.nodes: Nodes | None = None  # once the settings have named some

    @property
    def config(self) -> Config:
        """The settings."""
        return self.now.config

    @property
    def facts(self) -> Facts:
        """The machine, the engines and the settings, for plans."""
        assert self.now.facts is not None, "the machine has not been examined yet"
        return self.now.facts

    @property
    def library(self) -> Library:
        """The models."""
        assert self.now.library is not None, "the model library is still loading"
        return self.now.library
