"""`vllama plan`: what `serve` would do with a model, and why, before anything is downloaded."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from vllama import config
from vllama.base.errors import ConfigError, NotEnoughMemory, VllamaError
from vllama.base.units import format_amount as in_memory
from vllama.base.units import format_bytes_decimal
from vllama.cli.context import load_settings, local_library
from vllama.cli.options import AsJson, Flags, model_argument, option, with_settings
from vllama.cli.output import say, say_prose, show_error, show_json, show_table
from vllama.config.parse import whole_path

EXAMPLES = """\
\b
Examples:
  vllama plan smollm2:135m
  vllama plan Qwen/Qwen3-8B --context-length 32768
  vllama plan qwen3:8b nomic-embed-text
  vllama plan llama3.2:3b --json
  vllama plan qwen3:8b --nodes       on the nodes of a cluster
  vllama plan qwen3:8b -- --seed 1   with engine arguments, as for serve
  vllama plan qwen3:32b --gpu "RTX 3060" --ram 32GB     on another machine
"""


@with_settings("engine", "context_length", "gpu_layers", "strict", "inspect")
def plan(
    context: typer.Context,
    flags: Flags,
    models: Annotated[
        list[str], model_argument("Name or path, as for serve; several are planned together.")
    ],
    as_json: AsJson = False,
    on_nodes: Annotated[bool, option("--nodes", "Plan on each node of the cluster.")] = False,
    gpus: Annotated[
        list[str] | None,
        option("--gpu GPU", "Plan for a machine with this GPU ('2x RTX 3090', '24GB')."),
    ] = None,
    ram: Annotated[str | None, option("--ram SIZE", "RAM of that machine.")] = None,
) -> int:
    """Show the plan for loading a model, and the reasons."""
    if on_nodes and (gpus or ram):
        raise ConfigError("cannot use --nodes with --gpu or --ram: nodes use their own hardware")
    if on_nodes:
        from vllama.cli.commands.nodes import plan_on_nodes

        return plan_on_nodes(models, as_json=as_json)
    from vllama.plan.preview import preview_plan
    from vllama.scheduler.room import Room, find_free, plan_together
    from vllama.server.preflight import gather_facts, suppose_machine
    from vllama.server.reload import make_limits

    given = {**flags, "engine_args": context.obj or None}
    settings, codes = load_settings(given), []
    reports: list[dict[str, Any]] = []
    try:
        library, facts = local_library(settings), gather_facts(settings)
        if gpus or ram:
            facts = suppose_machine(facts, gpus or (), ram)
        for model in models:
            try:
                name = whole_path(model)
                reports.append(preview_plan(library, facts, config.environ(), name))
                codes += [NotEnoughMemory.exit_code] if "error" in reports[-1] else []
            except VllamaError as error:
                if len(models) == 1:
                    raise
                reports.append({"model": model, "error": error.message, "hint": error.hint})
                codes.append(error.exit_code)
        free = find_free(facts)
        told = plan_together(reports, Room(free=free, max_loaded=make_limits(facts).max_loaded))
    except VllamaError as error:
        if as_json:
            show_json({"model": ", ".join(models), "error": error.message, "hint": error.hint})
            return error.exit_code
        raise
    if as_json:
        show_json(told if len(models) > 1 else told["models"][0])
        return max(codes, default=0)
    if len(models) > 1:
        show_together(told["models"], told["together"])
    else:
        show(told["models"][0])
    for report in told["models"]:
        if "error" in report:
            show_error(report["error"], report["hint"])
    return max(codes, default=0)


def show_together(reports: Sequence[Mapping[str, Any]], together: Mapping[str, Any]) -> None:
    """Print a row and the reasons for each model, then what they need and what serve will do."""
    from vllama.cli.model_view import format_sections

    needs = [report.get("memory", {}).get("total_bytes", 0) for report in reports]
    loads = [report.get("download_bytes", 0) for report in reports]
    rows = [
        (
            *(report["model"], report.get("quantization") or "", report.get("engine", "")),
            str(report.get("context_length", "")),
            in_memory(need) if need else "",
            format_bytes_decimal(load) if load else "",
        )
        for report, need, load in zip(reports, needs, loads, strict=True)
    ]
    total = ("total", "", "", "", in_memory(sum(needs)), format_bytes_decimal(sum(loads)))
    show_table(("MODEL", "QUANT", "ENGINE", "CONTEXT", "MEMORY", "DOWNLOAD"), [*rows, total])
    sections: list[tuple[str, list[tuple[str, ...]]]] = [
        (report["model"], [(reason,) for reason in report["reasons"]])
        for report in reports
        if "reasons" in report
    ]
    sections += [
        ("Devices", [
            (
                row["device"],
                f"{in_memory(row['takes_bytes'])} needed",
                f"{in_memory(row['free_bytes'])} free",
                f"{in_memory(row['usable_bytes'])} usable",
            )
            for row in together["devices"]
        ]),
        ("Together", [(together["summary"],)]),
    ]  # fmt: skip
    for line in format_sections([(title, rows) for title, rows in sections if rows]):
        say_prose(line)


def list_fallbacks(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the attempts after a failure of the plan, a row for each kind of failure."""
    if result["strict"]:
        return [("no other plan is tried (--strict)",)]
    # the same steps often suit several kinds of failure
    kinds: dict[tuple[str, ...], list[str]] = {}
    for row in result["if_it_fails"].values():
        kinds.setdefault(tuple(row["then"]), []).append(row["when"])
    rows: list[tuple[str, ...]]
    rows = [(f"{', or '.join(when)}: {'; then '.join(then)}",) for then, when in kinds.items()]
    return rows or [("no other plan is possible here",)]


