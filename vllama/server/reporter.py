"""How the server reports to its user; the command line implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vllama.models.types import PullEvent


class Reporter(Protocol):
    """Shows what the server does. Any thread may call any method, which returns at once."""

    def note(self, text: str) -> None:
        """Show a line."""
        ...

    def warn(self, text: str) -> None:
        """Show a warning."""
        ...

    def ready(self, url: str, advice: str) -> None:
        """Show that the start is over, where the server is, and what to type next."""
        ...

    def loading(self, text: str) -> None:
        """Show the progress of an engine's start; an empty text ends the display."""
        ...

    def pull(self, event: PullEvent) -> None:
        """Show the progress of a download."""
        ...

    def error(self, message: str, hint: str | None) -> None:
        """Show what went wrong and what to do."""
        ...
