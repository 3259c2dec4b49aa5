"""Bisections: the trials, a server and a question for each, and the searches that choose them.

A search finds the first bad version, or the fewest bad settings. It is told of each trial whether
it was good or bad, or could not be tried (`SKIP`); nothing is tried twice.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from vllama import config
from vllama.base import private
from vllama.base.errors import VerifyFailed, VllamaError
from vllama.lab.judge import Verdict, judge
from vllama.lab.replays import (
    describe_chance,
    make_greedy,
    open_server_for,
    send_capture,
    with_logprobs,
    with_model,
)
from vllama.observe.captures.format import Capture, encode_capture
from vllama.observe.captures.reading import Reading, read_answer

if TYPE_CHECKING:
    from vllama.cli.client import Client

SKIPPED = 125
MOST_BAD = 127
"""Exit codes of `--command`, as those of `git bisect run`."""
REPEATS = 3
"""How often a command judges a trial of a request that may be answered otherwise each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One start of a server: what it is called, and its settings."""

    name: str
    changes: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A trial and what came of it."""

    trial: Trial
    outcome: Outcome
    reason: str


class AnswersVary(VerifyFailed):
    """The answers differ by chance, so no trial can be blamed for a difference."""


def make_certain(capture: Capture) -> tuple[Capture, str]:
    """Return the request so that it has one answer, and what was changed for that ("" nothing)."""
    chance = describe_chance(capture, same_engine=False)
    return (make_greedy(capture), chance) if chance else (capture, "")


class Judge:
    """Tells good trials from bad ones.

    Good is what answers as the good end does; with a `command`, what lets the command succeed.
    """

    def __init__(
        self,
        request: Capture,
        chance: str,
        *,
        engine: str | None,
        command: str | None,
        max_kl: float,
    ) -> None:
        """`chance` says why the captured request has several right answers, "" if it has one."""
        self._request = with_logprobs(request) or request
        self._plain = request
        self._chance = chance
        self._engine = engine
        self._command = command
        self._max_kl = max_kl
        self._good: Reading | None = None

    @property
    def has_engine_args(self) -> bool:
        """Whether the captured answer came from an engine with further arguments."""
        return bool(self._plain.engine and self._plain.engine.extra_args)

    def test(self, trial: Trial) -> Step:
        """Start a server for a trial and ask it. Raises VerifyFailed if it does not start.

        The first trial has to be the good end. It is asked twice, and so is every bad trial: raises
        AnswersVary if one of them does not answer alike.
        """
        with open_server_for(
            self._plain,
            purpose=f"try {trial.name}",
            label=trial.name,
            engine=self._engine,
            changes=trial.changes,
        ) as server:
            server.show("answering")
            model = trial.changes.get("model")
            if self._command is not None:
                outcome, reason = self._judge_by_command(server.client, trial, model)
            elif self._good is None:
                outcome, reason = self._take_good(server.client, model)
            else:
                outcome, reason = self._try_answer(self._good, server.client, trial, model)
        return Step(trial=trial, outcome=outcome, reason=reason)

    def try_test(self, trial: Trial) -> Step:
        """Do as `test`, but skip a trial that does not start."""
        try:
            return self.test(trial)
        except AnswersVary:
            raise
        except VllamaError as error:
            return Step(trial=trial, outcome=Outcome.SKIP, reason=error.message)

    def _ask(self, client: Client, model: str | None) -> Reading:
        asked = with_model(self._request, model) if model else self._request
        return read_answer(asked.request.path, send_capture(client, asked).answer)

    def _take_good(self, client: Client, model: str | None) -> tuple[Outcome, str]:
        first = self._ask(client, model)
        if first.status >= 400 and self._request is not self._plain:
            self._request = self._plain  # this engine tells no log probabilities
            first = self._ask(client, model)
        self._good = first
        outcome, reason = self._compare(first, self._ask(client, model))
        if outcome is Outcome.BAD:
            raise AnswersVary(
                f"cannot bisect: the good end does not answer twice alike: {reason}",
                hint="judge by a command of your own: --command",
            )
        captured = read_answer(self._plain.request.path, self._plain.answer)
        verdict = judge(captured, first, max_kl=self._max_kl).verdict
        like = "unlike" if verdict is Verdict.DIFFERENT else "like"
        return Outcome.GOOD, f"it answers {like} the capture"

    def _try_answer(
        self, good: Reading, client: Client, trial: Trial, model: str | None
    ) -> tuple[Outcome, str]:
        """Compare an answer with the good one; a bad trial has to be bad twice."""
        outcome, reason = self._compare(good, self._ask(client, model))
        if outcome is Outcome.BAD:
            again, _ = self._compare(good, self._ask(client, model))
            if again is not Outcome.BAD:
                raise AnswersVary(
                    f"cannot bisect: {trial.name} answers otherwise each time, once as the good "
                    f"end does and once not: {reason}",
                    hint="judge by a command of your own: --command",
                )
        return outcome, reason

    def _compare(self, good: Reading, reading: Reading) -> tuple[Outcome, str]:
        found = judge(good, reading, max_kl=self._max_kl)
        is_bad = found.verdict is Verdict.DIFFERENT
        return Outcome.BAD if is_bad else Outcome.GOOD, found.reason

    def _judge_by_command(
        self, client: Client, trial: Trial, model: str | None
    ) -> tuple[Outcome, str]:
        """Have the command judge an answer, or several, which it has to judge alike."""
        repeats = REPEATS if self._chance else 1
        found = [self._run_command(client, trial, model) for _ in range(repeats)]
        outcomes = [outcome for outcome, _ in found]
        if len(set(outcomes)) > 1:
            raise AnswersVary(
                f"cannot bisect: {trial.name} is good {outcomes.count(Outcome.GOOD)} times of "
                f"{repeats}: the answers differ by chance, because {self._chance}",
                hint="capture the request with temperature 0, or with a seed",
            )
        return found[0]

    def _run_command(self, client: Client, trial: Trial, model: str | None) -> tuple[Outcome, str]:
        """Run the command with the new capture as a file; its exit code is that of git bisect."""
        asked = with_model(self._plain, model) if model else self._plain
        answered = send_capture(client, asked)
        with tempfile.TemporaryDirectory(prefix="vllama-bisect-") as folder:
            path = Path(folder) / "capture.json"
            private.replace(path, encode_capture(answered))
            env = config.environ() | {
                "OLLAMA_HOST": client.url,
                "VLLAMA_BISECT_CAPTURE": str(path),
                "VLLAMA_BISECT_TRIAL": trial.name,
            }
            code = subprocess.run(str(self._command), shell=True, env=env, check=False).returncode
        if code < 0 or code > MOST_BAD:
            raise VerifyFailed(f"cannot bisect: the command ended with {code}")
        if code == SKIPPED:
            return Outcome.SKIP, "the command skipped it"
        return (Outcome.BAD if code else Outcome.GOOD), f"the command ended with {code}"

    def check_ends(self, good: Trial, bad: Trial, note: Callable[[Step], None]) -> None:
        """Try both ends. Raises VerifyFailed unless one is good and the other one bad."""
        for trial, wanted in ((good, Outcome.GOOD), (bad, Outcome.BAD)):
            step = self.test(trial)
            note(step)
            if step.outcome is not wanted:
                chance = f"; as it was captured, {self._chance}" if self._chance else ""
                raise VerifyFailed(
                    f"cannot bisect: {trial.name} is to be the {wanted} end, and is "
                    f"{step.outcome}: {step.reason}{chance}",
                    hint="see whether the answer varies by itself: vllama replay --times 5",
                )


