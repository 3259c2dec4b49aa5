"""Make the picture of a terminal in `docs/pictures`, light and dark, from a real run.

    python scripts/terminal.py

Needs what `make demo` installs, and pyte, which draws the screen (pip install pyte). README shows
the file that suits the reader's theme.
"""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import DIMMED_MONOKAI, TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "pictures"
SETUP = "vllama engines install llama-server --yes"
COMMANDS = (
    'vllama run smollm2:135m "What is machine learning? Answer in one sentence."',
    'vllama recommend --for code --gpu "RTX 4090"',
)
WIDTH, HEIGHT = 100, 40
HEX = re.compile(r"[0-9a-f]{6}")
COLORS = {"brown": "yellow", "black": "bright_black"}  # as pyte names them
LIGHT = TerminalTheme(
    (250, 250, 250),
    (40, 44, 52),
    [(40, 44, 52), (200, 50, 50), (40, 130, 60), (150, 105, 10),
     (40, 90, 180), (140, 60, 150), (20, 120, 140), (90, 95, 100)],
)  # fmt: skip
# without the fonts that rich would have the reader's browser fetch
FORMAT = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>A response, and models that suit a machine</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


def main() -> int:
    """Run the commands in a new data folder, and draw what a terminal shows of them."""
    screen = pyte.Screen(WIDTH, HEIGHT)
    with tempfile.TemporaryDirectory(prefix="vllama-terminal-") as folder:
        kept = "VLLAMA_RELEASES_URL"  # a mirror, if there is one
        env = {
            name: x
            for name, x in os.environ.items()
            if not name.startswith(("OLLAMA_", "VLLAMA_")) or name == kept
        }
        env |= {
            "VLLAMA_DATA_DIR": folder,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}",
            "COLUMNS": str(WIDTH), "LINES": str(HEIGHT), "TERM": "xterm-256color",
        }  # fmt: skip
        stream = pyte.ByteStream(screen)
        run(SETUP, env)
        for command in COMMANDS:
            stream.feed(f"\x1b[1m$ {command}\x1b[0m\r\n".encode())
            stream.feed(run(command, env).replace(folder.encode(), b"~/.local/share/vllama"))
            stream.feed(b"\r\n")
    lines = [read_line(screen, number) for number in range(HEIGHT)]
    while lines and not lines[-1].plain.strip():
        lines.pop()
    for name, theme in (("light", LIGHT), ("dark", DIMMED_MONOKAI)):
        console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
        console.print(Text("\n").join(lines))
        svg = console.export_svg(title="vllama", theme=theme, code_format=FORMAT, unique_id="t")
        (FOLDER / f"terminal-{name}.svg").write_text(svg)
    return 0


def run(command: str, env: dict[str, str]) -> bytes:
    """Return what a command writes to a terminal. Ends the program if it fails."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        shlex.split(command), env=env, stdin=slave, stdout=slave, stderr=slave, close_fds=True
    )
    os.close(slave)
    out = bytearray()
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(master, 65536):
            out += piece
    os.close(master)
    if process.wait():
        sys.exit(f"{out.decode(errors='replace')}\n{command} failed")
    return bytes(out)


def read_line(screen: pyte.Screen, number: int) -> Text:
    """Return a line of the screen with its colors."""
    cells = [screen.buffer[number][column] for column in range(WIDTH)]
    line = Text()
    for (color, bold), run_of in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
        hex_ = f"#{color}" if HEX.fullmatch(color) else color
        known = None if color == "default" else COLORS.get(color, hex_)
        line.append("".join(cell.data for cell in run_of), Style(color=known, bold=bold))
    line.rstrip()
    return line


if __name__ == "__main__":
    sys.exit(main())
