"""`vllama bench`: how fast the server is, also compared with another one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vllama.base.errors import ConfigError
from vllama.base.units import format_duration
from vllama.cli.context import connect
from vllama.cli.options import AsJson, complete_model, model_argument, option
from vllama.cli.output import say, show_json, show_table, show_warning
from vllama.config.address import parse_address, reachable_host, url

if TYPE_CHECKING:
    from vllama.cli.client import Client
    from vllama.lab.bench.findings import Metric
    from vllama.lab.bench.rounds import Order, Side

EXAMPLES = """\
\b
Examples:
  vllama bench smollm2:135m
  vllama bench qwen3:0.6b --clients 1,8 --prompts short --rounds 5
  vllama bench qwen3:0.6b --against Ollama=127.0.0.1:11435 --swap gemma3:270m
  vllama bench smollm2:135m --json --picture bench.svg

The model is reloaded in every round. With --against, both servers get the same prompts in turn,
and must have the model under the same name.
"""

CLIENTS = "1,4,8,16"
PROMPTS = "short,long"
ROUNDS = 3
TOKENS = 64
OURS = "vllama"
OLLAMA_PORT = 11434
MOST_CLIENTS = 512


def bench(
    model: Annotated[str | None, model_argument("Name of the model. [the loaded one]")] = None,
    against: Annotated[
        list[str] | None,
        option("--against [NAME=]URL", "Another server with Ollama's API; repeatable."),
    ] = None,
    clients: Annotated[str, option("--clients N,…", "Number of concurrent clients.")] = CLIENTS,
    prompts: Annotated[str, option("--prompts KIND,…", "Kinds of prompts.")] = PROMPTS,
    rounds: Annotated[int, option("--rounds N", "Number of rounds.", min=1)] = ROUNDS,
    tokens: Annotated[int, option("--tokens N", "Tokens per response.", min=1)] = TOKENS,
    swap: Annotated[
        str | None, option("--swap MODEL", "Measure swaps to this model.", complete_model)
    ] = None,
    file: Annotated[
        Path | None, option("--picture FILE", "Bar chart to write, as SVG.", dir_okay=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the speed of the server, alone or against another one."""
    import secrets

    from vllama.cli.reporter import TerminalReporter
    from vllama.lab.bench.findings import draw_chart, make_findings, make_remarks, serialize
    from vllama.lab.bench.rounds import Order, measure, warm_up

    counts, kinds = parse_clients(clients), parse_kinds(prompts)
    others = parse_against(against or ())
    if file:
        write(file, "")  # fail now rather than after minutes of work
    with connect() as ours:
        servers = {OURS: ours, **others}
        order = Order(
            model=model or find_loaded_model(ours),
            clients=counts,
            prompts=kinds,
            rounds=rounds,
            tokens=tokens,
            swap=swap,
            salt=secrets.token_hex(4),
        )
        sides, unmeasured = make_sides(servers)
        reporter = TerminalReporter()
        try:
            expected_s = warm_up(order, sides, reporter.loading)
            reporter.note(describe_length(order, len(sides), expected_s))
            described = [describe(name, each, order.model) for name, each in servers.items()]
            rows = measure(order, sides, reporter.loading)
        finally:
            reporter.close()
    names = [side.name for side in sides]
    found = make_findings(rows)
    result = {
        "model": order.model,
        "swap": swap,
        "rounds": rounds,
        "tokens": tokens,
        "servers": described,
        "findings": serialize(found, names),
        "remarks": [*compare_models(described), *make_remarks(rows, names), *unmeasured],
        "rows": rows,
    }
    if file:
        write(file, draw_chart(found, names, f"{order.model}: {' and '.join(names)}"))
    if as_json:
        show_json(result)
    else:
        show(result, found, names)


