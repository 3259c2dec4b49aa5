"""The slash commands of a conversation, and their help."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence

from vllama.base.errors import ModelNotFound
from vllama.base.spelling import find_similar
from vllama.cli.chat.images import names_image
from vllama.cli.chat.session import Session
from vllama.cli.model_view import COLUMNS as LIST_COLUMNS
from vllama.cli.model_view import OPTIONAL_COLUMNS, format_sections, make_rows, make_sections
from vllama.cli.output import say, show_error, show_table, show_warning
from vllama.models.modelfile import parse_parameter

LEAVING = ("/bye", "/exit")
PART_NAMES = {"template": "prompt template"}


class SlashCommands:
    """Carries out slash commands on the session and the keyboard's history."""

    def __init__(self, session: Session, remember: Callable[[bool], object]) -> None:
        """`remember` has the keyboard keep a history from now on, or none."""
        self._session = session
        self._remember = remember
        self._table: dict[str, Callable[[Sequence[str], str], object]] = {
            "/set": self._set,
            "/show": self._show,
            "/load": self._load,
            "/save": self._save,
            "/list": self._list,
            "/ls": self._list,
            "/clear": self._clear,
            "/?": self._help,
            "/help": self._help,
        }

    def is_path(self, text: str) -> bool:
        """Tell whether a message begins with a file's path rather than a command."""
        first = text.split(maxsplit=1)[0]
        if first in self._table or first in LEAVING:
            return False
        return first.count("/") > 1 or (self._session.sees and names_image(text))

    def do(self, text: str) -> bool:
        """Carry out one command; True if it ends the conversation. Raises VllamaError."""
        name, _, rest = text.strip().partition(" ")
        if handler := self._table.get(name):
            handler(_words(rest), rest.strip())
        elif name not in LEAVING:
            self._refuse(name, (*self._table, *LEAVING))
        return name in LEAVING

    def _set(self, words: Sequence[str], rest: str) -> None:
        session = self._session
        match words:
            case ["parameter"] | ["parameter", _]:
                say(PARAMETER_HELP)
            case ["parameter", name, *values]:
                try:
                    session.options[name] = parse_parameter(name, values)
                except ValueError as error:
                    show_error(str(error))
                else:
                    say(f"Set parameter '{name}' to '{', '.join(values)}'")
            case ["system", _, *_]:
                session.system = _unquote(rest.removeprefix("system").strip())
                say("Set system message.")
            case ["history" | "nohistory" as choice]:
                self._remember(choice == "history")
            case ["wordwrap" | "nowordwrap" as choice]:
                session.wrap = choice == "wordwrap"
                say(f"Set '{choice}' mode.")
            case ["verbose" | "quiet" as choice]:
                session.verbose = choice == "verbose"
                say(f"Set '{choice}' mode.")
            case ["format", "json"] | ["noformat"]:
                session.format = "json" if words[0] == "format" else None
                say("Set format to 'json' mode." if session.format else "Disabled format.")
            case ["think", *_] if not session.thinks:
                show_warning(f"'{session.model}' does not support thinking; nothing was changed")
            case ["think"] | ["nothink"]:
                session.think = words[0] == "think"
                say(f"Set '{words[0]}' mode.")
            case ["think", "low" | "medium" | "high" | "max" as level]:
                session.think = level
                say(f"Set 'think' mode to '{level}'.")
            case ["format", *_]:
                say("Invalid or missing format. For 'json' mode use '/set format json'")
            case [] | ["system"]:
                say(SET_HELP)
            case _:
                self._refuse(f"/set {words[0]}", _list_commands(SET_HELP))

    def _show(self, words: Sequence[str], rest: str) -> None:
        match words:
            case ["info"]:
                for line in format_sections(make_sections(self._session.describe())):
                    say(line)
            case ["license" | "modelfile" | "template" as part]:
                none = f"No {PART_NAMES.get(part, part)} was specified for this model."
                say(str(self._session.describe().get(part) or none).strip())
            case ["system"]:
                text = self._session.system or self._session.describe().get("system")
                say(str(text or "No system message was specified for this model."))
            case ["parameters"]:
                self._show_parameters()
            case []:
                say(SHOW_HELP)
            case _:
                self._refuse(f"/show {words[0]}", _list_commands(SHOW_HELP))

    def _refuse(self, command: str, known: Iterable[str]) -> None:
        near = find_similar(command, known, most=1)
        meant = f"Did you mean '{near[0]}'? " if near else ""
        say(f"Unknown command '{command}'. {meant}Type /? for help")

    def _show_parameters(self) -> None:
        text = str(self._session.describe().get("parameters") or "")
        say("Model defined parameters:")
        for line in text.splitlines() or [
            "No additional parameters were specified for this model."
        ]:
            say(f"  {line}")
        if self._session.options:
            say("User defined parameters:")
            for name, value in sorted(self._session.options.items()):
                text = f"{value:g}" if isinstance(value, float) else str(value)
                say(f"  {name:<30} {text}")

    def _load(self, words: Sequence[str], rest: str) -> None:
        if len(words) != 1:
            say("Usage:\n  /load <model>")
            return
        session = self._session
        old = session.model, session.sees, session.thinks, session.earlier
        say(f"Loading model '{words[0]}'")
        session.model = words[0]
        try:
            session.describe()
            session.load()
        except BaseException as error:
            session.model, session.sees, session.thinks, session.earlier = old
            if not isinstance(error, ModelNotFound):
                raise
            say(f"Couldn't find model '{words[0]}'")
        else:
            session.messages.clear()

    def _save(self, words: Sequence[str], rest: str) -> None:
        """Save the settings and the messages as a model based on this one."""
        if len(words) != 1:
            say("Usage:\n  /save <model>")
            return
        session = self._session
        body: dict[str, object] = {"model": words[0], "from": session.model}
        for key, value in (
            ("parameters", session.options),
            ("system", session.system),
            ("messages", [*session.earlier, *session.messages]),
        ):
            if value:
                body[key] = value
        session.client.post("/api/create", body | {"stream": False})
        say(f"Created new model '{words[0]}'")

    def _list(self, words: Sequence[str], rest: str) -> None:
        models = self._session.client.get("/api/tags").get("models") or []
        start = words[0].lower() if words else ""
        show_table(LIST_COLUMNS, make_rows(models, start), OPTIONAL_COLUMNS)

    def _clear(self, words: Sequence[str], rest: str) -> None:
        self._session.messages.clear()
        say("Cleared session context")

    def _help(self, words: Sequence[str], rest: str) -> None:
        texts = {
            "set": SET_HELP,
            "/set": SET_HELP,
            "show": SHOW_HELP,
            "/show": SHOW_HELP,
            "shortcut": SHORTCUTS,
            "shortcuts": SHORTCUTS,
        }
        more = IMAGES if self._session.sees and not words else ""
        say(texts.get(words[0] if words else "", HELP) + more)


