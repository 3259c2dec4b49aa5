"""Writes the files from which shells complete the commands without any setup by the user."""

from __future__ import annotations

import contextlib
import io

from vllama.cli.app import run

COMPLETIONS = {
    "bash": "share/bash-completion/completions/vllama",
    "zsh": "share/zsh/site-functions/_vllama",
    "fish": "share/fish/vendor_completions.d/vllama.fish",
}
# zsh runs the file itself at the first completion, which so far only defines the function
FIRST_CALL = "\n_vllama_completion\n"


def write_completion(shell: str) -> str:
    """Return the file for a shell: what `vllama completion` prints, for its folder of functions."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        run(["completion", shell])
    text = out.getvalue().lstrip()
    return text + FIRST_CALL if shell == "zsh" else text
