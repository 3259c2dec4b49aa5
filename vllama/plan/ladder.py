"""The next plan for a model whose start failed for a reason that another plan may avoid. Pure.

The steps, by what went wrong:

=============  ========================================================================
memory         less on each GPU (of engines that divide models), shorter context, fewer requests
               at once, no graphs, a smaller form that is here, another engine
architecture   another engine
quantization   another form that is here, another engine
mismatch       another engine (driver, GPU or libraries do not suit the build)
device         as if there were no GPU, another engine (the engine finds none that it can use)
port           none: supervision has tried other ports already
=============  ========================================================================

Each step keeps what those before it gave up, and counts only if it changes the engine's command
line. What the user asked for stays: an engine that was named, a context (also one that a request
asked for), a number of requests at once, a quantization in the model's name. There are at most
`MOST` steps, and none with `strict`. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from msgspec.structs import replace as replace_fields

from vllama.base.errors import BadModelFile, EngineStartFailed, NoPlan, NotEnoughMemory
from vllama.engines.contract import AdapterFailed
from vllama.models.types import Bundle, ModelInfo
from vllama.plan.choose import draft_plan, make_plan, rank_engines, write_advice
from vllama.plan.fit import MIN_AUTO_CONTEXT
from vllama.plan.quant_fallback import Form, make_substitute, names_form, smaller_offer
from vllama.plan.types import Concessions, Facts, Need, Plan
from vllama.supervise.spec import Diagnosis, Endpoint, Fault

MOST = 3
SHORTER, FEWER, LESS = 4, 16, 5
"""By how much the context and the requests at once are divided, and what a GPU gets less."""
NUMBERS = ("first", "second", "third", "fourth")

WORDS = {
    Fault.MEMORY: "it runs out of memory",
    Fault.ARCHITECTURE: "the engine does not support the architecture",
    Fault.QUANTIZATION: "the engine cannot read the quantization",
    Fault.MISMATCH: "the driver or libraries do not match the engine's build",
    Fault.DEVICE: "the engine finds no usable GPU",
}
"""The kinds of failure that have steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A plan that was tried, what its error says, and what is known of the cause."""

    plan: Plan
    message: str
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One way to go on: what it does, in words, and what is to be planned then."""

    words: str
    facts: Facts
    form: Form


def make_first_plan(
    facts: Facts,
    bundle: Bundle,
    info: ModelInfo,
    need: Need,
    forms: Callable[[], Sequence[Form]] = tuple,
) -> Plan:
    """Return the plan to begin with; what does not fit into memory has failed before its start.

    `forms` is asked for other quantizations that are here only then. An engine whose adapter fails
    is left out. Raises what `make_plan` does.
    """
    try:
        plan = make_plan(facts, bundle, info, need)
        facts.found.engines[plan.engine].traits(bundle, plan.settings)
        return plan
    except AdapterFailed as error:
        if facts.settings.engine or error.engine in facts.relief.without:
            raise
        relief = replace(facts.relief, without=facts.relief.without | {error.engine})
        return make_first_plan(replace(facts, relief=relief), bundle, info, need, forms)
    except NotEnoughMemory as error:
        plan, _, estimate = draft_plan(facts, bundle, info, need)
        cause = f"it needs {estimate.needed} of {estimate.kind}, {estimate.usable} usable"
        diagnosis = Diagnosis(cause=cause, fault=Fault.MEMORY)
        refused = Failed(plan=plan, message=error.message, diagnosis=diagnosis)
        others = forms()
        if then := make_next_plan(facts, need, [refused], others):
            return then
        if offer := smaller_offer(bundle, [other for other, _ in others]):
            error.hint = f"{error.hint}; {offer}"
        raise


