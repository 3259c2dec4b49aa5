"""Write the Grafana dashboard, `deploy/grafana/vllama.json`.

Grafana's own JSON is ten times as long as what it says; this says it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path("deploy/grafana/vllama.json")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24  # of Grafana's grid
HERE = 'instance=~"$instance"'
BY_MODEL = f'{HERE}, model=~"$model"'
OWN = f'{HERE}, model=""'  # of the server itself; with a model they are an engine's


@dataclass(frozen=True)
class Panel:
    """A panel; `queries` are pairs of PromQL and the legend of its series."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    description: str = ""
    width: int = 8
    stacked: bool = False


def rate(metric: str, labels: str = BY_MODEL) -> str:
    """Return the query of a counter's increase per second."""
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def increase(metric: str, labels: str = BY_MODEL) -> str:
    """Return the query of a counter's increase within the interval of the graph."""
    return f"increase({metric}{{{labels}}}[$__rate_interval])"


def sums(query: str, *labels: str) -> str:
    """Return the query of a sum, by labels."""
    return f"sum by ({', '.join(labels)}) ({query})" if labels else f"sum({query})"


def quantiles(metric: str, label: str, labels: str = BY_MODEL) -> tuple[tuple[str, str], ...]:
    """Return the queries of the median and the 95th percentile of a histogram."""
    by = ", ".join(("le", label)) if label else "le"
    shown = f" {{{{{label}}}}}" if label else ""
    series = f"sum by ({by}) ({rate(f'{metric}_bucket', labels)})"
    return tuple(
        (f"histogram_quantile({share}, {series})", f"{name}{shown}")
        for share, name in ((0.5, "median"), (0.95, "95 %"))
    )


def stat(title: str, query: str, unit: str = "short", description: str = "") -> Panel:
    """Return a panel with one large number."""
    return Panel(title, ((query, ""),), unit, "stat", description, width=4)


ERRORS = 'outcome="error", status!~"4.."'
ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Overview",
        (
            stat("Requests per second", sums(rate("vllama_requests_total")), "reqps"),
            stat(
                "Failed requests",
                f"({sums(rate('vllama_requests_total', f'{BY_MODEL}, {ERRORS}'))} or vector(0)) / "
                f"clamp_min({sums(rate('vllama_requests_total'))}, 1e-9)",
                "percentunit",
                "Share of requests that failed for a reason that is not the client's.",
            ),
            stat("Running", sums(f"vllama_num_requests_running{{{BY_MODEL}}}")),
            stat("Waiting", sums(f"vllama_num_requests_waiting{{{BY_MODEL}}}")),
            stat("Generated tokens per second", sums(rate("vllama_generation_tokens_total"))),
            stat(
                "Models ready",
                f'count(vllama_model_state{{{BY_MODEL}, state="ready"}}) or vector(0)',
            ),
            Panel(
                "Requests by outcome",
                ((sums(rate("vllama_requests_total"), "outcome"), "{{outcome}}"),),
                "reqps",
                stacked=True,
            ),
            Panel(
                "Requests by route",
                ((sums(rate("vllama_requests_total"), "route"), "{{route}}"),),
                "reqps",
                stacked=True,
            ),
            Panel(
                "Requests by client",
                ((sums(rate("vllama_requests_total"), "dialect", "key"), "{{dialect}} {{key}}"),),
                "reqps",
                description="By dialect, and by key if the server has keys.",
                stacked=True,
            ),
            Panel(
                "Generated tokens",
                ((sums(rate("vllama_generation_tokens_total"), "model"), "{{model}}"),),
                "short",
                stacked=True,
            ),
            Panel(
                "Prompt tokens",
                (
                    (sums(rate("vllama_prompt_tokens_total"), "model"), "{{model}}"),
                    (
                        sums(rate("vllama_prompt_tokens_cached_total"), "model"),
                        "{{model}} (cached)",
                    ),
                ),
                description="Cached tokens are a part of the prompt tokens.",
            ),
            Panel(
                "Models",
                ((f"vllama_model_state{{{BY_MODEL}}}", "{{model}} {{state}}"),),
                kind="state-timeline",
            ),
        ),
    ),
    (
        "Latency",
        (
            Panel(
                "Time to the first token",
                quantiles("vllama_time_to_first_token_seconds", "model"),
                "s",
                description="From the arrival of a request, with its time in the queue.",
            ),
            Panel(
                "Time per output token",
                quantiles("vllama_request_time_per_output_token_seconds", "model"),
                "s",
            ),
            Panel("Whole answers", quantiles("vllama_e2e_request_latency_seconds", "route"), "s"),
        ),
    ),
    (
        "Queue",
        (
            Panel(
                "Waiting requests",
                ((f"vllama_num_requests_waiting{{{BY_MODEL}}}", "{{model}}"),),
                stacked=True,
            ),
            Panel(
                "Running requests and slots",
                (
                    (f"vllama_num_requests_running{{{BY_MODEL}}}", "{{model}}"),
                    (f"vllama_model_slots{{{BY_MODEL}}}", "{{model}} (slots)"),
                ),
            ),
            Panel(
                "Time in the queue",
                quantiles("vllama_request_queue_time_seconds", "model"),
                "s",
                description="For a slot of the model, or for the model to load.",
            ),
        ),
    ),
    (
        "Memory",
        (
            Panel(
                "Planned",
                ((f"vllama_model_memory_planned_bytes{{{BY_MODEL}}}", "{{model}} {{pool}}"),),
                "bytes",
                stacked=True,
            ),
            Panel(
                "Measured",
                ((f"vllama_model_memory_measured_bytes{{{BY_MODEL}}}", "{{model}} {{pool}}"),),
                "bytes",
                stacked=True,
            ),
            Panel(
                "Free",
                ((f"vllama_memory_free_bytes{{{HERE}}}", "{{pool}}"),),
                "bytes",
                description="Free for models: less the reserve.",
            ),
        ),
    ),
    (
        "Engines",
        (
            Panel("Load time", quantiles("vllama_model_load_time_seconds", "model"), "s", width=6),
            Panel(
                "Loads, unloads and evictions",
                (
                    (increase("vllama_model_load_time_seconds_count"), "load {{model}}"),
                    (increase("vllama_model_unloads_total"), "unload {{model}}"),
                    (increase("vllama_model_evictions_total"), "evict {{model}}"),
                ),
                description="Many evictions mean that models take turns in too little memory.",
                width=6,
            ),
            Panel(
                "Restarts",
                ((increase("vllama_engine_restarts_total"), "{{model}}"),),
                width=6,
            ),
            Panel(
                "KV cache in use (vLLM)",
                ((f"vllm:kv_cache_usage_perc{{{BY_MODEL}}}", "{{model}} {{replica}}"),),
                "percentunit",
                description="From the engine's own metrics.",
                width=6,
            ),
        ),
    ),
    (
        "Failures",
        (
            Panel(
                "Failed requests by reason",
                (
                    (
                        sums(rate("vllama_request_errors_total"), "reason", "status"),
                        "{{reason}} ({{status}})",
                    ),
                ),
                "reqps",
                stacked=True,
            ),
            Panel(
                "Models that failed",
                (
                    (
                        sums(f"vllama_model_failures_total{{{BY_MODEL}}}", "model", "cause"),
                        "{{model}}: {{cause}}",
                    ),
                ),
                description="Since the start of the server.",
            ),
            Panel(
                "Downloads",
                (
                    (rate("vllama_download_bytes_total", HERE), "bytes per second"),
                    (increase("vllama_downloads_total", HERE), "{{outcome}}"),
                ),
            ),
        ),
    ),
    (
        "Server",
        (
            Panel(
                "Lag of the event loop",
                quantiles("vllama_event_loop_lag_seconds", "", HERE),
                "s",
                description="If this grows, the server itself is too busy, or something blocks it.",
                width=6,
            ),
            Panel(
                "CPU",
                ((rate("process_cpu_seconds_total", OWN), "{{instance}}"),),
                description="Cores in use by the server itself, without engines.",
                width=6,
            ),
            Panel(
                "Memory of the server",
                ((f"process_resident_memory_bytes{{{OWN}}}", "{{instance}}"),),
                "bytes",
                width=6,
            ),
            Panel(
                "Open files",
                (
                    (f"process_open_fds{{{OWN}}}", "{{instance}}"),
                    (f"process_max_fds{{{OWN}}}", "{{instance}} (limit)"),
                ),
                width=6,
            ),
        ),
    ),
    (
        "Nodes of a cluster",
        (
            Panel("Nodes that respond", ((f"vllama_node_up{{{HERE}}}", "{{node}}"),), width=6),
            Panel(
                "Requests by node",
                (
                    (f"vllama_node_requests_running{{{HERE}}}", "{{node}} running"),
                    (f"vllama_node_requests_waiting{{{HERE}}}", "{{node}} waiting"),
                ),
                width=6,
            ),
            Panel(
                "Free memory by node",
                ((f"vllama_node_memory_free_bytes{{{HERE}}}", "{{node}} {{pool}}"),),
                "bytes",
                width=6,
            ),
            Panel(
                "Errors by node",
                ((rate("vllama_node_errors_total", HERE), "{{node}}"),),
                "reqps",
                width=6,
            ),
        ),
    ),
)