class Outcome(StrEnum):
    """What came of one trial."""

    GOOD = "good"
    BAD = "bad"
    SKIP = "skipped"


def find_first_bad(count: int, test: Callable[[int], Outcome]) -> tuple[int, int]:
    """Find the change among `count` trials in order, of which the first is good, the last bad.

    Returns the last trial that is good and the first that is bad. All between the two, if there are
    any, were skipped. Halves, so that some log2(count) trials are made; around a skipped trial its
    neighbours are tried, the nearest to the middle first.
    """
    good, bad = 0, count - 1
    skipped: set[int] = set()
    while True:
        middle = (good + bad) / 2
        untried = [at for at in range(good + 1, bad) if at not in skipped]
        if not untried:
            return good, bad
        at = min(untried, key=lambda one: (abs(one - middle), one))
        match test(at):
            case Outcome.GOOD:
                good = at
            case Outcome.BAD:
                bad = at
            case Outcome.SKIP:
                skipped.add(at)


def find_fewest(
    changes: Sequence[str], test: Callable[[frozenset[str]], Outcome]
) -> tuple[str, ...]:
    """Find a smallest set of changes that is bad, if all together are bad and none of them is good.

    That is delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing
    input", 2002, algorithm ddmin): parts, then complements of parts, in ever finer divisions. Of
    the result no single change can be left out; what could not be tried does not count as bad.
    """
    known: dict[frozenset[str], Outcome] = {}

    def is_bad(chosen: Sequence[str]) -> bool:
        key = frozenset(chosen)
        if key not in known:
            known[key] = test(key)
        return known[key] is Outcome.BAD

    left, parts = tuple(changes), 2
    while len(left) > 1:
        subsets = _divide(left, parts)
        smaller = next((one for one in subsets if is_bad(one)), None)
        if smaller is not None:
            left, parts = smaller, 2
            continue
        complements = [tuple(one for one in left if one not in part) for part in subsets]
        smaller = next((one for one in complements if parts > 2 and is_bad(one)), None)
        if smaller is not None:
            left, parts = smaller, max(parts - 1, 2)
        elif parts >= len(left):
            break
        else:
            parts = min(len(left), 2 * parts)
    return left


def _divide(items: tuple[str, ...], parts: int) -> list[tuple[str, ...]]:
    """Divide items into nearly equal parts, of which none is empty."""
    bounds = [len(items) * number // parts for number in range(parts + 1)]
    return [items[start:end] for start, end in pairwise(bounds) if start < end]
