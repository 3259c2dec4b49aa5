"""`vllama bisect`: find the engine's version, or the settings, with which an answer changed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from vllama.base.errors import ConfigError, VllamaError
from vllama.cli.context import load_settings
from vllama.cli.options import AsJson, MaxKl, argument, complete_engine, complete_model, option
from vllama.cli.output import say, say_aside, show_json
from vllama.config import Config
from vllama.config.parse import whole_path
from vllama.lab.captured import Folder, complete_capture, find
from vllama.lab.own_server import fail_as_undecided
from vllama.lab.verify.report import MAX_KL

if TYPE_CHECKING:
    from vllama.lab.bisection import Judge, Step, Trial

EXAMPLES = """\
\b
Examples:
  vllama bisect bug.json --engine llama-server --good 2026.4.8929 --bad 2026.10.11549
  vllama bisect bug.json --engine llama-server --versions A,B,C,D
  vllama bisect bug.json --engine llama-server --versions ./b1/llama-server,./b2/llama-server
  vllama bisect bug.json --bad-set kv_cache_type=q4_0 --bad-set flash_attention=false
  vllama bisect bug.json --good-set engine=llama-cpp-python --bad-set engine=llama-server
  vllama bisect bug.json --engine llama-cpp-python --good 0.3.30 --bad 0.3.36 --compile
  vllama bisect bug.json --bad-set engine=llama-server --command ./check.sh

Each version is installed in a folder of its own and removed afterwards; a path is a build that is
here already. A trial is good if it answers as the good end does. A command decides instead by its
exit code, as with 'git bisect run' (0 good, 125 skip, others bad); VLLAMA_BISECT_CAPTURE names a
file with the request and its new answer, and OLLAMA_HOST the server. See
docs/guide/record-and-replay.md.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """What the user named of either kind of bisection."""

    good: str | None
    bad: str | None
    versions: Sequence[str]
    good_set: Mapping[str, str]
    bad_set: Mapping[str, str]


def bisect(
    name: Annotated[str, argument("ID|FILE", "The captured request to ask.", complete_capture)],
    good: Annotated[str | None, option("--good VERSION", "A good version.")] = None,
    bad: Annotated[str | None, option("--bad VERSION", "A bad version.")] = None,
    versions: Annotated[
        str,
        option(
            "--versions A,B,C",
            "Versions or paths of builds, from good to bad. [those of the package index]",
        ),
    ] = "",
    good_set: Annotated[list[str] | None, option("--good-set KEY=VALUE", "A good setting.")] = None,
    bad_set: Annotated[
        list[str] | None, option("--bad-set KEY=VALUE", "A setting that may be bad.")
    ] = None,
    engine: Annotated[
        str | None,
        option("--engine NAME", "Engine to use. [that of the capture]", complete=complete_engine),
    ] = None,
    model: Annotated[
        str | None, option("--model NAME", "Ask this model instead.", complete_model)
    ] = None,
    command: Annotated[
        str | None, option("--command COMMAND", "Decides what is good by its exit code.")
    ] = None,
    max_kl: MaxKl = MAX_KL,
    compiled: Annotated[
        bool, option("--compile", "Build versions from source, minutes for each.")
    ] = False,
    keep: Annotated[
        bool, option("--keep", "Keep the installed versions for the next time.")
    ] = False,
    folder: Folder = None,
    as_json: AsJson = False,
) -> int:
    """Find the engine's version, or the settings, that changed an answer."""
    from vllama.lab.bisection import Judge, make_certain
    from vllama.lab.replays import check_whole, parse_changes, with_model

    ends = Ends(
        good=good,
        bad=bad,
        versions=[one.strip() for one in versions.split(",") if one.strip()],
        good_set=parse_changes(good_set or []),
        bad_set=parse_changes(bad_set or []),
    )
    by_settings = check_ends_named(ends)
    settings = load_settings()
    capture = find(name, folder, settings)
    check_whole(capture)
    request = with_model(capture, whole_path(model)) if model else capture
    certain, chance = make_certain(request)
    if command is None:
        request = certain
        if chance:
            say_aside(f"asking at temperature 0: as it was captured, {chance}")
    steps = Steps(as_json=as_json)
    judge = Judge(request, chance, engine=engine, command=command, max_kl=max_kl)
    with fail_as_undecided():
        if by_settings:
            found = bisect_settings(judge, ends, steps)
        else:
            chosen = engine or (capture.engine.name if capture.engine else None)
            found = bisect_versions(judge, ends, steps, settings, chosen, compiled, keep)
    if as_json:
        show_json({**found, "steps": steps.rows})
    else:
        say()
        say(found["result"])
    return 0


def check_ends_named(ends: Ends) -> bool:
    """Tell whether settings are to be bisected. Raises ConfigError unless two ends are named."""
    by_version = bool(ends.good or ends.bad or ends.versions)
    by_settings = bool(ends.good_set or ends.bad_set)
    if by_version and by_settings:
        raise ConfigError(
            "cannot bisect versions and settings at once",
            hint="name versions (--good, --bad) or settings (--good-set, --bad-set)",
        )
    if by_version and not (ends.good and ends.bad) and len(ends.versions) < 2:
        raise ConfigError(
            "cannot bisect versions: two ends are needed", hint="name both: --good A --bad B"
        )
    if by_settings and ends.good_set == ends.bad_set:
        raise ConfigError("cannot bisect settings: both ends are the same")
    if not by_version and not by_settings:
        raise ConfigError(
            "cannot bisect: no ends are named",
            hint="name versions (--good, --bad) or settings (--good-set, --bad-set)",
        )
    return by_settings


