"""Count how many grade-school mathematics problems a served model solves.

pip install openai rich
python evaluate.py MODEL [--data FILE] [--url URL]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, OpenAIError
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

HERE = Path(__file__).parent
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
SYSTEM = "Solve the problem step by step. End with a line '#### ' and the answer as a number."


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem with its worked solution, whose last line is `#### ` and the number."""

    question: str
    answer: str

    @property
    def number(self) -> float:
        """The right answer."""
        number = find_number(self.answer)
        if number is None:
            raise SystemExit(f"this problem has no number as its answer: {self.question}")
        return number


@dataclass(frozen=True, slots=True)
class Result:
    """What the model said to one problem; with an `error` of the server it said nothing."""

    problem: Problem
    text: str = ""
    tokens: int = 0
    error: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the last number of the answer is the right one."""
        number = find_number(self.text)
        return number is not None and math.isclose(number, self.problem.number)


def find_number(text: str) -> float | None:
    """Return the number after `####`, else the last number of the text."""
    marked = text.rpartition("####")[2] if "####" in text else ""
    numbers = NUMBER.findall(marked)[:1] or NUMBER.findall(text)[-1:]
    return float(numbers[0].replace(",", "")) if numbers else None


def read_problems(path: Path) -> list[Problem]:
    """Read a file in GSM8K's form: an object with `question` and `answer` on each line."""
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        return [Problem(question=row["question"], answer=row["answer"]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"cannot read the problems in '{path}': {error}") from None


def make_messages(problem: Problem, examples: list[Problem]) -> list[dict[str, str]]:
    """Return a conversation of the worked examples, and the problem."""
    messages = [{"role": "system", "content": SYSTEM}]
    for example in examples:
        messages.append({"role": "user", "content": example.question})
        messages.append({"role": "assistant", "content": example.answer})
    return [*messages, {"role": "user", "content": problem.question}]


def compute_interval(right: int, total: int) -> tuple[float, float]:
    """Return Wilson's interval of a share, for 95 % (Wilson 1927, JASA 22, 209)."""
    z, share = 1.96, right / total
    middle = share + z * z / (2 * total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return (middle - half) / scale, (middle + half) / scale


async def evaluate(args: argparse.Namespace, console: Console) -> list[Result]:
    """Ask all problems, some at a time. The first ones are the worked examples."""
    problems = read_problems(args.data)
    examples, asked = problems[: args.shots], problems[args.shots :][: args.limit]
    if not asked:
        raise SystemExit(f"'{args.data}' has no problems beyond the {args.shots} worked examples")
    client = AsyncOpenAI(base_url=args.url, api_key=args.key, timeout=None)
    free = asyncio.Semaphore(args.concurrency)

    async def ask(problem: Problem) -> Result:
        async with free:
            try:
                reply = await client.chat.completions.create(
                    model=args.model,
                    messages=make_messages(problem, examples),
                    temperature=0,
                    seed=args.seed,
                    max_tokens=args.max_tokens,
                )
            except OpenAIError as error:
                return Result(problem, error=str(error))
        tokens = reply.usage.completion_tokens if reply.usage else 0
        return Result(problem, reply.choices[0].message.content or "", tokens)

    results = []
    with Progress(console=console, transient=True, disable=args.json) as progress:
        bar = progress.add_task("asking", total=len(asked))
        for next_one in asyncio.as_completed([ask(problem) for problem in asked]):
            results.append(await next_one)
            progress.advance(bar)
    return results


def summarize(results: list[Result], seconds: float) -> dict[str, Any]:
    """Return the figures of a run, which are those of the problems that were answered."""
    answered = sum(not one.error for one in results)
    right, tokens = sum(one.is_right for one in results), sum(one.tokens for one in results)
    return {
        "problems": answered,
        "right": right,
        "accuracy": right / answered if answered else None,
        "interval_95": compute_interval(right, answered) if answered else None,
        "errors": len(results) - answered,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
    }


def show(summary: dict[str, Any], results: list[Result], console: Console) -> None:
    """Print the figures, and the problems that were not solved."""
    table = Table("problem", "right", "answered", title="not solved")
    for one in results:
        if not one.is_right:
            said = find_number(one.text)
            table.add_row(
                one.problem.question[:70] + "…",
                f"{one.problem.number:g}",
                one.error or ("no number" if said is None else f"{said:g}"),
            )
    if table.row_count:
        console.print(table)
    if summary["errors"]:
        console.print(f"{summary['errors']} of {len(results)} problems were not answered")
    if not summary["problems"]:
        return
    low, high = summary["interval_95"]
    console.print(
        f"{summary['right']} of {summary['problems']} right: {summary['accuracy']:.1%} "
        f"(95 %: {low:.0%} to {high:.0%}), {summary['tokens']} tokens "
        f"in {summary['seconds']:.1f} s, {summary['tokens_per_s']:.1f} tokens/s"
    )


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--data", type=Path, default=HERE / "problems.jsonl")
    parser.add_argument("--url", default="http://127.0.0.1:11434/v1")
    parser.add_argument("--key", default=os.environ.get("OPENAI_API_KEY") or "unused")
    parser.add_argument("--shots", type=int, default=3, help="worked examples before each problem")
    parser.add_argument("--limit", type=int, help="ask no more problems than this")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON only")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Return 0, or 1 if the server refused requests."""
    args, console = read_arguments(argv), Console()
    began = time.monotonic()
    results = asyncio.run(evaluate(args, console))
    summary = summarize(results, time.monotonic() - began)
    if args.json:
        print(json.dumps(summary))
    else:
        show(summary, results, console)
    return 1 if summary["errors"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