def parse_clients(text: str) -> tuple[int, ...]:
    """Read `1,4,8`. Raises ConfigError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part) <= MOST_CLIENTS for part in parts):
        raise ConfigError(
            f'cannot read the numbers of clients "{text}"',
            hint=f"use comma-separated numbers from 1 to {MOST_CLIENTS}: --clients {CLIENTS}",
        )
    return tuple(dict.fromkeys(int(part) for part in parts))


def parse_kinds(text: str) -> tuple[str, ...]:
    """Read `short,long`. Raises ConfigError."""
    from vllama.lab.bench.load import LENGTHS

    kinds = [part.strip() for part in text.split(",")]
    if unknown := [kind for kind in kinds if kind not in LENGTHS]:
        raise ConfigError(
            f'unknown kind of prompts: "{unknown[0]}"', hint=f"use {' or '.join(LENGTHS)}"
        )
    return tuple(dict.fromkeys(kinds))


def parse_against(values: Sequence[str]) -> dict[str, Client]:
    """Read `NAME=URL`, or a URL that is its own name; return clients. Raises ConfigError.

    Our server's key is not sent to the others.
    """
    from vllama.cli.client import Client

    found: dict[str, Client] = {}
    for value in values:
        name, _, text = value.rpartition("=")
        try:
            address = parse_address(text)
        except ValueError as error:
            raise ConfigError(f'cannot use the address "{text}": {error}') from None
        if not address.host or address.bad_port:
            raise ConfigError(
                f'cannot use the address "{text}"',
                hint="use the form http://127.0.0.1:11435 or Ollama=127.0.0.1:11435",
            )
        place = url(
            address.scheme or "http", reachable_host(address.host), address.port or OLLAMA_PORT
        )
        name = name.strip() or place.partition("://")[2]
        if name in found or name == OURS:
            raise ConfigError(
                f'cannot use the name "{name}" for two servers',
                hint="name the servers: --against NAME=URL",
            )
        found[name] = Client(place)
    return found


def describe_length(order: Order, sides: int, expected_s: float) -> str:
    """Return the planned measurements, and about how long they take."""
    from vllama.lab.bench.rounds import make_steps

    count = len(make_steps(order)) * sides
    length = format_duration(max(10, math.ceil(expected_s / 10) * 10)).lower()
    rounds = "1 round" if order.rounds == 1 else f"{order.rounds} rounds"
    return f"{rounds} of {count} measurements; this takes about {length}"


def find_loaded_model(ours: Client) -> str:
    """Return the name of the only model that is loaded. Raises ConfigError."""
    names = [str(row.get("name")) for row in ours.get("/api/ps").get("models") or []]
    if len(names) != 1:
        state = "no model is loaded" if not names else f"{len(names)} models are loaded"
        raise ConfigError(f"no model specified, and {state}", hint="specify it: vllama bench MODEL")
    return names[0]


def describe(name: str, client: Client, model: str) -> dict[str, Any]:
    """Ask a server for its version and what it has as the model. Raises VllamaError."""
    from vllama.lab.bench.rounds import naming_failures

    with naming_failures(name, "checking the model"):
        version = client.get("/api/version").get("version")
        details = client.post("/api/show", {"model": model}).get("details") or {}
        rows = client.get("/api/ps").get("models") or []
    return {
        "name": name,
        "url": client.url,
        "version": version,
        "engine": next((row["engine"] for row in rows if row.get("engine")), None),
        "parameter_size": details.get("parameter_size"),
        "quantization": details.get("quantization_level"),
    }


def compare_models(described: Sequence[dict[str, Any]]) -> list[str]:
    """Return a remark if the servers do not have the same model under that name."""
    forms = {one["name"]: f"{one['parameter_size']} {one['quantization']}" for one in described}
    if len(set(forms.values())) == 1:
        return []
    each = ", ".join(f"{form} at {name}" for name, form in forms.items())
    return [f"different models: {each}"]


def make_sides(servers: Mapping[str, Client]) -> tuple[list[Side], list[str]]:
    """Return the servers with their processes, and why some processes are not known."""
    from vllama.lab.bench.rounds import NotMeasured, Side, TreeMemory

    sides, reasons = [], []
    for name, client in servers.items():
        try:
            memory = TreeMemory(client.url)
        except NotMeasured as reason:
            memory = None
            reasons.append(f"memory of {name} was not measured: {reason}")
        sides.append(Side(name=name, server=client, memory=memory))
    return sides, reasons


def write(file: Path, content: str) -> None:
    """Write the picture. Raises ConfigError."""
    try:
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write the picture '{file}': {error.strerror or error}",
            hint="use a file in an existing folder",
        ) from None


def show(result: Mapping[str, Any], found: Sequence[Metric], names: Sequence[str]) -> None:
    """Print the table and, below it, what it means."""
    from vllama.lab.bench.findings import make_table

    for one in result["servers"]:
        form = " ".join(filter(None, (one["parameter_size"], one["quantization"])))
        engine = f" with {one['engine']}" if one["engine"] else ""
        say(f"{one['name']}: {one['url']}, {result['model']} {form}{engine}")
    say()
    show_table(*make_table(found, names))
    say()
    rounds = f"{result['rounds']} rounds" if result["rounds"] > 1 else "1 round"
    say(f"Medians of {rounds}, responses of {result['tokens']} tokens, with different prompts.")
    if len(names) > 1:
        say(f"RATIO is {OURS}'s value ÷ the other's in the same round: median [min … max].")
    for remark in result["remarks"]:
        show_warning(remark)
