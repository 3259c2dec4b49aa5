"""The help page of a command, in the form that help pages of other programs have."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

_TYPE = re.compile(r"(?<=[A-Z]) <[a-z\[\]]+>(?=  )")
_BRACES = re.compile(r"\{([A-Z]+)\}")


class PlainCommand(TyperCommand):
    """A command whose help names its arguments without braces and Python's types."""

    def get_help(self, ctx: Any) -> str:
        """Return the help page."""
        text = _TYPE.sub(lambda found: " " * len(found.group()), super().get_help(ctx))
        return _BRACES.sub(r"\1", text).replace("  [required]", "")
