"""Code blocks of README, the guides and the examples: run where they can, else checked.

A block that is neither has its reason in `SHOWN`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
import yaml

from tests.server_process import Server
from vllama.base.errors import ConfigError
from vllama.cli.app import prepare
from vllama.cli.command_index import ALIASES, COMMANDS
from vllama.cli.parser import root
from vllama.config import load
from vllama.models.modelfile import parse_modelfile
from vllama.routes.route_table import ROUTES

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    (
        ROOT / "README.md",
        *(ROOT / "docs" / "guide").glob("*.md"),
        *ROOT.glob("examples/*/README.md"),
    )
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = re.compile(r"^(?:\w+)?\$ +")
OTHERS = (
    ".", "cat", "curl", "docker", "echo", "export", "ggml-rpc-server", "helm", "journalctl",
    "kubectl", "mkdir", "pip", "podman", "python", "python3", "systemctl", "tar", "umask",
)  # fmt: skip
"""Programs of examples that are not ours; the options of `vllama` behind them are checked."""
PATHS = {word for route in ROUTES for word in route.spelling.split() if word.startswith("/")}
SHOWN = {
    "30 x 5 x 576 bfloat16": "an output",
    "               CAPTURED": "an output",
    "location / {": "nginx's; tests/deploy has one that runs",
    "POST /v1/messages 200": "lines of the log",
    '{"status": "not ready"': "a response",
    "rule_files:": "Prometheus's; promtool checks the rules in tests/deploy",
    "rules:\n  custom:": "the Prometheus adapter's, which is not here",
}
"""Beginnings of blocks that are shown and not to be run, with the reason."""


class Block(NamedTuple):
    """A code block of a page."""

    page: str
    language: str
    text: str


def list_blocks() -> Iterator[Block]:
    for page in PAGES:
        for language, text in FENCE.findall(page.read_text()):
            yield Block(str(page.relative_to(ROOT)), language, text)


BLOCKS = [block for block in list_blocks() if not block.text.startswith(tuple(SHOWN))]


def of(*languages: str) -> Any:
    """Give a test the blocks in some languages."""
    found = [block for block in BLOCKS if kind(block) in languages]
    return pytest.mark.parametrize("block", found, ids=lambda block: name(block))


def name(block: Block) -> str:
    first = block.text.strip().partition("\n")[0]
    return f"{Path(block.page).parent.name}/{Path(block.page).stem}: {first[:40]}"


def kind(block: Block) -> str:
    if block.language in ("", "sh", "console"):
        return "Modelfile" if re.match(r"(FROM|SYSTEM) ", block.text) else "shell"
    return block.language


def test_every_reason_is_needed() -> None:
    texts = [block.text for block in list_blocks()]
    assert not [start for start in SHOWN if not any(text.startswith(start) for text in texts)]
    assert {kind(block) for block in BLOCKS} <= {
        "shell", "Modelfile", "json", "python", "toml", "yaml",
    }  # fmt: skip


def list_commands(block: Block) -> Iterator[list[str]]:
    """Yield the words of each command; of a console's block those behind a prompt."""
    lines = block.text.replace("\\\n", " ").splitlines()
    has_prompts = any(PROMPT.match(line) for line in lines)
    for line in lines:
        if line and not (has_prompts and not PROMPT.match(line)):
            text = re.split(r"  {2,}(?=[a-z])", PROMPT.sub("", line).strip("()"))[0]
            lexer = shlex.shlex(text.rstrip(")"), posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            try:
                words = list(lexer)
            except ValueError:  # a body that goes on in the next lines
                words = text.split()
            for part in re.split(r"\0(?:;|&&|\|)\0", "\0".join(words)):
                yield part.split("\0")


def parse(argv: list[str]) -> None:
    """Parse a command line of vllama without running it. Raises what the command would."""
    args, _ = prepare(argv)
    command, context, title = root(), None, "vllama"
    while True:
        context = command.make_context(title, args, parent=context)
        if not hasattr(command, "resolve_command"):
            return
        words = [*context._protected_args, *context.args]
        title, command, args = command.resolve_command(context, words)


@of("shell")
def test_commands_exist_and_take_their_options(block: Block) -> None:
    commands = list(list_commands(block))
    assert commands
    for words in commands:
        while words[0] in ("sudo", "env") or "=" in words[0]:
            words = words[1:]
        if "vllama" in words and words[0] in ("vllama", "kubectl"):
            ours = words[len(words) - words[::-1].index("vllama") :]
            if ">" in ours:
                ours = ours[: ours.index(">")]
            if ours[0] in {*COMMANDS, *ALIASES}:  # not `pods vllama` of kubectl
                parse(ours)
                continue
        assert words[0] in OTHERS, words
        if words[0] == "curl":
            (url,) = [word for word in words if re.match(r"https?://", word)]
            assert re.sub(r"https?://[^/]+|\?.*", "", url) in PATHS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_commands_in_sentences_exist_and_take_their_options(page: Path) -> None:
    for text in re.findall(r"`vllama ([a-z][^`]*)`", FENCE.sub("", page.read_text())):
        words = shlex.split(re.sub(r"[][…]", "", text))
        if words == ["export"]:  # of earlier versions
            continue
        try:
            parse(words)
        except typer.Exit:  # the help of a command with actions
            pass
        except typer.TyperException as error:  # the name of a command alone
            assert str(error).startswith("Missing parameter"), text


@pytest.mark.parametrize("line", ["serve --nope", "keys nope", "nope", "ps --requests=1"])
def test_a_wrong_command_would_be_found(line: str) -> None:
    with pytest.raises((ConfigError, typer.TyperException)):
        parse(line.split())


@of("Modelfile")
def test_modelfiles(block: Block) -> None:
    text = block.text if "FROM " in block.text else f"FROM smollm2:135m\n{block.text}"
    parse_modelfile(text)


@of("toml")
def test_settings(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(block.text)
    load({}, {"HOME": str(tmp_path), "OPENAI_API_KEY": "k"}, file)


@of("yaml")
def test_values(block: Block) -> None:
    """What Helm and Prometheus do with them stands in tests/deploy."""
    given = yaml.safe_load(block.text)
    if "image" in given:
        known = yaml.safe_load((ROOT / "deploy/helm/vllama/values.yaml").read_text())
        assert not given.keys() - known.keys()


@of("json")
def test_objects(block: Block) -> None:
    for line in block.text.splitlines():
        assert json.loads(line)["url"] in PATHS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("blocks"), "--inspect") as running:
        running.model("m")
        yield running


@pytest.mark.slow
@of("python")
def test_programs(
    block: Block, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = next(one.text for one in BLOCKS if one.language == "json")
    (tmp_path / "rows.jsonl").write_text(re.sub(r'"model": "[^"]+"', '"model": "m"', rows))
    text = block.text.replace("http://127.0.0.1:11434", server.url)
    text = re.sub(r'model="[^"]+"', 'model="m"', text)
    # the size of the test's model
    text = text.replace("576", "64").replace("[10, 20]", "[0, 1]").replace("[15]", "[1]")
    exec(compile(text, name(block), "exec"), {})
