"""`vllama verify`: do two engines give the same answers?

What it reports over all prompts is made as values for a program, and of them the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Annotated, Any

import typer

from vllama.base.errors import ConfigError
from vllama.cli.context import load_settings, local_library
from vllama.cli.options import AsJson, MaxKl, model_argument, option
from vllama.cli.output import say, show_json, show_table
from vllama.config import Config
from vllama.config.engine_settings import EnginePaths
from vllama.config.parse import whole_path
from vllama.lab.capture_view import flatten
from vllama.lab.compare import Comparison, compare, measure
from vllama.lab.judge import MAX_KL, judge_engines, percent
from vllama.lab.own_server import fail_as_undecided, open_own_server
from vllama.machine.environments.layout import name_version
from vllama.observe.captures.answer import Response

EXAMPLES = """\
\b
Examples:
  vllama verify smollm2:135m --engines llama-cpp-python,llama-server
  vllama verify --engines transformers=Qwen/Qwen3-0.6B,llama-server=qwen3:0.6b
  vllama verify --engines llama-server=./m-Q4_0.gguf,llama-server=./m-Q8_0.gguf --min-agreement 0.8
  vllama verify smollm2:135m --engines llama-cpp-python,llama-server --prompts mine.jsonl --json

Each engine runs in turn on a new server, and completes the same prompts with greedy sampling. The
exit code is 0 if they agree, 1 if they do not, 3 if they cannot be compared. They agree if their
probabilities do (--max-kl), or, if an engine returns none, their texts (--min-agreement).
"""

MAX_TOKENS = 32
CONTEXT = 4096
COLUMNS = ("PROMPT", "AGREED", "FIRST DIFFERENCE", "|ΔLOGPROB|", "MAX", "KL")
NOTHING = "-"
SHOWN = 32
"""How many characters of a prompt the table shows."""
SHOWN_OF_ANSWER = 16
Responses = Sequence[Response]


@dataclass(frozen=True, slots=True)
class Peer:
    """One of the two: an engine's name and what it serves."""

    engine: str
    model: str


def verify(
    model: Annotated[str | None, model_argument("Name or path, as for serve.")] = None,
    engines: Annotated[
        str, option("--engines A,B", "Two of ENGINE, ENGINE@VERSION or ENGINE=MODEL.")
    ] = "",
    file: Annotated[
        typer.FileBinaryRead | None,
        option("--prompts FILE", "Prompts as lines, JSON lines or a JSON array. [a set of 8]"),
    ] = None,
    max_tokens: Annotated[
        int, option("--max-tokens N", "Tokens per response.", min=1)
    ] = MAX_TOKENS,
    context: Annotated[
        int, option("--context-length N", "Context length in tokens.", min=1)
    ] = CONTEXT,
    min_agreement: Annotated[
        float | None,
        option(
            "--min-agreement SHARE",
            "Minimum share of identical text. [0.5 without log probabilities]",
            min=0,
            max=1,
        ),
    ] = None,
    max_kl: MaxKl = MAX_KL,
    as_json: AsJson = False,
) -> int:
    """Check whether two engines give the same responses."""
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


def parse_sides(engines: str, model: str | None) -> tuple[Peer, Peer]:
    """Read `A,B`, each with or without `=MODEL`. Raises ConfigError."""
    parts = [part.strip() for part in engines.split(",") if part.strip()]
    if len(parts) != 2:
        named = f"'{engines}' names {len(parts)}" if parts else "none specified"
        raise ConfigError(
            f"cannot compare engines: two are required, {named}",
            hint="name two engines: --engines llama-cpp-python,llama-server",
        )
    sides = []
    for part in parts:
        engine, _, own = part.partition("=")
        chosen = own.strip() or model
        if not chosen:
            raise ConfigError(
                f"cannot verify with {engine}: no model specified",
                hint=f"specify one for both (vllama verify MODEL …), or {engine}=MODEL",
            )
        sides.append(Peer(engine.strip(), chosen))
    return sides[0], sides[1]


def find_version(settings: Config, engine: str) -> tuple[str, EnginePaths]:
    """Return an engine's name, and where engines are: ENGINE@VERSION has a folder of its own."""
    name, at, version = engine.partition("@")
    if not at:
        return name, settings.engine_paths
    others = (each for each in settings.engine_paths if each[0] != name)
    return name, (*others, (name, name_version(settings.data_dir / "environments", name, version)))


