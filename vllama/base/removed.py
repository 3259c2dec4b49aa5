"""Commands, options and settings that version 0.2 removed, and what to use instead.

Only names that nothing else has are looked up here. Each advice follows "… was removed; ". The
table goes with the next minor version.
"""

from __future__ import annotations

RAY = "list the nodes with 'vllama serve --node http://HOST:11434', or in the setting nodes"
RANKS = "start the engine across machines by its own means, and name it with '--upstream URL'"
BACKUP = "stop the server and archive its folders with tar; see docs/guide/backup.md"
BISECT = "replay a request with each: 'vllama replay ID --engine NAME --set KEY=VALUE'"
DRAFT_AUTO = 'name the model: draft = "qwen3:0.6b"'
HELM = "write the chart's own values; see deploy/helm/vllama/values.yaml"
MACHINE = "run 'vllama plan' on the machine itself"
SEARCH = "let the app search the web; /api/web_search answers that it is unavailable here"
TRAITS = 'write [upstreams.NAME] with url and traits, or [models."NAME"] traits for one model'
WRITES = "the cache writes at most 50 GB a day"

COMMANDS = {
    "bisect": BISECT,
    "export": BACKUP,
    "import": f"{BACKUP}; unpack an archive of 'vllama export' with tar as well",
    "join": RAY,
    "vectors": "pass the file: 'vllama inspect MODEL PROMPT --steer FILE@15=0.3'",
}

OPTIONS = {
    ("plan", "--helm-values"): HELM,
    ("plan", "--for-nodes"): "run 'vllama plan --nodes' beside the head of a cluster",
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
    "batch_files_per_key": "one key may use a quarter of batch_files",
    "cache_disk_writes_per_day": WRITES,
    "cluster": RAY,
    "debug_log_requests": "set capture = 100 and see 'vllama requests'",
    "max_answer_size": "a response that is not streamed may have 128 MiB",
    "node_weights": "the head chooses by load",
    "ray_address": RAY,
    "releases_url": "set the variable VLLAMA_RELEASES_URL",
    "searxng": SEARCH,
    "upstream_traits": TRAITS,
}

VARIABLES = {"OLLAMA_DEBUG_LOG_REQUESTS": SETTINGS["debug_log_requests"]}
"""Variables besides those of the removed settings."""

MODEL_FIELDS = {"machines": RANKS}

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
