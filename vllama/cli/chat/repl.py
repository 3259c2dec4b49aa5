"""The prompt of `vllama run`: reads messages and slash commands."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from vllama import config
from vllama.base import private
from vllama.base.errors import VllamaError
from vllama.cli.chat.answer_view import AnswerPrinter
from vllama.cli.chat.session import Session
from vllama.cli.chat.slash_commands import SlashCommands
from vllama.cli.editor import edit_text
from vllama.cli.output import say, show_error

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

PROMPT, MORE = ">>> ", "... "
QUOTES = '"""'
PLACEHOLDER = "Send a message (/? for help)"
_BLOCK = re.compile(r'(\s*|/set\s+system\s+)"""(.*)', re.DOTALL)


def converse(session: Session, history: Path | None) -> None:
    """Talk until the user leaves by Ctrl-D or /bye. `history` None keeps no history.

    A failed answer is reported, and the conversation goes on.
    """
    _show_earlier(session)
    keyboard = Keyboard(history)
    commands = SlashCommands(session, keyboard.remember)
    while True:
        try:
            text = keyboard.read()
        except KeyboardInterrupt:
            if not keyboard.typed:
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


def _show_earlier(session: Session) -> None:
    """Show the model's own messages: what was said before a conversation was saved."""
    for message in session.earlier:
        text = str(message.get("content") or "")
        if message.get("role") == "user":
            say(f"{PROMPT}{text}")
        elif message.get("role") == "assistant":
            printer = AnswerPrinter(wrap=session.wrap, hide_thinking=session.hide_thinking)
            printer.content(text)
            printer.end()
            say()


def is_open(text: str) -> bool:
    """Tell whether a block in triple quotes is still open."""
    block = _BLOCK.match(text)
    return block is not None and QUOTES not in block.group(2)


def strip_quotes(text: str) -> str:
    """Return a message without the triple quotes around a block."""
    block = _BLOCK.match(text)
    if block is None:
        return text
    return block.group(1).lstrip() + block.group(2).partition(QUOTES)[0].strip("\n")


class Keyboard:
    """Reads messages; one of several lines, in triple quotes, is one entry of the history."""

    def __init__(self, history: Path | None) -> None:
        self._path = history
        self._remembers = history is not None
        self._session = self._make()

    def read(self) -> str:
        """Return the next message. Raises EOFError (Ctrl-D) and KeyboardInterrupt (Ctrl-C)."""
        return strip_quotes(self._session.prompt())

    @property
    def typed(self) -> str:
        """Text on the line when Ctrl-C was pressed."""
        return self._session.default_buffer.text

    def remember(self, on: bool) -> None:
        """Keep a history of what is typed from now on, or none."""
        self._remembers = on
        self._session = self._make()

    def _make(self) -> PromptSession[str]:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.formatted_text import FormattedText
        from prompt_toolkit.history import FileHistory, History, InMemoryHistory

        history: History = InMemoryHistory()
        if self._path is not None and self._remembers:
            with contextlib.suppress(OSError):
                private.make_folder(self._path.parent)
                self._path.touch(mode=0o600)
                history = FileHistory(str(self._path))
        return PromptSession(
            PROMPT,
            history=history,
            placeholder=FormattedText([("ansibrightblack", PLACEHOLDER)]),
            multiline=Condition(lambda: is_open(self._session.default_buffer.text)),
            prompt_continuation=MORE,
            key_bindings=_keys(),
        )


def _keys() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("c-g")
    def _edit(event: KeyPressEvent) -> None:
        """Continue the message in the user's editor."""
        from prompt_toolkit.application import run_in_terminal

        def work() -> None:
            try:
                text = edit_text(buffer.text, config.environ())
            except VllamaError as error:
                show_error(error.message, error.hint)
            else:
                buffer.text = text
                buffer.cursor_position = len(text)

        buffer = event.current_buffer
        run_in_terminal(work)

    return keys