def make_next_plan(
    facts: Facts, need: Need, failed: Sequence[Failed], forms: Sequence[Form] = ()
) -> Plan | None:
    """Return the next plan to try after failed ones, None if there is none.

    `forms` are other quantizations of the model on this disk (`plan.quant_fallback`).
    """
    if not failed or len(failed) > MOST:
        return None
    last = failed[-1]
    facts = facts.of(last.plan.bundle)
    if facts.settings.strict:
        return None
    if facts.found.engines[last.plan.engine].attaches:
        return None
    if last.diagnosis.fault is Fault.DEVICE:
        facts = replace(facts, platform=replace(facts.platform, accelerators=()))
        need = replace_fields(need, load=replace_fields(need.load, num_gpu=0))
    tried = [make_command_line(facts, one.plan) for one in failed]
    for step in iterate_steps(facts, last, forms):
        try:
            plan = make_plan(step.facts, *step.form, need)
        except (NoPlan, BadModelFile):
            continue
        if make_command_line(facts, plan) in tried:
            continue
        words = step.words
        if plan.engine != last.plan.engine:
            words = f"{find_title(facts, plan)} instead of {find_title(facts, last.plan)}"
        number = NUMBERS[len(failed)]
        instead = (
            f"{number} plan: {words}, because the {NUMBERS[len(failed) - 1]} failed: "
            f"{last.diagnosis.cause}"
        )
        return replace(plan, instead=instead, reasons=(instead, *plan.reasons))
    return None


