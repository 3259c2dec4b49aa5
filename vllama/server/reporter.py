"""What the daemon tells the terminal; the command line implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vllama.models.types import PullEvent


class Reporter(Protocol):
    """The daemon's voice. Every method may be called from any thread and returns at once."""

    def note(self, text: str) -> None:
        """Say something worth knowing."""
        ...

    def ready(self, lines: Sequence[str]) -> None:
        """Say that the server answers, and what it found."""
        ...

    def loading(self, text: str) -> None:
        """Show how far an engine's start is; an empty text ends the display."""
        ...

    def pull(self, event: PullEvent) -> None:
        """Show how far a download is."""
        ...

    def error(self, message: str, hint: str | None) -> None:
        """Say what went wrong and what to do."""
        ...
