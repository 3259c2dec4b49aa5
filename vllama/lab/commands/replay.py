"""`vllama replay`: send a captured request again, and compare the answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from vllama.base.errors import ConfigError
from vllama.cli.context import load_settings
from vllama.cli.options import AsJson, MaxKl, argument, complete_engine, complete_model, option
from vllama.cli.output import console, is_terminal, say, show_json, show_table
from vllama.config import Config
from vllama.config.parse import whole_path
from vllama.lab.commands.requests import Folder, complete_capture, find
from vllama.lab.judge import MAX_KL
from vllama.lab.own_server import fail_as_undecided

if TYPE_CHECKING:
    from vllama.cli.client import Client
    from vllama.lab.compare import Difference
    from vllama.lab.judge import Judgement
    from vllama.lab.replays import Replay
    from vllama.observe.captures.format import Capture
    from vllama.observe.captures.reading import Reading

EXAMPLES = """\
\b
Examples:
  vllama replay 1a20602c680-4                       on the running server
  vllama replay 1a20602c680-4 --times 5             check whether it varies by itself
  vllama replay bug.json --url http://other:11434
  vllama replay bug.json --engine llama-server      on a new server
  vllama replay bug.json --set kv_cache_type=q8_0 --json

The exit code is 0 if the responses are the same, or differ only within the engines' noise; 1 if
they differ; 3 if there is no response to compare, or a sampled one. See
docs/guide/measure.md.
"""
NOTHING = "-"
NOT_WHOLE = {"aborted": "the client disconnected", "stopped": "an administrator stopped it"}
ROWS = ("engine", "status", "tokens", "first token", "total", "tokens/s")


def replay(
    name: Annotated[str, argument("ID|FILE", "Capture to replay.", complete_capture)],
    url: Annotated[str | None, option("--url URL", "Server to use. [from the settings]")] = None,
    engine: Annotated[
        str | None, option("--engine NAME", "Engine of a new server to use.", complete_engine)
    ] = None,
    model: Annotated[
        str | None, option("--model NAME", "Replay with this model instead.", complete_model)
    ] = None,
    changes: Annotated[
        list[str] | None,
        option("--set KEY=VALUE", "Replay on a new server with this setting; repeatable."),
    ] = None,
    times: Annotated[int, option("--times N", "Number of replays.", min=1)] = 1,
    max_kl: MaxKl = MAX_KL,
    logprobs: Annotated[
        bool, option("--logprobs", "Compare log probabilities too. [always on a new server]")
    ] = False,
    folder: Folder = None,
    as_json: AsJson = False,
) -> int:
    """Replay a captured request, and compare the responses."""
    from vllama.lab.judge import Verdict, judge_all
    from vllama.lab.replays import check_whole, parse_changes, replay_once, with_model

    given = parse_changes(changes or [])
    engine, model = engine or given.pop("engine", None), model or given.pop("model", None)
    is_own = bool(engine or given)
    if url and is_own:
        raise ConfigError(
            "cannot use a running server and start a new one",
            hint="omit --url, or --engine and --set",
        )
    settings = load_settings()
    capture = find(name, folder, settings)
    check_whole(capture)
    request = with_model(capture, whole_path(model)) if model else capture
    with (
        fail_as_undecided(),
        open_target(settings, request, url, engine, given) as client,
    ):
        replays = [
            replay_once(client, capture, request, max_kl=max_kl, logprobs=is_own or logprobs)
            for _ in range(times)
        ]
        address = client.url
    judgement = judge_all([one.judgement for one in replays])
    if as_json:
        show_json(describe(capture, replays, judgement))
    else:
        show(capture, replays, judgement, "a new server" if is_own else address)
    return {Verdict.DIFFERENT: 1, Verdict.UNDECIDED: 3}.get(judgement.verdict, 0)


@contextmanager
def open_target(
    settings: Config,
    request: Capture,
    url: str | None,
    engine: str | None,
    changes: Mapping[str, str],
) -> Iterator[Client]:
    """Connect to the server that runs, or start one and connect to that."""
    from vllama.cli.client import Client
    from vllama.lab.replays import open_server_for

    if not engine and not changes:
        address = (url or settings.url).rstrip("/")
        # keys of the server here are nothing that another one should see
        key = settings.key_to_send if address == settings.url else settings.client_key
        with Client(address, key=key) as client:
            yield client
        return
    label = engine or ", ".join(f"{key}={value}" for key, value in changes.items())
    with open_server_for(request, label=label, engine=engine, changes=changes) as server:
        server.show("answering")
        yield server.client


def describe(capture: Capture, replays: Sequence[Replay], judgement: Judgement) -> dict[str, Any]:
    """Return everything as plain values: times in s, divergences in nats, None for the unknown."""
    from vllama.lab.judge import Verdict
    from vllama.observe.captures.reading import read_answer

    reading = read_answer(capture.request.path, capture.answer)
    return {
        "ok": judgement.verdict in (Verdict.SAME, Verdict.NOISE),
        **asdict(judgement),
        "id": capture.id,
        "captured": describe_answer(reading, describe_engine(capture), capture.times.total_s),
        "replays": [
            asdict(one.judgement) | describe_answer(one.reading, one.engine, one.total_s)
            for one in replays
        ],
    }


def describe_engine(capture: Capture) -> str:
    """Return the engine of a capture with its version, "" if none answered."""
    return f"{capture.engine.name} {capture.engine.version}" if capture.engine else ""


def describe_answer(reading: Reading, engine: str, total_s: float) -> dict[str, Any]:
    """Return one side as plain values."""
    return {
        "engine": engine or None,
        "status": reading.status,
        "prompt_tokens": reading.prompt_tokens,
        "generated_tokens": reading.generated_tokens,
        "first_token_s": reading.first_s,
        "total_s": total_s,
        "tokens_per_s": reading.tokens_per_s,
        "texts": {name: one.text.decode(errors="replace") for name, one in reading.texts.items()},
    }


def show(capture: Capture, replays: Sequence[Replay], judgement: Judgement, where: str) -> None:
    """Print both sides, the first difference, and the verdict."""
    from vllama.lab.capture_view import escape_controls
    from vllama.observe.captures.reading import read_answer

    model = capture.model.name if capture.model else capture.request.model
    say(f"{capture.request.path}, {model or NOTHING}, captured {capture.received_at}")
    if why := NOT_WHOLE.get(capture.outcome):
        say(f"the captured response is incomplete: {why}")
    say(f"replayed on {where}")
    say()
    sides = [
        list_cells(
            read_answer(capture.request.path, capture.answer),
            describe_engine(capture),
            capture.times.total_s,
        ),
        *(list_cells(one.reading, one.engine, one.total_s) for one in replays),
    ]
    numbers = [f" {number}" if len(replays) > 1 else "" for number in range(1, len(replays) + 1)]
    columns = ("", "CAPTURED", *(f"REPLAYED{number}" for number in numbers))
    show_table(columns, list(zip(ROWS, *sides, strict=True)))
    if judgement.difference is not None:
        say()
        show_difference(judgement.difference)
    say()
    if judgement.kl_mean is not None:
        say(f"Mean KL divergence: {judgement.kl_mean:.4f} nats.")
    say(escape_controls(f"{str(judgement.verdict).capitalize()}: {judgement.reason}."))


def list_cells(reading: Reading, engine: str, total_s: float) -> tuple[str, ...]:
    """Return one side's cells for `ROWS`."""
    prompt = "?" if reading.prompt_tokens is None else str(reading.prompt_tokens)
    about = "about " if reading.is_estimated else ""
    return (
        engine or NOTHING,
        str(reading.status),
        NOTHING
        if reading.generated_tokens is None
        else f"{prompt}+{about}{reading.generated_tokens}",
        NOTHING if reading.first_s is None else f"{reading.first_s:.3f} s",
        f"{total_s:.3f} s",
        format_rate(reading, total_s),
    )


def format_rate(reading: Reading, total_s: float) -> str:
    """Return how fast tokens were generated; the whole time of an answer has the prompt's in it."""
    if reading.tokens_per_s is not None:
        return f"{reading.tokens_per_s:.1f}"
    if not reading.generated_tokens or reading.first_s is not None or total_s <= 0:
        return NOTHING
    return f"at least {reading.generated_tokens / total_s:.1f}"


def show_difference(difference: Difference) -> None:
    """Print where two texts part, with what is before and after it; colored on a terminal."""
    from rich.text import Text

    from vllama.lab.capture_view import escape_controls, flatten

    place = f"The first difference is in the {difference.where}, at character"
    say(f"{place} {difference.character}:")
    before = flatten(difference.before)
    for label, rest, style in (
        ("captured", difference.a, "green"),
        ("replayed", difference.b, "red"),
    ):
        after = flatten(rest) or "(it ends)"
        if is_terminal(sys.stdout):
            console().print(Text.assemble(f"  {label}: …{before}", (after, style)))
        else:
            say(escape_controls(f"  {label}: …{before}[{after}]"))
