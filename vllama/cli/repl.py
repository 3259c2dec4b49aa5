"""The prompt of `vllama run`: reads lines, tells commands from messages."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.cli.commands import Commands
from vllama.cli.output import say, show_error
from vllama.cli.session import Session
from vllama.errors import VllamaError

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

PROMPT, MORE = ">>> ", "... "
QUOTES = '"""'
PLACEHOLDER = "Send a message (/? for help)"


def converse(session: Session, history: Path | None) -> None:
    """Talk until the user leaves by Ctrl-D or /bye. `history` None keeps no history.

    A failed answer is reported, and the conversation goes on.
    """
    keyboard = Keyboard(history)
    commands = Commands(session, keyboard)
    while True:
        try:
            text = keyboard.read()
        except KeyboardInterrupt:
            say("\nUse Ctrl + d or /bye to exit.")
            continue
        except EOFError:
            say()
            return
        if not text.strip():
            continue
        try:
            if text.startswith("/") and not commands.is_path(text):
                if commands.do(text):
                    return
            else:
                session.chat(text)
                say()
        except KeyboardInterrupt:
            say()
        except VllamaError as error:
            show_error(error.message, error.hint)


class Keyboard:
    """Reads messages, which may have several lines between triple quotes."""

    def __init__(self, history: Path | None) -> None:
        self._path = history
        self._remembers = history is not None
        self._session = self._make()

    def read(self) -> str:
        """Return the next message. Raises EOFError (Ctrl-D) and KeyboardInterrupt (Ctrl-C)."""
        from prompt_toolkit.formatted_text import FormattedText

        grey = FormattedText([("ansibrightblack", PLACEHOLDER)])
        return self._whole(self._session.prompt(PROMPT, placeholder=grey))

    def _whole(self, first: str) -> str:
        """Read on until the triple quotes are closed; they are not part of the message."""
        before, quotes, text = first.partition(QUOTES)
        if not quotes or (before.strip() and not before.startswith("/set ")):
            return first
        while QUOTES not in text:
            text += "\n" + self._session.prompt(MORE)
        return before + text[: text.index(QUOTES)].strip("\n")

    def remember(self, on: bool) -> None:
        """Keep a history of what is typed from now on, or none."""
        self._remembers = on
        self._session = self._make()

    def _make(self) -> PromptSession[str]:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, InMemoryHistory

        if self._path is not None and self._remembers:
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._path.touch(mode=0o600)
                return PromptSession(history=FileHistory(str(self._path)))
        return PromptSession(history=InMemoryHistory())
