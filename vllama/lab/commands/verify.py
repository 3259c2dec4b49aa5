"""`vllama verify`: do two engines give the same answers?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from vllama.base.errors import ConfigError, ModelNotFound
from vllama.cli.context import load_settings, local_library
from vllama.cli.options import AsJson, MaxKl, model_argument, option
from vllama.cli.output import say, show_json, show_table
from vllama.config import Config
from vllama.config.parse import whole_path
from vllama.lab.compare import compare
from vllama.lab.judge import MAX_KL, judge_engines
from vllama.lab.own_server import fail_as_undecided, open_own_server
from vllama.lab.verify_report import COLUMNS, report, table
from vllama.observe.captures.answer import Answer

EXAMPLES = """\
\b
Examples:
  vllama verify smollm2:135m --engines llama-cpp-python,llama-server
  vllama verify --engines transformers=Qwen/Qwen3-0.6B,llama-server=qwen3:0.6b
  vllama verify --engines llama-server=./m-Q4_0.gguf,llama-server=./m-Q8_0.gguf --min-agreement 0.8
  vllama verify smollm2:135m --engines llama-cpp-python,llama-server --prompts mine.jsonl --json

Each engine is started in turn by a server of its own, and answers the same prompts, greedily. The
exit code is 0 if they agree, 1 if they do not, 3 if they cannot be compared. They agree if their
probabilities do (--max-kl), or, where an engine returns none, their texts (--min-agreement).
"""

MAX_TOKENS = 32
CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: an engine's name and what it serves."""

    engine: str
    model: str


def verify(
    model: Annotated[str | None, model_argument("Name or path, as for serve.")] = None,
    engines: Annotated[
        str,
        option(
            "--engines A,B",
            "The two to compare; ENGINE=MODEL for one that takes another form of the model.",
        ),
    ] = "",
    file: Annotated[
        typer.FileBinaryRead | None,
        option(
            "--prompts FILE",
            "Prompts to use: one a line, JSON lines, or a JSON array; - for stdin. [a set of 8]",
        ),
    ] = None,
    max_tokens: Annotated[
        int, option("--max-tokens N", "Tokens of each answer.", min=1)
    ] = MAX_TOKENS,
    context: Annotated[int, option("--ctx N", "Context in tokens.", min=1)] = CONTEXT,
    min_agreement: Annotated[
        float | None,
        option(
            "--min-agreement SHARE",
            "Share of the text that has to be the same. "
            "[0.5 where an engine returns no log probabilities]",
            min=0,
            max=1,
        ),
    ] = None,
    max_kl: MaxKl = MAX_KL,
    as_json: AsJson = False,
) -> int:
    """Check whether two engines give the same answers."""
    from vllama.lab.asker import BUILT_IN, parse_prompts

    sides = parse_sides(engines, model)
    prompts = parse_prompts(file.read(), getattr(file, "name", "-")) if file else BUILT_IN
    settings = load_settings()
    with fail_as_undecided():
        described = check(settings, sides, context)
        a, b = (ask_side(side, prompts, max_tokens=max_tokens, context=context) for side in sides)
    found = [compare(*pair) for pair in zip(a, b, strict=True)]
    agrees, reason = judge_engines(found, min_agreement=min_agreement, max_kl=max_kl)
    result = {
        "ok": agrees,
        "reason": reason,
        "engines": described,
        "max_tokens": max_tokens,
        "min_agreement": min_agreement,
        "max_kl": max_kl,
        **report(prompts, a, b, found),
    }
    if as_json:
        show_json(result)
    else:
        show(result)
    return 0 if agrees else 1


def parse_sides(engines: str, model: str | None) -> tuple[Side, Side]:
    """Read `A,B`, each with or without `=MODEL`. Raises ConfigError."""
    parts = [part.strip() for part in engines.split(",") if part.strip()]
    if len(parts) != 2:
        named = f"'{engines}' names {len(parts)}" if parts else "none is named"
        raise ConfigError(
            f"cannot compare engines: two are needed, and {named}",
            hint="name two: --engines llama-cpp-python,llama-server",
        )
    sides = []
    for part in parts:
        engine, _, own = part.partition("=")
        chosen = own.strip() or model
        if not chosen:
            raise ConfigError(
                f"cannot verify with {engine}: no model is named",
                hint=f"name one for both (vllama verify MODEL …), or {engine}=MODEL",
            )
        sides.append(Side(engine.strip(), chosen))
    return sides[0], sides[1]


def check(settings: Config, sides: Sequence[Side], context: int) -> list[dict[str, Any]]:
    """Describe engines and models; raise what speaks against one before any is started.

    A model that is still to be downloaded is left to the server that does it.
    """
    from vllama.plan.choose import choose_engine, make_plan
    from vllama.plan.types import Need
    from vllama.server.preflight import check_model, gather_facts

    facts, library = gather_facts(settings), local_library(settings)
    described = []
    for side in sides:
        own = replace(settings, engine=side.engine, context_length=context, num_parallel=1)
        one = replace(facts, settings=own)
        chosen = choose_engine(one)
        row = {
            "engine": side.engine,
            "title": facts.found.engines[chosen.engine].title,
            "version": chosen.installation.version,
            "model": side.model,
            "format": None,
            "quantization": None,
        }
        model = whole_path(side.model)
        check_model(library, model)
        try:
            bundle = library.find(model)
        except ModelNotFound:
            pass
        else:
            info = library.info(bundle)
            make_plan(one, bundle, info, Need())
            row |= {"format": str(bundle.format), "quantization": bundle.quant or info.quant}
        described.append(row)
    return described


def ask_side(side: Side, prompts: Sequence[str], *, max_tokens: int, context: int) -> list[Answer]:
    """Start an engine, have it answer all prompts, end it. Raises VllamaError."""
    from vllama.lab.asker import Asker

    answers: list[Answer] = []
    with open_own_server(
        side.model,
        engine=side.engine,
        purpose=f"verify with {side.engine}",
        label=side.engine,
        context_length=context,
    ) as server:
        asker = Asker(server.client.post, side.model, max_tokens)
        for number, prompt in enumerate(prompts, 1):
            server.show(f"prompt {number} of {len(prompts)}")
            answers.append(asker.ask(prompt))
        more = "" if any(answer.tokens for answer in answers) else ", without log probabilities"
        server.note(f"{len(prompts)} prompts answered{more}")
    return answers


def show(result: Mapping[str, Any]) -> None:
    """Print the table, and below it what it means."""
    for letter, one in zip("ab", result["engines"], strict=True):
        form = " ".join(str(one[key]) for key in ("format", "quantization") if one[key])
        model = f"{one['model']} ({form})" if form else one["model"]
        say(f"{letter}: {one['title']} {one['version']}, {model}")
    say()
    show_table(COLUMNS, table(result))
    say()
    verdict = "They agree" if result["ok"] else "They do NOT agree"
    say(f"{verdict}: {result['reason']}.")
