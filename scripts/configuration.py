"""Write docs/configuration.md from the table of settings; `--check` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from vllama.config import table

TARGET = Path(__file__).parent.parent / "docs" / "configuration.md"
HEAD = """\
# Configuration

Made by `scripts/configuration.py` from the table in `vllama/config`; do not edit by hand.

A flag wins over a variable, a variable over the config file (TOML: `key = value`), which lies in
the platform's config folder (`~/.config/vllama/config.toml` on Linux) or where `--config` or
`VLLAMA_CONFIG` says. A `VLLAMA_*` variable wins over Ollama's. Wrong flags, own variables and
config values are errors; wrong `OLLAMA_*` variables are noted and left out, as Ollama does.

| key in the file | flag | variables | default | meaning |
|---|---|---|---|---|
"""


def text() -> str:
    """Return the whole page."""
    rows = []
    for row in table():
        names = [f"`{name}`" for name in (row["env"], row["foreign"]) if name]
        flag = f"`{row['flag']}`" if row["flag"] else ""
        default = f"`{row['default']}`" if row["default"] else ""
        rows.append(f"| `{row['key']}` | {flag} | {', '.join(names)} | {default} | {row['help']} |")
    return HEAD + "\n".join(rows) + "\n"


def main() -> int:
    """Write the page, or compare it."""
    page = text()
    if "--check" in sys.argv:
        if TARGET.read_text() != page:
            print(f"{TARGET.name} is stale; run: python scripts/configuration.py")
            return 1
        return 0
    TARGET.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
