"""`vllama plan`: what `serve` would do with a model, and why, before anything is downloaded."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated, Any

from vllama import config
from vllama.base.errors import NotEnoughMemory, VllamaError
from vllama.base.units import format_bytes_binary as in_memory
from vllama.base.units import format_bytes_decimal
from vllama.cli.context import local_library
from vllama.cli.options import AsJson, Flags, model_argument, with_settings
from vllama.cli.output import say, say_prose, show_error, show_json
from vllama.config.parse import whole_path

EXAMPLES = """\
\b
Examples:
  vllama plan smollm2:135m
  vllama plan Qwen/Qwen3-8B --ctx 32768
  vllama plan llama3.2:3b --json
"""


@with_settings("engine", "context_length", "gpu_layers", "strict")
def plan(
    flags: Flags,
    model: Annotated[str, model_argument("Name or path, as for serve.")],
    as_json: AsJson = False,
) -> int:
    """Show what serve would do with a model, and why."""
    from vllama.plan.preview import preview_plan
    from vllama.scheduler.room import Room, add_room, find_free
    from vllama.server.preflight import gather_facts

    settings = config.load(flags, config.environ())
    name = whole_path(model)
    try:
        library, facts = local_library(settings), gather_facts(settings)
        result = preview_plan(library, facts, config.environ(), name)
        free = find_free(facts.platform, facts.reserve_bytes)
        result = add_room(result, Room(free=free))
    except VllamaError as error:
        if as_json:
            show_json({"model": model, "error": error.message, "hint": error.hint})
            return error.exit_code
        raise
    if as_json:
        show_json(result)
    else:
        show(result)
    if "error" not in result:
        return 0
    if not as_json:
        show_error(result["error"], result["hint"])
    return NotEnoughMemory.exit_code


def list_fallbacks(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return what would be tried if the plan failed, a row for each kind of failure."""
    if result["strict"]:
        return [("nothing else is tried (--strict)",)]
    # the same steps often suit several kinds of failure
    kinds: dict[tuple[str, ...], list[str]] = {}
    for row in result["if_it_fails"].values():
        kinds.setdefault(tuple(row["then"]), []).append(row["when"])
    rows: list[tuple[str, ...]]
    rows = [(", or ".join(when), "; then ".join(then)) for then, when in kinds.items()]
    return rows or [("nothing else can be tried here",)]


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
            ("to download", size(result["download_bytes"]) or f"nothing, it is {where}"),
        ]),
        ("Platform", [(result["platform"],)]),
        ("Engines", [
            (mark(row), row["title"], row["version"] or "", row["reason"])
            for row in result["engines"]
        ]),
        ("On the hub", [
            (mark(row), row["repository"], row["quantization"] or "", size(row["size_bytes"]),
             row["reason"])
            for row in result["candidates"]
        ]),
        ("Chosen", [(note,) for note in result["notes"]]),
        ("Files", [(row["name"], size(row["size_bytes"])) for row in result["files"]]),
    ]  # fmt: skip
    if "memory" in result:
        memory = result["memory"]
        kind = "GPU memory" if memory["device"] == "gpu" else "memory"
        here: list[tuple[str, list[tuple[str, ...]]]] = [
            (f"Needed {kind}", [
                (name.removesuffix("_bytes").replace("_", " "), in_memory(memory[name]))
                for name in memory if name != "device"
            ]),
            ("Devices", [
                (
                    row["device"],
                    f"{in_memory(row['takes_bytes'])} of {in_memory(row['usable_bytes'])} usable",
                    f"{in_memory(row['total_bytes'])} in all",
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