class Steps:
    """Shows each trial as it ends, and keeps it."""

    def __init__(self, *, as_json: bool) -> None:
        self.rows: list[dict[str, str]] = []
        self._as_json = as_json

    def note(self, step: Step) -> None:
        """Show a trial: on stdout, unless a program reads that."""
        show = say_aside if self._as_json else say
        show(f"{step.trial.name}: {step.outcome}: {step.reason}")
        self.rows.append(
            {"trial": step.trial.name, "outcome": str(step.outcome), "reason": step.reason}
        )


def bisect_settings(judge: Judge, ends: Ends, steps: Steps) -> dict[str, Any]:
    """Find the fewest settings of the bad end that make an answer bad."""
    from vllama.lab.bisection import Outcome, Trial, find_fewest

    good, bad = ends.good_set, ends.bad_set
    changed = [key for key in {**good, **bad} if good.get(key) != bad.get(key)]
    arguments = []  # those of the engine are told apart, if the bad end only adds some
    if "engine_args" not in good and "engine_args" in bad and not judge.has_engine_args:
        arguments = split_arguments(bad["engine_args"])
        changed = [*(key for key in changed if key != "engine_args"), *arguments]

    def make_trial(chosen: frozenset[str]) -> Trial:
        changes = {key: value for key, value in good.items() if key not in chosen}
        changes |= {key: bad[key] for key in changed if key in chosen and key in bad}
        if added := [one for one in arguments if one in chosen]:
            changes["engine_args"] = " ".join(added)
        return Trial(name=describe_settings(changes) or "the captured settings", changes=changes)

    def test(chosen: frozenset[str]) -> Outcome:
        step = judge.try_test(make_trial(chosen))
        steps.note(step)
        return step.outcome

    judge.check_ends(make_trial(frozenset()), make_trial(frozenset(changed)), steps.note)
    fewest = find_fewest(changed, test)
    blamed = {key: bad.get(key, "") for key in fewest if key not in arguments}
    if added := [one for one in arguments if one in fewest]:
        blamed["engine_args"] = " ".join(added)
    text = ", ".join(
        f"{key}={value}" if value else f"without {key}" for key, value in blamed.items()
    )
    together = f"these {len(fewest)} settings together" if len(fewest) > 1 else "this setting"
    return {"result": f"The answer changes with {together}: {text}.", "settings": blamed}


def split_arguments(text: str) -> list[str]:
    """Return the arguments of an engine, each flag with its values, as a shell would read them."""
    groups: list[list[str]] = []
    for word in shlex.split(text):
        if groups and not word.startswith("--") and not (word[:1] == "-" and word[1:].isalpha()):
            groups[-1].append(word)
        else:
            groups.append([word])
    return list(dict.fromkeys(shlex.join(group) for group in groups))


def describe_settings(changes: Mapping[str, str]) -> str:
    """Return settings in one line."""
    return " ".join(f"{key}={value}" for key, value in sorted(changes.items()))


def bisect_versions(
    judge: Judge,
    ends: Ends,
    steps: Steps,
    settings: Config,
    engine: str | None,
    compiled: bool,
    keep: bool,
) -> dict[str, Any]:
    """Find the first version of an engine that is bad; each is installed when it is needed."""
    from vllama.lab.bisection import Outcome, Step, Trial, find_first_bad
    from vllama.lab.engine_versions import install_version, list_trial_versions, remove_versions

    scratch = settings.data_dir / "bisect"
    versions = list_trial_versions(
        engine, ends.good, ends.bad, ends.versions, scratch=scratch, compiled=compiled
    )
    trials = [Trial(name=one.title, changes={"engine_paths": one.setting}) for one in versions]

    def test(at: int) -> Outcome:
        step = try_version(at)
        steps.note(step)
        return step.outcome

    def try_version(at: int) -> Step:
        try:
            install_version(versions[at])
        except VllamaError as error:
            return Step(trial=trials[at], outcome=Outcome.SKIP, reason=error.message)
        return judge.try_test(trials[at])

    try:
        for end in (0, -1):
            install_version(versions[end])
        judge.check_ends(trials[0], trials[-1], steps.note)
        last_good, first_bad = find_first_bad(len(versions), test)
    finally:
        if not keep:
            remove_versions(scratch, versions)
    between = [one.name for one in versions[last_good + 1 : first_bad]]
    a, b = versions[last_good], versions[first_bad]
    text = f"The answer changed with {b.title}: {a.name} is the last good version."
    if between:
        text = (
            f"The answer changed after {a.title} and not later than {b.name}; "
            f"{', '.join(between)} could not be tried."
        )
    return {"result": text, "last_good": a.name, "first_bad": b.name, "not_tried": between}
