"""Check house rules that no linter knows: engine names, the environment, printing.

Prints each offence and exits 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGE = Path("vllama")
MAX_LINES = 500
RULES = (
    # what, pattern, where it may stand
    (
        "an engine's name",
        re.compile(r"\b(llama_cpp|vllm|mlx_lm|sglang|sgl_jax|tinygrad|max_serve)\b"),
        ("engines/",),
    ),
    (
        "os.environ",
        re.compile(r"\bos\.environ\b|\bgetenv\("),
        (
            "config/",
            "supervise/",
            "machine/environments/",
            "engines/llamacpp/xllamacpp_child.py",
        ),
    ),
    ("print or rich", re.compile(r"^\s*print\(|^\s*(from|import) rich\b"), ("cli/", "lab/")),
    (
        "a citation of notes that are not in the repository (cite docs/reference/…#heading)",
        re.compile(r"(?<!RFC \d{4} )(?<!HTML standard )§|\bresearch[/:]"),
        (),
    ),
    ("asyncio's default executor", re.compile(r"run_in_executor|set_default_executor"), ()),
    ("asyncio's PIPE", re.compile(r"asyncio\.subprocess\.PIPE"), ()),
)


def main() -> int:
    """Check every module."""
    bad = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        lines = path.read_text().splitlines()
        if len(lines) > MAX_LINES:
            bad.append(f"{path}: {len(lines)} lines, more than {MAX_LINES}")
        for what, pattern, allowed in RULES:
            if place.startswith(allowed or ("\0",)):
                continue
            bad += [
                f"{path}:{number}: {what} does not belong here: {line.strip()}"
                for number, line in enumerate(lines, 1)
                if pattern.search(line)
            ]
    print("\n".join(bad) or "names: ok")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
