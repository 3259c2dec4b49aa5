"""The documentation: its generated parts, its links, and the site that is built from it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from vllama.base import errors
from vllama.base.errors import ConfigError
from vllama.cli.app import INTERRUPTED
from vllama.config import load
from vllama.net import relay_types
from vllama.net.relay_types import RelayState
from vllama.scheduler import instance
from vllama.scheduler.instance import InstanceState
from vllama.scheduler.views import Phase
from vllama.supervise.spec import State

ROOT = Path(__file__).parent.parent
PAGES = sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the documentation site make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", h).strip().lower().replace(" ", "-") for h in headings}


def test_every_engine_has_a_row_in_the_guide_and_tests_of_its_own():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    engines = declared["vllama.engines"]
    table, _, _ = (ROOT / "docs/guide/engines.md").read_text().partition("\nOnly vLLM")
    rows = re.findall(r"^\| `([^`-][^`]*)`", table, re.MULTILINE)
    assert sorted(rows) == sorted(engines)
    tests = "".join(path.read_text() for path in (ROOT / "tests/engines").glob("*.py"))
    assert not [at for at in engines.values() if at.partition(":")[0] not in tests]


def test_generated_parts_are_in_date():
    script = [sys.executable, "scripts/reference.py", "--check"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page, row in {
        "configuration": "| `keep_alive` | `--keep-alive` | `VLLAMA_KEEP_ALIVE`, `OLLAMA_KEEP",
        "commands": "Usage: vllama serve [OPTIONS]",
        "routes": "| `/api/delete` | DELETE | Delete a model. |",
        "metrics": "| `vllama_requests_total` | counter |",
    }.items():
        assert row in (ROOT / "docs" / "reference" / f"{page}.md").read_text()


def test_the_example_of_a_config_file_can_be_used(tmp_path):
    """Each setting of it alone, since some exclude each other."""
    text = (ROOT / "docs" / "reference" / "vllama.toml.example").read_text()
    rows = re.findall(r"^# ((?:\[.+\])|(?:\w+ = .*))$", text, re.MULTILINE)
    table, keys = "", set()
    for row in rows:
        if row.startswith("["):
            table = f"{row}\n"
            continue
        keys.add(row.partition(" ")[0])
        file = tmp_path / "config.toml"
        needed = 'url = "http://127.0.0.1:1"\n' if "upstreams" in table else ""
        file.write_text(table + (row if row.startswith("url") else needed + row))
        try:
            load({}, {"HOME": str(tmp_path)}, file)
        except ConfigError as error:  # of what the example names nothing is here
            assert "/etc/vllama" in error.message or "is not set" in error.message, error
    assert {"host", "keep_alive", "context_length", "url"} <= keys and len(keys) > 80


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="make docs installs mkdocs")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "reference" / "configuration.html").read_text()
    assert "VLLAMA_KEEP_ALIVE" in page
    modules = (tmp_path / "reference" / "python.html").read_text()
    assert "vllama.base.errors" in modules and "generated:" not in modules


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page):
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{target}: no such file"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"{target}: no such heading"


CITED = re.compile(r"docs/((?:guide|reference)/[\w-]+\.md)((?:#[\w-]+(?:,\s+#[\w-]+)*)?)")


def test_every_heading_that_the_code_cites_exists():
    sources = [
        p
        for place in ("vllama", "tests", "bench", "scripts", "examples")
        for p in (ROOT / place).rglob("*.py")
    ]
    cited = {
        (ROOT / "docs" / page, anchor)
        for source in sources
        for page, headings in CITED.findall(source.read_text())
        for anchor in re.findall(r"#([\w-]+)", headings) or [""]
    }
    assert len(cited) > 10
    assert {page for page, _ in cited if not page.exists()} == set()
    assert {(page.name, a) for page, a in cited if a and a not in anchors(page)} == set()


def test_every_decision_is_listed():
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text()
    assert [p.name for p in folder.glob("0*.md") if f"({p.name})" not in listed] == []


def state_diagrams() -> list[set[str]]:
    """Return the states of each diagram of states in architecture.md."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    blocks = re.findall(r"stateDiagram-v2\n(.*?)```", page, re.DOTALL)
    arrow = re.compile(r"^ *(\S+) --> ([^\s:]+)", re.MULTILINE)
    return [{s for pair in arrow.findall(block) for s in pair} - {"[*]"} for block in blocks]


def test_the_diagrams_have_all_states():
    assert state_diagrams() == [set(Phase), set(InstanceState), set(RelayState), set(State)]


@pytest.mark.parametrize(
    ("number", "table"), [(1, instance.TRANSITIONS), (2, relay_types.TRANSITIONS)]
)
def test_a_diagram_has_the_transitions_of_its_table(number, table):
    page = (ROOT / "docs" / "architecture.md").read_text()
    block = re.findall(r"stateDiagram-v2\n(.*?)```", page, re.DOTALL)[number]
    arrows = set(re.findall(r"^ *(\w+) --> (\w+)", block, re.MULTILINE))
    assert arrows == {(state, after) for state, following in table.items() for after in following}


def test_the_rooms_of_the_architecture_are_those_of_the_package():
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("| Room |")[2].partition("\n\n")[0]
    first_cells = "".join(re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE))
    named = {name.rstrip("/") for name in re.findall(r"`([^`]+)`", first_cells)}
    hidden = {"__init__.py", "__main__.py", "_version.py", "__pycache__", "py.typed"}
    # git leaves folders behind in which there is nothing but __pycache__
    rooms = (p for p in (ROOT / "vllama").iterdir() if p.is_file() or any(p.glob("[!_]*")))
    assert named == {room.name for room in rooms} - hidden


def test_the_executors_of_the_architecture_are_those_of_the_program():
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("| Executor |")[2].partition("\n\n")[0]
    named = re.findall(r"^\| `(\w+)` \| (\d+)", table, re.MULTILINE)
    source = (ROOT / "vllama" / "base" / "executors.py").read_text()
    assert named == re.findall(r'= Executor\("(\w+)", threads=(\d+)', source)


PATH = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|md|toml))[`:]")
INTERNAL = [ROOT / "docs" / "architecture.md", *sorted((ROOT / "docs" / "decisions").glob("0*.md"))]


@pytest.mark.parametrize("page", INTERNAL, ids=lambda p: p.name)
def test_every_file_that_is_named_exists(page):
    named = set(PATH.findall(page.read_text()))
    assert [
        n for n in named if not (ROOT / n).exists() and not (ROOT / "vllama" / n).exists()
    ] == []


def test_the_page_of_commands_has_all_exit_codes():
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    classes = [errors.VllamaError, *errors.VllamaError.__subclasses__()]
    for error in classes:
        classes += [sub for sub in error.__subclasses__() if sub not in classes]
    assert codes == {0, INTERRUPTED} | {error.exit_code for error in classes}


def test_documents_install_vllama_in_the_way_that_works_today() -> None:
    script = ROOT / "scripts" / "install_lines.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