def check(settings: Config, sides: Sequence[Peer], context: int) -> list[dict[str, Any]]:
    """Describe engines and models; raise what speaks against one before any is started.

    A model that is still to be downloaded is left to the server that does it.
    """
    from vllama.plan.choose import choose_engine, make_plan
    from vllama.plan.types import Need
    from vllama.server.preflight import check_model, gather_facts

    library = local_library(settings)
    described = []
    for side in sides:
        name, paths = find_version(settings, side.engine)
        own = replace(
            settings, engine=name, engine_paths=paths, context_length=context, num_parallel=1
        )
        one = gather_facts(own)
        chosen = choose_engine(one)
        row = {
            "engine": side.engine,
            "title": one.found.engines[chosen.engine].title,
            "version": chosen.installation.version,
            "model": side.model,
            "format": None,
            "quantization": None,
        }
        model = whole_path(side.model)
        if (entry := check_model(library, model)) is not None:
            bundle, info = entry.bundle, entry.info
            make_plan(one, bundle, info, Need())
            row |= {"format": str(bundle.format), "quantization": bundle.quant or info.quant}
        described.append(row)
    return described


def ask_side(side: Peer, prompts: Sequence[str], *, max_tokens: int, context: int) -> Responses:
    """Start an engine, have it answer all prompts, end it. Raises VllamaError."""
    from vllama.lab.asker import Asker

    answers: list[Response] = []
    name, paths = find_version(load_settings(), side.engine)
    own = {"engine_paths": paths} if "@" in side.engine else {}
    with open_own_server(
        side.model,
        engine=name,
        purpose=f"verify with {side.engine}",
        label=side.engine,
        context_length=context,
        **own,
    ) as server:
        asker = Asker(server.client.post, side.model, max_tokens)
        for number, prompt in enumerate(prompts, 1):
            server.show(f"prompt {number} of {len(prompts)}")
            answers.append(asker.ask(prompt))
        more = "" if any(answer.tokens for answer in answers) else ", without log probabilities"
        server.note(f"{len(prompts)} prompts finished{more}")
    return answers


def report(
    prompts: Sequence[str], a: Responses, b: Responses, found: Sequence[Comparison]
) -> dict[str, Any]:
    """Return the comparisons of the answers to each prompt as plain values.

    Shares are from 0 to 1, log probabilities natural, divergences in nats; what an engine does
    not tell is None. `agreement` is the mean over the prompts; `wide_gaps` counts those whose first
    difference is no close call.
    """
    differences = [each.difference for each in found if each.difference]
    return {
        "agreement": fmean(each.agreement for each in found),
        "text_agreement": fmean(each.text_agreement for each in found),
        "same_answers": len(found) - len(differences),
        "wide_gaps": sum(each.is_wide for each in differences),
        **asdict(measure(found)),
        "prompts": [_row(*each) for each in zip(prompts, a, b, found, strict=True)],
    }


def _row(prompt: str, a: Response, b: Response, comparison: Comparison) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "answers": [answer.text.decode(errors="replace") for answer in (a, b)],
        "agreement": comparison.agreement,
        "text_agreement": comparison.text_agreement,
        "agreed_tokens": comparison.agreed,
        "tokens": comparison.tokens,
        "difference": asdict(comparison.difference) if comparison.difference else None,
        **asdict(measure([comparison])),
    }


def table(told: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the cells below `COLUMNS`, one row a prompt and one for all."""
    rows = []
    for row in told["prompts"]:
        prompt = shorten(" ".join(row["prompt"].split()), SHOWN)
        rows.append((prompt, _word_agreement(row), _difference(row["difference"]), *_cells(row)))
    same = f"{told['same_answers']} of {len(rows)} the same"
    return [*rows, ("all", percent(told["agreement"]), same, *_cells(told))]


def shorten(text: str, most: int) -> str:
    """Return a text, its end cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _word_agreement(row: Mapping[str, Any]) -> str:
    if row["tokens"] is None:
        return percent(row["agreement"])
    return f"{row['agreed_tokens']} of {row['tokens']}"


def _difference(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "none"
    gap = "" if found["gap"] is None else f", by {found['gap']:.3f}"
    return f"{_quote(found['a'])} or {_quote(found['b'])}{gap}"


def _quote(text: str) -> str:
    return f'"{flatten(shorten(text, SHOWN_OF_ANSWER))}"' if text else "its end"


def _cells(row: Mapping[str, Any]) -> Iterable[str]:
    for key in ("logprob_mean", "logprob_max", "kl_mean"):
        value = row[key]
        yield NOTHING if value is None else f"{value:.4f}"


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
