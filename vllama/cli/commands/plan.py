"""`vllama plan`: what `serve` would do with a model, and why, before anything is downloaded."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

from vllama.cli.options import AsJson, Flags, model_argument, with_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllama.config import Config
    from vllama.models.library import Library
    from vllama.models.resolve.search import Resolution
    from vllama.plan.types import Facts

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
    from vllama import config
    from vllama.cli.context import local_library
    from vllama.cli.output import show_error, show_json
    from vllama.config.parse import whole_path
    from vllama.errors import NotEnoughMemory, VllamaError
    from vllama.server.preflight import gather_facts

    settings = config.load(flags, config.environ())
    name = whole_path(model)
    try:
        result = describe_plan(local_library(settings), settings, gather_facts(settings), name)
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


def describe_plan(library: Library, settings: Config, facts: Facts, model: str) -> dict[str, Any]:
    """Plan for a model on this disk, or for what a pull would get. Raises what a pull raises."""
    from vllama import config
    from vllama.api.models import resolve_model
    from vllama.hardware.detect import describe
    from vllama.models.library import make_too_large_error
    from vllama.models.ref import ModelRef
    from vllama.plan.quant_fallback import list_forms_here
    from vllama.plan.report import make_report, report_plan

    environ = config.environ()
    resolved = resolve_model(library, settings, facts, model)
    bundle, found = resolved.bundle, resolved.resolution
    if found is None:
        return report_plan(
            facts, bundle, library.info(bundle), environ, forms=list_forms_here(library, bundle)
        )
    more: dict[str, Any] = {
        "files": list_files(found),
        "candidates": list_candidates(found),
        "notes": found.notes,
    }
    if found.shortage is None:
        return report_plan(facts, bundle, library.look_into(found), environ, **more)
    refusal = make_too_large_error(ModelRef.parse(model), found, found.shortage, to_load=True)
    platform = describe(facts.platform)
    return make_report(facts, bundle, refusal, platform=platform, environ=environ, **more)


def list_files(found: Resolution) -> list[dict[str, Any]]:
    """Return name and size of each file to download."""
    return [
        {"name": file.path, "size_bytes": file.size_bytes, "here": False}
        for file in found.variant.files
    ]


def list_candidates(found: Resolution) -> list[dict[str, Any]]:
    """Return the candidates on the hub, with the reasons for and against each."""
    return [
        {
            "repository": one.hub_id,
            "quantization": one.quant,
            "size_bytes": one.variant.size_bytes if one.variant else None,
            "taken": one.taken,
            "reason": one.reason,
        }
        for one in found.candidates
    ]


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
    from vllama.cli.output import say
    from vllama.units import format_bytes_binary as in_memory
    from vllama.units import format_bytes_decimal

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
    if "error" not in result:
        memory = result["memory"]
        kind = "GPU memory" if memory["device"] == "gpu" else "memory"
        here: list[tuple[str, list[tuple[str, ...]]]] = [
            (f"Takes of the {kind}", [
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
        sections += [
            ("Because", [(reason,) for reason in result["reasons"]]),
            ("If that fails", list_fallbacks(result)),
            ("Command", [(shlex.join(result["command"]),)] if result["command"] else []),
        ]  # fmt: skip
    for line in format_sections([(title, rows) for title, rows in sections if rows]):
        say(line)