def iterate_steps(facts: Facts, last: Failed, forms: Sequence[Form]) -> Iterator[Remedy]:
    """Yield the steps that suit the last failure, gentlest first."""
    plan, fault = last.plan, last.diagnosis.fault
    engine = facts.found.engines[plan.engine]
    relief, form = plan.relief, (plan.bundle, plan.info)

    def step(words: str, relief: Concessions = relief, form: Form = form) -> Remedy:
        return Remedy(words=words, facts=replace(facts, relief=relief), form=form)

    memory, context = fault is Fault.MEMORY, plan.settings.context_length
    shorter = max(MIN_AUTO_CONTEXT, context // SHORTER)
    shorten = step(
        f"a context of {shorter} tokens instead of {context}",
        replace(relief, max_context=shorter),
    )
    may_shorten = memory and not plan.context_asked and shorter < context
    at_once = engine.traits(plan.bundle, plan.settings).max_concurrency
    fewer = max(1, at_once // FEWER)
    parts = plan.memory.gpu_parts
    if memory and parts and not relief.room:
        room = {pool: size - size // LESS for pool, size in parts.items()}
        yield step("a fifth less memory on each GPU", replace(relief, room=room))
    # each kind once, before one of them a second time
    if may_shorten and relief.max_context is None:
        yield shorten
    if (
        memory
        and relief.max_parallel is None
        and not facts.settings.num_parallel
        and fewer < at_once
    ):
        words = f"{fewer} instead of {at_once} parallel requests"
        yield step(words, replace(relief, max_parallel=fewer))
    if memory and not relief.eager:
        yield step("eager, without CUDA graphs", replace(relief, eager=True))
    if (memory or fault is Fault.QUANTIZATION) and not names_form(plan.bundle):
        for other in forms:
            if not memory or other[0].size_bytes < plan.bundle.size_bytes:
                words = f"the installed {other[0].quant} variant"
                yield step(words, form=make_substitute(plan.bundle, other))
    if may_shorten:
        yield shorten
    if fault is Fault.DEVICE:
        if not plan.memory.on_gpu:
            return
        yield step("on the CPU")
    if fault in WORDS and not facts.settings.engine:
        without = relief.without | {plan.engine}
        yield step(f"an engine other than {engine.title}", replace(relief, without=without))


def find_title(facts: Facts, plan: Plan) -> str:
    """Return a plan's engine, for people."""
    return facts.found.engines[plan.engine].title


def make_command_line(facts: Facts, plan: Plan) -> tuple[str, ...]:
    """Return the command line of a plan, which tells whether two plans are the same."""
    engine = facts.found.engines[plan.engine]
    endpoint = Endpoint(port=0)
    return engine.launch(plan.bundle, plan.settings, plan.installation, endpoint, {}).argv


def list_fallbacks(
    facts: Facts, need: Need, plan: Plan, forms: Sequence[Form] = ()
) -> dict[Fault, tuple[str, ...]]:
    """Return the next attempts after `plan`, by the kind of failure; kinds without are left out.

    As if each next plan failed for the same reason.
    """
    told: dict[Fault, tuple[str, ...]] = {}
    for fault, words in WORDS.items():
        failed = [suppose_failure(plan, fault, words)]
        while (then := make_next_plan(facts, need, failed, forms)) is not None:
            failed.append(suppose_failure(then, fault, words))
        if rest := failed[1:]:
            told[fault] = tuple(describe_step(one.plan) for one in rest)
    return told


def suppose_failure(plan: Plan, fault: Fault, cause: str) -> Failed:
    """Return the failure of a plan, supposed or real."""
    return Failed(plan=plan, message=cause, diagnosis=Diagnosis(cause=cause, fault=fault))


def describe_step(plan: Plan) -> str:
    """Return the differences of a later plan from the first."""
    return plan.instead.partition(": ")[2].partition(", because the ")[0]


def make_last_error(
    facts: Facts, failed: Sequence[Failed], forms: Sequence[Form] = ()
) -> EngineStartFailed:
    """Return the error of a model that no plan has loaded.

    It has the cause of the first failure, what was tried after it, and what was not tried because
    the user asked for it; the hint also offers what would have to be fetched for another try.
    """
    first = failed[0]
    facts = facts.of(first.plan.bundle)
    parts = [first.message]
    if len(failed) > 1:
        tried = [
            f"{describe_step(now.plan)} "
            f"({'the same' if now.diagnosis == before.diagnosis else now.diagnosis.cause})"
            for before, now in pairwise(failed)
        ]
        parts.append(f"tried next: {'; '.join(tried)}")
    hints = [first.diagnosis.hint, *list_offers(facts, failed, forms)]
    return EngineStartFailed(
        "; ".join((*parts, *list_kept(facts, failed))),
        hint="; or ".join(hint for hint in hints if hint)
        or f"see the engine's log: vllama logs {first.plan.bundle.name}",
    )


def list_kept(facts: Facts, failed: Sequence[Failed]) -> list[str]:
    """Return the fixed choices that prevented a step."""
    faults = {one.diagnosis.fault for one in failed} & WORDS.keys()
    plan, settings = failed[-1].plan, facts.settings
    if not faults:
        return []
    if settings.strict:
        return ["no other plan is tried with --strict"]
    asked = []
    if Fault.MEMORY in faults and plan.context_asked:
        asked.append(f"the context of {plan.settings.context_length} tokens")
    if Fault.MEMORY in faults and settings.num_parallel:
        asked.append(f"{settings.num_parallel} parallel requests")
    found = facts.found
    others = (found.engines[name] for name in found.installations if name != plan.engine)
    if settings.engine and any(plan.bundle.format in other.formats for other in others):
        asked.append("the engine")
    return [f"not changed, as requested: {', '.join(asked)}"] if asked else []


def list_offers(facts: Facts, failed: Sequence[Failed], forms: Sequence[Form]) -> list[str]:
    """Return attempts that need a download or a request of the user."""
    faults, first = {one.diagnosis.fault for one in failed}, failed[0].plan
    found, offered = facts.found, []
    if Fault.MEMORY in faults:
        offered.append(smaller_offer(first.bundle, [bundle for bundle, _ in forms]) or "")
    if faults & (WORDS.keys() - {Fault.MEMORY}) and not facts.settings.engine:
        for engine, _, _ in rank_engines(facts):
            absent = found.missing.get(engine.name)
            if absent and absent.installable and first.bundle.format in engine.formats:
                offered.append(f"try {engine.title}: {write_advice(facts, absent)}")
                break
    return offered
