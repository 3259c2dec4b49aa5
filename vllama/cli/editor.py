"""Text written in the user's own editor."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from vllama.base.errors import VllamaError
from vllama.cli.output import is_terminal

VARIABLES = ("OLLAMA_EDITOR", "VISUAL", "EDITOR")
DEFAULT = "vi"


def edit_text(text: str, environ: Mapping[str, str], name: str = "prompt.txt") -> str:
    """Return `text` as the user left it in the editor, in a file `name`. Raises VllamaError."""
    named = next((environ[name] for name in VARIABLES if environ.get(name, "").strip()), "")
    hint = "set VISUAL or EDITOR"
    if not (named or (is_terminal(sys.stdin) and is_terminal(sys.stdout))):
        raise VllamaError(f"cannot start the editor '{DEFAULT}': not a terminal", hint=hint)
    named = named or DEFAULT
    with tempfile.TemporaryDirectory(prefix="vllama-") as folder:
        file = Path(folder) / name  # editors choose their mode by its ending
        file.write_text(text)
        try:
            done = subprocess.run([*shlex.split(named), str(file)], check=False)
        except (OSError, ValueError) as error:  # ValueError: a quote that is not closed
            raise VllamaError(f"cannot start the editor '{named}': {error}", hint=hint) from error
        if done.returncode:
            raise VllamaError(f"the editor '{named}' failed: exit {done.returncode}", hint=hint)
        return file.read_text(errors="replace").rstrip("\n")