def show(result: Mapping[str, Any]) -> None:
    """Print the report for a person."""
    from vllama.cli.model_view import format_sections

    def mark(row: Mapping[str, Any]) -> str:
        return "→" if row["taken"] else " "

    def size(count: int | None) -> str:
        return format_bytes_decimal(count) if count else ""

    remote = result["format"] == "remote"
    where = "on another server" if remote else "here"
    sections: list[tuple[str, list[tuple[str, ...]]]] = [
        ("Model", [
            ("name", result["model"]),
            ("format", " ".join(filter(None, (result["format"], result["quantization"])))),
            ("to download", size(result["download_bytes"]) or f"nothing; it is {where}"),
        ]),
        ("Platform", [(line,) for line in (result["platform"], *result["platform_notes"])]),
        ("Engines", [
            (mark(row), row["title"], row["version"] or "", row["reason"])
            for row in result["engines"]
        ]),
        ("On the Hugging Face hub", [
            (mark(row), row["repository"], row["quantization"] or "", size(row["size_bytes"]),
             row["reason"])
            for row in result["candidates"]
        ]),
        ("Parameters", [(line,) for line in result["parameters"]]),
        ("Chosen", [(note,) for note in result["notes"]]),
        ("Files", [(row["name"], size(row["size_bytes"])) for row in result["files"]]),
    ]  # fmt: skip
    if "memory" in result:
        memory = result["memory"]
        here: list[tuple[str, list[tuple[str, ...]]]] = [
            ("Needed memory", [
                (name, in_memory(memory[f"{name.replace(' ', '_')}_bytes"]))
                for name in ("weights", "kv cache", "compute", "process", "total")
            ]),
            ("Optional memory", [
                (name, f"up to {in_memory(size)}")
                for name in ("prompt cache", "second copy")
                if (size := memory[f"{name.replace(' ', '_')}_bytes"])
            ]),
            ("Devices", [
                (
                    row["device"],
                    f"{in_memory(row['takes_bytes'])} of {in_memory(row['usable_bytes'])} usable",
                    f"{in_memory(row['total_bytes'])} in total",
                )
                for row in result["devices"]
            ]),
        ]  # fmt: skip
        sections += [] if remote else here
    if now := result["now"]:
        sections += [("Now", [(line,) for line in (now["summary"], now["hint"]) if line])]
    if "error" not in result:
        sections += [
            ("Reasons", [(reason,) for reason in result["reasons"]]),
            ("If that fails", list_fallbacks(result)),
        ]  # fmt: skip
    for line in format_sections([(title, rows) for title, rows in sections if rows]):
        say_prose(line)
    if "error" not in result and result["command"]:
        for line in format_sections([("Command", [(shlex.join(result["command"]),)])]):
            say(line)
