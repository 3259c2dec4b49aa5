"""Measure the size of vllama: lines, files and bytes of each room, and what users can set.

Bytes are those that are no whitespace, so that denser lines gain nothing. `--chat MODEL` also
starts a server and profiles its third `/api/chat`: the Python calls, and the files in which they
are. Those of logging and of the watchdog are left out, because they depend on the time.
"""

from __future__ import annotations

import argparse
import ast
import json
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vllama"
LEFT_OUT = ("watchdog.py", "log_context.py", "log_lines.py")
BODY = {
    "messages": [{"role": "user", "content": "Name a color."}],
    "options": {"num_predict": 8, "seed": 1, "temperature": 0},
}
READY_S = 120


def main() -> int:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chat", metavar="MODEL", help="profile a chat with this model")
    parser.add_argument("--profiled", nargs="*", help=argparse.SUPPRESS)
    # what comes after MODEL is for the server
    given, rest = parser.parse_known_args()
    if given.profiled is not None:
        return serve_profiled(Path(given.profiled[0]), rest)
    lines, files, sizes = count_rooms()
    for room in sorted(lines, key=lambda room: -lines[room]):
        print(write_row(room, files[room], lines[room], sizes[room]))
    print(write_row("all", files.total(), lines.total(), sizes.total()))
    tests = sum(len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("*.py"))
    print(f"tests: {tests} lines")
    importers = find_importers()
    alone = sum(count == 1 for count in importers.values())
    print(f"{len(list_entries())} entries; {alone} modules with one importer")
    print(count_choices())
    if given.chat:
        print(profile_chat(given.chat, rest))
    return 0


def write_row(room: str, files: int, lines: int, size: int) -> str:
    """Return a room, its files, its lines and its bytes as a row."""
    return f"{room:<12}{files:>5} files{lines:>8} lines{size / 1e6:>7.2f} MB"


def count_choices() -> str:
    """Return how many commands, options and settings there are."""
    from vllama.cli.command_index import COMMANDS, HIDDEN
    from vllama.cli.parser import list_actions, list_options, load_command
    from vllama.config import SETTINGS

    parsed = [
        each for name in COMMANDS for each in (load_command(name), *list_actions(name).values())
    ]
    options = sum(len(list_options(each)) for each in parsed)
    shown = len(COMMANDS) - len(HIDDEN)
    commands = f"{shown} commands ({len(COMMANDS)} with hidden ones)"
    return f"{commands}, {len(SETTINGS)} settings, {options} options"


def list_entries() -> list[str]:
    """Return what a reader of the folder `vllama/` sees; git leaves empty folders of old rooms."""
    hidden = ("__init__.py", "_version.py", "py.typed", "__pycache__")
    shown = [path for path in PACKAGE.iterdir() if path.is_file() or any(path.glob("[!_]*"))]
    return [path.name for path in shown if path.name not in hidden]


def count_rooms() -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Return lines, files and bytes of Python by room; modules outside the rooms are `top`."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for path in list_modules().values():
        parts = path.relative_to(PACKAGE).parts
        room = parts[0] if len(parts) > 1 else "top"
        text = path.read_text()
        lines[room] += len(text.splitlines())
        files[room] += 1
        sizes[room] += len("".join(text.split()).encode())
    return lines, files, sizes


def list_modules() -> dict[str, Path]:
    """Return all modules by their dotted names, without the generated one."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
        if path.name != "_version.py"
    }


def find_importers() -> Counter[str]:
    """Return how many modules import each; a package that exports what is in it does not count."""
    modules = list_modules()
    importers: Counter[str] = Counter()
    for name, path in modules.items():
        if path.name == "__init__.py":
            continue
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                inside = {f"{node.module}.{each.name}" for each in node.names} & modules.keys()
                found |= inside or {node.module} & modules.keys()
            elif isinstance(node, ast.Import):
                found |= {each.name for each in node.names} & modules.keys()
        importers.update(found - {name})
    return importers


def profile_chat(model: str, options: list[str]) -> str:
    """Run a server with a profiler, and say what its third chat took."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "calls.json")
        command = [sys.executable, __file__, "--profiled", str(result), "--port", "0", *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            try:
                port = find_port(server)
                for chat in range(4):
                    if chat == 2:
                        server.send_signal(signal.SIGUSR1)
                    elif chat == 3:
                        server.send_signal(signal.SIGUSR2)
                    ask(port, model)
            finally:
                server.terminate()
                server.communicate()
        counts = json.loads(result.read_text())
    ours = {name: n for name, n in counts.items() if not name.endswith(LEFT_OUT)}
    return f"third /api/chat: {sum(ours.values())} calls in {len(ours)} files"


def find_port(server: subprocess.Popen[str]) -> int:
    """Read the server's log until it says where it listens."""
    assert server.stderr
    for line in server.stderr:
        _, found, rest = line.partition("http://127.0.0.1:")
        if found:
            return int("".join(c for c in rest.split()[0] if c.isdigit()))
    raise SystemExit("the server ended before it listened")


def ask(port: int, model: str) -> None:
    """Send one chat and read its answer."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/chat", json.dumps(BODY | {"model": model}).encode()
    )
    with urllib.request.urlopen(request, timeout=READY_S) as answer:
        answer.read()


def serve_profiled(result: Path, arguments: list[str]) -> int:
    """Serve, and count the calls by file from SIGUSR1 to SIGUSR2."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (name := frame.f_code.co_filename).startswith(str(PACKAGE)):
            calls[name] += 1

    def write(*_: object) -> None:
        sys.setprofile(None)
        result.write_text(json.dumps(calls))

    signal.signal(signal.SIGUSR1, lambda *_: sys.setprofile(count))
    signal.signal(signal.SIGUSR2, write)
    from vllama.__main__ import main as run

    sys.argv = ["vllama", "serve", *arguments]
    return run()


if __name__ == "__main__":
    sys.exit(main())
