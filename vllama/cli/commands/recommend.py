"""`vllama recommend`: well-known models, and how each would run on this machine."""

from __future__ import annotations

from typing import Annotated

from vllama.base.units import format_bytes_binary, format_bytes_decimal
from vllama.cli.context import load_settings
from vllama.cli.options import AsJson, option
from vllama.cli.output import say, say_prose, show_json, show_table

EXAMPLES = """\
\b
Examples:
  vllama recommend
  vllama recommend --for code
  vllama recommend --gpu "RTX 3060" --ram 32GB     for another machine
  vllama recommend --json
"""
COLUMNS = ("MODEL", "GOOD FOR", "QUANT", "DOWNLOAD", "CONTEXT", "MEMORY", "RUNS ON")


def recommend(
    use: Annotated[
        str | None,
        option("--for USE", "Only models for chat, code, tools, vision, thinking or embeddings."),
    ] = None,
    all_models: Annotated[bool, option("--all", "Include models that are too large.")] = False,
    gpus: Annotated[
        list[str] | None,
        option("--gpu GPU", "For a machine with this GPU ('2x RTX 3090', '24GB')."),
    ] = None,
    ram: Annotated[str | None, option("--ram SIZE", "RAM of that machine.")] = None,
    as_json: AsJson = False,
) -> int:
    """Recommend models that suit this machine."""
    from vllama.plan.recommend import (
        AS_OF,
        EMBEDDINGS,
        SLOW_BYTES,
        check_use,
        list_recommendations,
    )
    from vllama.server.preflight import gather_facts, suppose_machine

    check_use(use)
    facts = gather_facts(load_settings())
    if gpus or ram:
        facts = suppose_machine(facts, gpus or (), ram)
    rows = [row for row in list_recommendations(facts) if use is None or use in row.uses]
    if as_json:
        show_json({"as_of": AS_OF, "models": rows})
        return 0
    shown = [row for row in rows if all_models or row.fit != "too large"]
    show_table(COLUMNS, [
        (
            row.model,
            ", ".join(row.uses),
            row.quantization,
            format_bytes_decimal(row.download_bytes),
            str(row.context_length),
            format_bytes_binary(row.memory_bytes),
            f"{row.where} (slow)" if row.fit == "slow" else row.where,
        )
        for row in shown
    ], optional=("QUANT", "GOOD FOR"))  # fmt: skip
    say()
    if not any(row.fit == "fits" for row in rows):
        say_prose("None of these models runs well on this machine.")
    elif shown:
        verb = "pull" if EMBEDDINGS in shown[0].uses else "run"
        say_prose(f"To use the first one: vllama {verb} {shown[0].model}")
    say_prose("MEMORY is the memory that the model needs at the context length in CONTEXT.")
    if any(row.fit == "slow" for row in shown):
        most = format_bytes_decimal(SLOW_BYTES)
        say_prose(f"Slow: the CPU reads more than {most} of RAM for each token.")
    if left_out := len(rows) - len(shown):
        say_prose(f"Too large for this machine: {left_out} (--all lists them).")
    say_prose(f"Model list as of {AS_OF}. For other models: vllama plan NAME")
    return 0