def make_panel(panel: Panel, id_: int, x: int, y: int) -> dict[str, Any]:
    """Return a panel as Grafana has it."""
    height = 4 if panel.kind == "stat" else 8
    targets = [
        {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": query, "legendFormat": text}
        for number, (query, text) in enumerate(panel.queries)
    ]
    made: dict[str, Any] = {
        "id": id_,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": height},
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
    }
    if panel.kind == "timeseries":
        custom = {"fillOpacity": 10, "showPoints": "never"}
        if panel.stacked:
            custom |= {"stacking": {"mode": "normal"}}
        made["fieldConfig"]["defaults"] |= {"min": 0, "custom": custom}
        made["options"] = {"legend": {"displayMode": "list"}, "tooltip": {"mode": "multi"}}
    return made


def make_panels() -> Iterable[dict[str, Any]]:
    """Yield all rows and panels with their places on the grid."""
    id_, y = 1, 0
    for title, panels in ROWS:
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        yield {"id": id_, "type": "row", "title": title, "gridPos": place, "panels": []}
        id_, x, y, height = id_ + 1, 0, y + 1, 0
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + height
            made = make_panel(panel, id_, x, y)
            height = made["gridPos"]["h"]
            id_, x = id_ + 1, x + panel.width
            yield made
        y += height


def make_variable(name: str, label: str, query: str) -> dict[str, Any]:
    """Return a variable whose values are those of a label; by default all of them."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def make_dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    source = {"name": "datasource", "label": "Data source", "type": "datasource"}
    return {
        "uid": "vllama",
        "title": "vllama",
        "description": "Requests, latency, queues, memory and engines of vllama servers.",
        "tags": ["vllama", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                source | {"query": "prometheus", "current": {}},
                make_variable("instance", "Server", "label_values(vllama_build_info, instance)"),
                make_variable(
                    "model",
                    "Model",
                    'label_values(vllama_requests_total{instance=~"$instance"}, model)',
                ),
            ]
        },
        "annotations": {"list": []},
        "panels": list(make_panels()),
    }


def write_dashboard() -> str:
    """Return the dashboard's text."""
    return json.dumps(make_dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(write_dashboard())
    print(FILE)
