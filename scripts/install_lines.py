"""Write in all documents how to install vllama: from a checkout, or by name from the index.

python scripts/install_lines.py            # `extra.on_index` of mkdocs.yml says which
python scripts/install_lines.py --check    # exit with 1 if a document says otherwise
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACES = ("README.md", "docs/guide/*.md", "docs/reference/*.md", "examples/python/*.py")
SWITCH = re.compile(r"^  on_index: (true|false)\b", re.MULTILINE)
LINE = re.compile(
    r"pip install (?:-e \.(?!\w)|-e '\.\[(\w+)\]'|vllama-serve(?!\[)|'vllama-serve\[(\w+)\]')"
)


def write_line(found: re.Match[str], *, on_index: bool) -> str:
    """Return a line in its present form, with the same extra."""
    if extra := found[1] or found[2]:
        return (
            f"pip install 'vllama-serve[{extra}]'" if on_index else f"pip install -e '.[{extra}]'"
        )
    return "pip install vllama-serve" if on_index else "pip install -e ."


def main() -> int:
    """Write or check the documents."""
    switch = SWITCH.search((ROOT / "mkdocs.yml").read_text())
    on_index = switch is not None and switch[1] == "true"
    wrong = []
    for path in (path for place in PLACES for path in sorted(ROOT.glob(place))):
        text = path.read_text()
        right = LINE.sub(lambda found: write_line(found, on_index=on_index), text)
        if right != text:
            wrong.append(path)
            if "--check" not in sys.argv:
                path.write_text(right)
    for path in wrong:
        print(f"{path.relative_to(ROOT)}: how to install vllama")
    return int("--check" in sys.argv and bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
