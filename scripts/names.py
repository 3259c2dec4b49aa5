"""Check house rules that no linter knows: names, words, engine names, the environment, printing.

Prints each offense and exits 1 if there is one.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path("vllama")
MAX_LINES = 500
RULES = (
    # what, pattern, where it may stand
    (
        "an engine's name",
        re.compile(r"\b(llama_cpp|vllm|mlx_lm|sglang|sgl_jax|tinygrad|max_serve)\b"),
        ("engines/", "server/picker.py"),  # of a protocol whose names are one engine's
    ),
    (
        "os.environ",
        re.compile(r"\bos\.environ\b|\bgetenv\("),
        (
            "config/",
            "supervise/",
            "machine/environments/",
            "base/folders.py",
            "base/owner.py",
            "cli/quick.py",  # importing `config` takes longer than it may
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
CLAUSE = re.compile(r"(What|Whether|How|Where|When|Which|Who|Have|(Return|Yield) what)\b")
PARTICIPLE = re.compile(
    r"[a-z]+ed|told|kept|shown|seen|taken|said|known|found|given|made|sent|held|lost|written|chosen|done"
)
STEPS = {"admitted", "queued", "leased", "released", "ended"}  # of a `Stage`
VERBS = {"embed", "feed", "need", "reseed", "seed", *STEPS}
ADJECTIVES = ("property", "contextmanager", "AbstractContextManager")
"""What is decorated or annotated with one of these may be called by an adjective."""
WIRE = re.compile(
    r"dialects/.*_types|dialects/events|observe/captures/format|config/report"
    r"|routes/server/(state|health)"
)
"""Modules whose classes have the names of `/openapi.json`, beside which others may have theirs."""
BRITISH = re.compile(
    r"(?<![\w`])(?<!quantize )(?:\w*quantis\w+|licence\w*|colour\w*|cancell(?:ed|ing)|labelled"
    r"|behaviour\w*|neighbour\w*|flavour\w*|(?:re|un)?organis\w+|recognis\w+|summaris\w+|normalis\w+|serialis\w+"
    r"|synchronis\w+|initialis\w+|optimis\w+|tokenis\w+|signalled|mis?spelt|learnt|towards)"
    r"(?![\w`(])",
    re.IGNORECASE,
)
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)


def main() -> int:
    """Check every module."""
    bad = []
    places = defaultdict[str, list[str]](list)
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        source = path.read_text()
        lines = source.splitlines()
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
        tree = ast.parse(source)
        bad += [
            f"{path}:{line}: {text}" for line, text in (*check_names(tree), *check_words(source))
        ]
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name[0] != "_" and not WIRE.match(place):
                places[node.name].append(place)
    for text in (*Path().glob("*.md"), *Path("docs").rglob("*.md")):
        prose = CODE.sub(lambda code: "\n" * code[0].count("\n"), text.read_text())
        bad += [f"{text}:{line}: {what}" for line, what in find_british(prose, 1)]
    bad += [f"class {name} is in {' and '.join(at)}" for name, at in places.items() if at[1:]]
    print("\n".join(bad) or "names: ok")
    return 1 if bad else 0


def check_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield docstrings that begin with a clause, and functions called by a participle."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = node.name.strip("_")
            kinds = " ".join(
                map(ast.unparse, (*node.decorator_list, *filter(None, [node.returns])))
            )
            is_adjective = any(kind in kinds for kind in ADJECTIVES)
            if PARTICIPLE.fullmatch(name) and name not in VERBS and not is_adjective:
                yield node.lineno, f"a function begins with a verb: {node.name}"
        elif not isinstance(node, ast.ClassDef | ast.Module):
            continue
        if CLAUSE.match(text := ast.get_docstring(node) or ""):
            yield node.body[0].lineno, f"a docstring is no clause: {text.splitlines()[0]}"


def check_words(source: str) -> Iterator[tuple[int, str]]:
    """Yield British spellings in comments and in strings of several words."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        prose = token.type == tokenize.STRING and " " in token.string
        if prose or token.type == tokenize.COMMENT:
            yield from find_british(token.string, token.start[0])


def find_british(text: str, line: int) -> Iterator[tuple[int, str]]:
    """Yield British spellings in a text that begins on a line."""
    for found in BRITISH.finditer(text):
        number = line + text[: found.start()].count("\n")
        yield number, f"American English, please: {found[0]}"


if __name__ == "__main__":
    sys.exit(main())
