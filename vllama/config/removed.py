"""Commands, options and settings that version 0.2 removed or renamed, and what to use instead.

Only names that nothing else has are looked up here. Each advice follows "… was removed; ". The
table goes with the next minor version.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from vllama.base.errors import ConfigError
from vllama.base.setting import ENV_PREFIX
from vllama.base.spelling import find_similar, suggest
from vllama.base.toml_lines import write_keys

RAY = "list the nodes with 'vllama serve --node http://HOST:11434', or in the setting nodes"
RANKS = "for a GGUF, use rpc; for vLLM, use its own launcher, and add '--upstream URL'"
BACKUP = "stop the server and archive its folders with tar; see docs/guide/backup.md"
BISECT = "replay a request with each: 'vllama replay ID --engine NAME --set KEY=VALUE'"
DRAFT_AUTO = 'specify the model: draft = "qwen3:0.6b"'
HELM = "use the chart's own values; see deploy/helm/vllama/values.yaml"
MACHINE = "run 'vllama plan' on the machine itself"
SEARCH = "let the app search the web; /api/web_search is not available here"
TRAITS = 'use [upstreams.NAME] with url and traits, or [models."NAME"] traits for one model'
WRITES = "the cache writes at most 50 GB per day"

COMMANDS = {
    "bisect": BISECT,
    "export": BACKUP,
    "import": f"{BACKUP}; unpack an archive of 'vllama export' with tar too",
    "join": RAY,
    "vectors": "use a file: 'vllama inspect MODEL PROMPT --steer FILE@15=0.3'",
}

OPTIONS = {
    ("plan", "--helm-values"): HELM,
    ("plan", "--for-nodes"): "run 'vllama plan --nodes' on the head of a cluster",
    ("plan", "--gpus-per-node"): MACHINE,
    ("plan", "--gpu-memory"): MACHINE,
    ("serve", "--cache-disk-writes-per-day"): WRITES,
    ("serve", "--cluster"): RAY,
    ("serve", "--ray-address"): RAY,
    ("serve", "--searxng"): SEARCH,
    ("service", "status"): "run 'systemctl --user status vllama'; on macOS "
    "'launchctl print gui/$UID/vllama'",
    ("service", "logs"): "run 'journalctl --user --unit vllama'; on macOS 'vllama logs'",
}
"""Options and actions by command; typing one is an error."""

SETTINGS = {
    "batch_files_per_key": "each key can use a quarter of batch_files",
    "cache_disk_writes_per_day": WRITES,
    "cluster": RAY,
    "debug_log_requests": "set capture = 100 and see 'vllama requests'",
    "max_answer_size": "the limit for a response without streaming is 128 MiB",
    "node_weights": "the head chooses nodes by load",
    "ray_address": RAY,
    "releases_url": "set the variable VLLAMA_RELEASES_URL",
    "searxng": SEARCH,
    "upstream_traits": TRAITS,
}

VARIABLES = {"OLLAMA_DEBUG_LOG_REQUESTS": SETTINGS["debug_log_requests"]}
"""Variables besides those of the removed settings."""

MODEL_FIELDS = {"machines": RANKS}

RENAMED_FIELDS = {"context": "context_length", "parallel": "num_parallel"}
"""Fields of the tables of models and upstreams: each has the name of the setting for all."""

RENAMED_OPTIONS = {"--ctx": "--context-length", "--parallel": "--num-parallel"}

ELSEWHERE = {
    **dict.fromkeys(("ctx", "ctx_size", "n_ctx", "num_ctx", "max_model_len"), "context_length"),
    **dict.fromkeys(("ngl", "n_gpu_layers", "num_gpu"), "gpu_layers"),
    **dict.fromkeys(("max_num_seqs", "np", "n_parallel"), "num_parallel"),
    **dict.fromkeys(("num_predict", "n_predict"), "max_tokens"),
    **dict.fromkeys(("num_thread", "n_threads"), "threads"),
    **dict.fromkeys(("model_draft", "draft_model"), "draft"),
    "model": "models", "upstream": "upstreams",
}  # fmt: skip
"""Names that other programs and habits have for settings, for hints."""

REFUSED = frozenset({"cluster", "ray_address", "machines"})
"""Settings and fields without which a different server would start: these are errors."""

LEFTOVERS = {
    "bisect": "engines of bisections",
    "cluster": "files of a Ray cluster",
    "vectors": "steering vectors",
}
"""Folders below the data folder, with their content; `vllama doctor` lists them."""

REQUEST_LOG = "requests"
"""Folder of logged requests, below the folder of logs."""

Place = Callable[[Sequence[str]], str]
"""Where the value at some keys is, with its line in a file."""


def is_removed(name: str) -> bool:
    """Return whether this is the variable of a removed setting."""
    return name.removeprefix(ENV_PREFIX).lower() in SETTINGS


def list_removed(
    entries: Collection[str], place: Place, environ: Mapping[str, str]
) -> Iterator[str]:
    """Yield a warning for each removed setting in a file's entries and in variables.

    Raises ConfigError for a setting without which another server would start.
    """
    for key, advice in SETTINGS.items():
        if key in entries:
            yield _warn((key,), place((key,)), advice)
        name = ENV_PREFIX + key.upper()
        if environ.get(name):
            yield _warn((key,), name, advice)
    for name, advice in VARIABLES.items():
        if environ.get(name):
            yield f"{name} has no effect: it was removed; {advice}"


def suggest_setting(name: str, known: Collection[str], otherwise: str | None = None) -> str:
    """Return the hint for a name that is not among those of the settings or fields."""
    others = {one: key for one, key in {**RENAMED_FIELDS, **ELSEWHERE}.items() if key in known}
    near = find_similar(name.replace("-", "_"), [*known, *others], most=1)
    return suggest(others.get(near[0], near[0]) if near else name, known, otherwise)


def find_present(name: str) -> str | None:
    """Return the present name of what other tools, or earlier versions, call nearly so."""
    others = {**RENAMED_FIELDS, **ELSEWHERE}
    near = find_similar(name, others, most=1)
    return others[near[0]] if near else None


def renew(kind: str, tables: Any, place: Place) -> Iterator[str]:
    """Bring tables of models or upstreams up to date, and yield a notice for each old field.

    Renamed fields get their new names, removed ones go. Raises ConfigError as `list_removed` does.
    """
    for name, table in tables.items() if isinstance(tables, dict) else ():
        for path, fields in (((kind, name), table), ((kind, name, "traits"), _get_traits(table))):
            for key, value in list(fields.items()) if isinstance(fields, dict) else ():
                advice = MODEL_FIELDS.get(key) if kind == "models" else None
                if key == "draft" and str(value).strip().lower() == "auto":
                    advice = DRAFT_AUTO
                if advice:
                    del fields[key]
                    yield _warn((*path, key), place((*path, key)), advice)
                elif new := RENAMED_FIELDS.get(key):
                    fields.setdefault(new, fields.pop(key))
                    where = f"{write_keys((*path, key))} from {place((*path, key))}"
                    yield f"{where} is now called {new}"


def _get_traits(table: Any) -> Any:
    return table.get("traits") if isinstance(table, dict) else None


def _warn(path: Sequence[str], where: str, advice: str) -> str:
    name = f"{write_keys(path)} from {where}"
    if path[-1] in REFUSED:
        raise ConfigError(f"cannot use {name}: it was removed", hint=advice)
    what = '"auto"' if path[-1] == "draft" else "it"
    return f"{name} has no effect: {what} was removed; {advice}"