def _list_commands(page: str) -> list[str]:
    """Return the commands that a help page lists, without their arguments: `/set verbose`."""
    return re.findall(r"^  (/\w+ \w+)", page, re.MULTILINE)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, posix=os.name == "posix")
    except ValueError:  # an apostrophe in a system message
        return text.split()


def _unquote(text: str) -> str:
    paired = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if paired else text


HELP = """\
Available commands:
  /set            Change the settings of this conversation
  /show           Show model details
  /load <model>   Switch to another model
  /save <model>   Save this conversation as a model
  /list           List the server's models
  /clear          Clear the conversation
  /bye, /exit     Exit
  /?, /help       Show this help; /? shortcuts lists the keys

Use \"\"\" to begin and end a multi-line message.
"""
IMAGES = "Use /path/to/file to include .jpg, .png, or .webp images.\n"
SET_HELP = """\
Available commands:
  /set parameter <name> <value>   Set a parameter, such as temperature 0.2
  /set system <text>              Set the system message
  /set history, nohistory         Turn prompt history on or off
  /set wordwrap, nowordwrap       Turn word wrap on or off
  /set format json, noformat      Turn JSON output on or off
  /set verbose, quiet             Turn timings on or off
  /set think [level], nothink     Turn thinking on or off
"""
PARAMETER_HELP = """\
Available parameters:
  /set parameter seed <int>               Random number seed
  /set parameter num_predict <int>        Maximum number of tokens
  /set parameter top_k <int>              Sample from the k most likely tokens
  /set parameter top_p <float>            Sample from tokens up to this total probability
  /set parameter min_p <float>            Minimum probability, relative to the best token
  /set parameter num_ctx <int>            Context length in tokens
  /set parameter temperature <float>      Sampling temperature
  /set parameter repeat_penalty <float>   Penalty for repetition
  /set parameter repeat_last_n <int>      Tokens to check for repetition
  /set parameter num_gpu <int>            Layers on the GPU
  /set parameter stop <string> ...        Stop sequences
"""
SHOW_HELP = """\
Available commands:
  /show info         Show model details
  /show license      Show its license
  /show modelfile    Show a Modelfile
  /show parameters   Show its parameters and those set here
  /show system       Show the system message
  /show template     Show the chat template
"""
SHORTCUTS = """\
Ctrl + a, Ctrl + e   Move to the beginning or end of the line
Alt + b, Alt + f     Move back or forward one word
Ctrl + k, Ctrl + u   Delete to the end or beginning of the line
Ctrl + w             Delete the word before the cursor
Ctrl + l             Clear the screen
Ctrl + g             Write the message in an editor ($VISUAL, $EDITOR)
Ctrl + c             Stop the response
Ctrl + d             Exit
Up, down, Ctrl + r   Browse or search the input history
"""
