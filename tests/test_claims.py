"""Claims of the guides that name something of the program: numbers, names and messages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from vllama.cli import context
from vllama.cli.commands import service
from vllama.cli.launch.target import ENOUGH_CONTEXT, INTEGRATIONS
from vllama.config import SETTINGS
from vllama.engines.llamacpp import llama_server
from vllama.engines.vllm import arguments, memory
from vllama.lab import compare, judge
from vllama.models.headers import lora
from vllama.models.headers.chat_templates import KNOWN
from vllama.net.web import bodies
from vllama.observe.captures import folder
from vllama.plan import draft_model, fit
from vllama.routes.batches import lane, rows
from vllama.routes.batches import store as batches
from vllama.routes.openai import media
from vllama.routes.server import health
from vllama.scheduler import hooks
from vllama.scheduler.slot_cache import cache, conversations, store
from vllama.targets import monitor
from vllama.targets.nodes import node

ROOT = Path(__file__).parent.parent
GUIDES = {path.stem: path.read_text() for path in (ROOT / "docs" / "guide").glob("*.md")}
PAGES = GUIDES | {name: (ROOT / f"{name}.md").read_text() for name in ("README", "SECURITY")}

NUMBERS = [
    ("batches", f"at most {rows.MAX_ROWS:,} rows and {batches.MAX_FILE_BYTES // 10**6} MB"),
    ("batches", f"at most {rows.MAX_ROW_BYTES >> 20} MiB"),
    ("batches", f"unless {lane.MOST_STOPPED} rows"),
    ("batches", f"{batches.MOST_FILES:,} files and {batches.MOST_RUNNING} unfinished batches"),
    ("batches", f"Beyond {batches.MOST_BATCHES:,} batches"),
    ("cluster", f"after {node.SILENT_S:g} seconds without an event"),
    ("deployment", f"after {service.RESTART_S} s, with no limit"),
    ("deployment", f"`drain_timeout` + {service.STOP_MARGIN_S} s"),
    ("engines", f"and {memory.GPU_CONTEXTS} full contexts (or `--num-parallel`)"),
    ("engines", f"default: {memory.MAX_GPU_SEQUENCES}, on a CPU {memory.MAX_CPU_SEQUENCES}"),
    ("engines", f"at most {memory.MAX_SHARE}"),
    ("engines", f"{memory.CPU_CONTEXTS} full contexts, at most half"),
    ("engines", f"Above {memory.MAX_WHOLE_PROMPT} tokens"),
    ("engines", f"at most {arguments.MAX_LORAS} in parallel"),
    ("engines", f"a rank of at most {lora.MAX_RANK}"),
    ("integrations", f"at least {ENOUGH_CONTEXT:,} tokens"),
    ("measure", f"by more than {compare.WIDE_GAP:g} nat"),
    ("measure", f"by rounding (at most {judge.CLOSE_NUMBERS:.0%}".replace("%", " %")),
    ("measure", f"`--max-kl`, {judge.MAX_KL} nats"),
    ("measure", f"up to {folder.MAX_FOLDER_BYTES >> 30} GiB"),
    ("model-settings", f"wait {hooks.Limits().cool_down_s:g} s or run"),
    ("model-settings", f"`--hang-timeout`, {hooks.Limits().hang_s:g} s"),
    ("models", f"(default {llama_server.DRAFT_TOKENS})"),
    ("models", f"After about {draft_model.TRIAL_TOKENS} tokens"),
    ("models", f"at least\n  {fit.MIN_AUTO_CONTEXT} tokens"),
    ("models", f"does not respond within {context.ASK_LIMIT_S:g} seconds"),
    ("running", f"does not respond within {health.DISK_LIMIT_S:g} s"),
    ("running", f"at least {conversations.LEAST_TOKENS} tokens"),
    ("running", f"after {cache.SILENT_S:g} s without requests"),
    ("running", f"by {conversations.FIRST_MARK:,} tokens"),
    ("running", f"at most {store.MOST_WRITTEN // 1000**3} GB a day"),
    ("running", f"less than {100 * store.LEAST_FREE:g} % of the disk"),
    ("running", f"blocks every {cache.TRIM_S:g} s"),
    ("SECURITY", f"forms ({media.MAX_FORM_BYTES >> 20} MiB)"),
    ("SECURITY", f"{bodies.LEAST_BYTES_PER_S // 1024} KiB per second"),
]
"""Sentences with a number of the program; what happens at the number is tested where it happens."""


@pytest.mark.parametrize(("page", "claim"), NUMBERS)
def test_a_number_is_that_of_the_program(page: str, claim: str) -> None:
    assert claim in PAGES[page]


def list_texts() -> str:
    """Return the texts in the program, those of one string literal on a line."""
    trees = (ast.parse(path.read_text()) for path in (ROOT / "vllama").rglob("*.py"))
    nodes = (each for tree in trees for each in ast.walk(tree))
    texts = (each.value for each in nodes if isinstance(each, ast.Constant))
    return "\n".join(text for text in texts if isinstance(text, str))


def test_messages_are_those_of_the_program() -> None:
    """Compare what stands between the names and numbers of an example."""
    symptoms = re.findall(r"^\| (.*?) \|", GUIDES["troubleshooting"], re.MULTILINE)
    quoted = [text for row in symptoms for text in re.findall(r"`([^`]{15,})`", row)]
    examples = r"…|the engine|'x'|127\.0\.0\.1:11434|\b10 s|NAME|: Permission denied"
    parts = [part.strip(" :'") for text in quoted for part in re.split(examples, text)]
    assert len(parts) > 15
    texts = list_texts()
    assert not [part for part in parts if part not in texts]


def test_variables_of_ollama_are_those_that_settings_read() -> None:
    (part,) = re.findall(r"(?s)These work as in Ollama;.*?vllama passes", GUIDES["from-ollama"])
    read = {each.foreign for each in SETTINGS if (each.foreign or "").startswith("OLLAMA_")}
    assert set(re.findall(r"OLLAMA_\w+", part)) == read | {"OLLAMA_EDITOR"}


def test_metrics_and_variables_of_our_own_exist() -> None:
    reference = ROOT / "docs" / "reference"
    known = "".join((reference / f"{name}.md").read_text() for name in ("metrics", "configuration"))
    text = "\n".join(PAGES.values())
    metrics = set(re.findall(r"\bvllama_\w+?(?=_bucket|_sum|_count|\W)", text))
    missing = {
        each for each in metrics | set(re.findall(r"\bVLLAMA_\w+", text)) if each not in known
    }
    # made by a rule of the guide; read by the installer alone
    assert missing == {"vllama_queue_time_seconds", "VLLAMA_RELEASES_URL"}


def test_tools_and_families_are_all_listed() -> None:
    tools = re.findall(r"^\| `([\w-]+)` \|", GUIDES["integrations"], re.MULTILINE)
    assert sorted(tools) == sorted(each.name for each in INTEGRATIONS)
    (families,) = re.findall(r"The families are (.*?)\. Their", GUIDES["models"], re.DOTALL)
    named = set(re.split(r", | and ", families.replace(" (gpt-oss)", "")))
    assert named == {each.family.partition(",")[0] for each in KNOWN}


def test_probes_and_their_pauses() -> None:
    assert (monitor.RETRY_S, monitor.PROBE_TOKENS) == (1.0, 4)
    assert "Every 1 to 4 s, vllama requests four tokens" in GUIDES["model-settings"]
