"""`vllama plan`: what `serve` would do with a model, and why, before gigabytes move."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

from vllama.cli.parameters import AsJson, model_argument
from vllama.cli.setting_options import Flags, with_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllama.config import Config
    from vllama.models.library import Library
    from vllama.models.resolve import Resolution
    from vllama.models.types import Bundle

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
    """Tell what serve would do with a model, and why."""
    from vllama import config
    from vllama.cli.context import local_library
    from vllama.cli.output import show_error, show_json
    from vllama.config.parse import whole_path
    from vllama.errors import NotEnoughMemory

    loaded = config.load(flags, config.environ())
    told = told_of(local_library(loaded), loaded, whole_path(model))
    if as_json:
        show_json(told)
    else:
        show(told)
    if "error" not in told:
        return 0
    if not as_json:
        show_error(told["error"], told["hint"])
    return NotEnoughMemory.exit_code


def told_of(books: Library, loaded: Config, model: str) -> dict[str, Any]:
    """Plan for a model that is here, or for what a pull would fetch. Raises what a pull raises."""
    from vllama import config
    from vllama.errors import ModelNotFound
    from vllama.hardware.detect import describe
    from vllama.models.library import too_large
    from vllama.models.ref import ModelRef
    from vllama.plan.choose import preferred_formats
    from vllama.plan.fitting import FitsHere
    from vllama.plan.quant_fallback import forms_here
    from vllama.plan.report import report, tell
    from vllama.server.preflight import gather_facts

    facts, environ = gather_facts(loaded), config.environ()
    try:
        bundle = books.find(model)
        return tell(facts, bundle, books.info(bundle), environ, forms=forms_here(books, bundle))
    except ModelNotFound as missing:
        try:
            found = books.look_up(model, formats=preferred_formats(facts), fits=FitsHere(facts))
        except ModelNotFound:
            raise missing from None
    bundle = to_come(loaded, found)
    more: dict[str, Any] = {
        "files": file_rows(found),
        "candidates": candidate_rows(found),
        "notes": found.notes,
    }
    if found.shortage is None:
        return tell(facts, bundle, books.look_into(found), environ, **more)
    refusal = too_large(ModelRef.parse(model), found, found.shortage, to_load=True)
    platform = describe(facts.platform)
    return report(facts, bundle, refusal, platform=platform, environ=environ, **more)


def to_come(loaded: Config, found: Resolution) -> Bundle:
    """Return what a pull would make, as if it were here."""
    from vllama import config
    from vllama.models.hub_cache import HubRepo
    from vllama.models.ref import ModelRef
    from vllama.models.types import Bundle, Format

    repository, variant = found.repository, found.variant
    repo = HubRepo(config.models_settings(loaded).hf_cache_dir, repository.hub_id)
    folder = repo.snapshot(repository.commit)
    files = tuple(folder / file.path for file in variant.files)
    return Bundle(
        name=ModelRef.of_hub(repository.hub_id, variant.label).display,
        store="hub",
        format=variant.format,
        path=files[0] if variant.format is Format.GGUF else folder,
        files=files,
        size_bytes=variant.size_bytes,
        digest="",
        modified_s=0.0,
        quant=variant.quant,
        hub_id=repository.hub_id,
    )


def file_rows(found: Resolution) -> list[dict[str, Any]]:
    """Return name and size of each file that would be fetched."""
    return [
        {"name": file.path, "size_bytes": file.size_bytes, "here": False}
        for file in found.variant.files
    ]


def candidate_rows(found: Resolution) -> list[dict[str, Any]]:
    """Return what was looked at on the hub, with the reasons."""
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


def failing_rows(told: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return what would be tried if the plan failed, a row for each kind of failure."""
    if told["strict"]:
        return [("nothing else is tried (--strict)",)]
    # most often the same steps suit several kinds of failure
    kinds: dict[tuple[str, ...], list[str]] = {}
    for row in told["if_it_fails"].values():
        kinds.setdefault(tuple(row["then"]), []).append(row["when"])
    rows: list[tuple[str, ...]]
    rows = [(", or ".join(when), "; then ".join(then)) for then, when in kinds.items()]
    return rows or [("nothing else can be tried here",)]


def show(told: Mapping[str, Any]) -> None:
    """Print the report for a person."""
    from vllama.cli.model_view import section_lines
    from vllama.cli.output import say
    from vllama.units import format_bytes_binary as in_memory
    from vllama.units import format_bytes_decimal

    def mark(row: Mapping[str, Any]) -> str:
        return "→" if row["taken"] else " "

    def size(count: int | None) -> str:
        return format_bytes_decimal(count) if count else ""

    remote = told["format"] == "remote"
    where = "on another server" if remote else "here"
    sections: list[tuple[str, list[tuple[str, ...]]]] = [
        ("Model", [
            ("name", told["model"]),
            ("format", " ".join(str(told[key]) for key in ("format", "quantization") if told[key])),
            ("to download", size(told["download_bytes"]) or f"nothing, it is {where}"),
        ]),
        ("Platform", [(told["platform"],)]),
        ("Engines", [
            (mark(row), row["title"], row["version"] or "", row["reason"])
            for row in told["engines"]
        ]),
        ("On the hub", [
            (mark(row), row["repository"], row["quantization"] or "", size(row["size_bytes"]),
             row["reason"])
            for row in told["candidates"]
        ]),
        ("Chosen", [(note,) for note in told["notes"]]),
        ("Files", [(row["name"], size(row["size_bytes"])) for row in told["files"]]),
    ]  # fmt: skip
    if "error" not in told:
        memory = told["memory"]
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
                for row in told["devices"]
            ]),
        ]  # fmt: skip
        sections += [] if remote else here
        sections += [
            ("Because", [(reason,) for reason in told["reasons"]]),
            ("If that fails", failing_rows(told)),
            ("Command", [(shlex.join(told["command"]),)] if told["command"] else []),
        ]  # fmt: skip
    for line in section_lines([(title, rows) for title, rows in sections if rows]):
        say(line)
