"""The checks of the conformance kit; each yields what is wrong, one sentence each."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from vllama.base.threads import begin
from vllama.chat.engine.traits import Traits
from vllama.chat.request import Sampling
from vllama.engines.base import Engine, Installation, Missing, SearchPaths, TuningRequest
from vllama.engines.testing.samples import (
    CHAT,
    COMMON_LINES,
    CONTEXT,
    KEY,
    MODEL,
    PLATFORMS,
    PORT,
    USER_ARGUMENTS,
    USER_VARIABLES,
    launch,
    make_bundle,
    make_settings,
    serve_probes,
)
from vllama.models.types import Format
from vllama.supervise.probe import check as probe_once
from vllama.supervise.spec import Endpoint, Exit, Fault, LaunchSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The last lines of a start that failed, as recorded, and the cause that users should read.

    `code` is the exit code (negative: a signal, None: it had to be ended). `cause` is contained in
    the diagnosis, whose fault and `retryable` are as given here.
    """

    lines: tuple[str, ...]
    cause: str
    code: int | None = 1
    fault: Fault | None = None
    retryable: bool = False


def collect(check: Iterator[str]) -> Iterator[str]:
    """Yield a check's findings; an exception of the adapter is one of them."""
    try:
        yield from check
    except Exception as error:
        frame = error.__traceback__
        while frame and frame.tb_next:
            frame = frame.tb_next
        where = f"{frame.tb_frame.f_code.co_name}, line {frame.tb_lineno}" if frame else "?"
        yield f"it raised {type(error).__name__}: {error} (in {where})"


def check_names(engine: Engine) -> Iterator[str]:
    if engine.name in engine.aliases:
        yield f"`aliases` repeats the name '{engine.name}'"
    if not engine.formats:
        yield "`formats` is empty: no model would ever use it"
    if not engine.modes:
        yield "`modes` is empty: it would never be started"


def check_answers(engine: Engine) -> Iterator[str]:
    """Call what the planner asks about machines and models."""
    for platform in PLATFORMS:
        score, reason = engine.preference(platform)
        if not isinstance(score, int) or score < 0 or not reason:
            yield f"`preference` returns {(score, reason)!r}: return a number ≥ 0 and a reason"
        refusal = engine.refuses(platform, MODEL)
        if refusal is not None and not (isinstance(refusal, str) and refusal):
            yield f"`refuses` returns {refusal!r}: return None, or the reason"
    found = engine.find(SearchPaths(search=""))
    if isinstance(found, Missing):
        if not (found.reason and found.hint):
            yield "`find` returns a Missing without a reason or a hint"
    elif not (found.python or found.executable or engine.attaches):
        yield "`find` returns an Installation without `python` and `executable`"
    if found.engine != engine.name:
        yield f"`find` returns an installation of engine '{found.engine}'"


def check_launch(engine: Engine) -> Iterator[str]:
    """Build the start of a process in each mode, twice."""
    for mode in engine.modes:
        settings = make_settings(mode, extra_args=USER_ARGUMENTS)
        environ = dict(USER_VARIABLES)
        endpoint = Endpoint(port=PORT, api_key=KEY)
        spec = launch(engine, settings, endpoint, environ)
        again = launch(engine, settings, endpoint, dict(environ))
        if (spec.argv, dict(spec.env)) != (again.argv, dict(again.env)):
            yield "`launch` is not pure: the same arguments produced a different command line"
        if environ != USER_VARIABLES:
            yield "`launch` changes the mapping `environ`"
        if not spec.argv or not all(isinstance(word, str) and word for word in spec.argv):
            yield f"`launch` returns the command line {spec.argv!r}: each item must be a string"
            return
        if not Path(spec.argv[0]).is_absolute():
            yield f"`launch` starts '{spec.argv[0]}': use the full path of the installation"
        passed = " ".join((*spec.argv, *spec.env.values()))
        if str(PORT) not in passed and not spec.endpoint.socket:
            yield "`launch` does not pass the port to the server (`endpoint.port`)"
        if KEY in " ".join(spec.argv):
            yield (
                "`launch` puts the key into the command line, where every user can read it: "
                "pass it in a variable, or not at all"
            )
        if spec.argv[-len(USER_ARGUMENTS) :] != USER_ARGUMENTS:
            yield "`launch` does not put `settings.extra_args` last, where they take precedence"
        if "MY_PASSWORD" in spec.env or spec.env.get("HOST") == USER_VARIABLES["HOST"]:
            yield (
                "`launch` passes on the user's whole environment: use "
                "vllama.engines.child_env.build_child_env"
            )
        if spec.name != settings.alias:
            yield f"`launch` names the process '{spec.name}', not '{settings.alias}' (the alias)"
        for words in (spec.hopeless, spec.fatal):
            re.compile(words or "")
        for path in (spec.probe.path, spec.probe.verify_path or "/"):
            if not path.startswith("/"):
                yield f"`launch` returns a probe of '{path}': a path starts with '/'"


def check_probe(engine: Engine) -> Iterator[str]:
    """Run the probe against a server that behaves as the probe expects, and as it does not."""
    settings = make_settings(engine.modes[0])
    with serve_probes() as server:
        port = server.server_port
        spec = launch(engine, settings, Endpoint(port=port, api_key=KEY), USER_VARIABLES)
        spec = replace(spec, endpoint=Endpoint(port=port, api_key=KEY))
        takes_key = KEY in " ".join(spec.env.values())
        server.probe, server.key = spec.probe, KEY if takes_key else None
        if not _probe(spec):
            yield f"the probe of {spec.probe.path} does not succeed with a server that is ready"
        server.is_ready = False
        if _probe(spec):
            yield f"the probe of {spec.probe.path} succeeds with a server that returns 503"
        server.is_ready, server.key = True, "another-key"
        if takes_key and _probe(spec):
            yield (
                "the probe does not verify the key: set a route that requires it in "
                "`verify_path`, so that another program on the port is not mistaken for the engine"
            )


def check_attach(engine: Engine) -> Iterator[str]:
    endpoints, path = engine.attach()
    of_a_model, _ = engine.attach(make_bundle(Format.REMOTE))
    if not set(of_a_model) <= set(endpoints):
        yield "`attach` returns endpoints for an unrelated model"
    if not all(isinstance(endpoint, Endpoint) for endpoint in endpoints):
        yield "`attach` returns something that is not an Endpoint"
    if not path.startswith("/"):
        yield f"`attach` returns the path '{path}': a path starts with '/'"


def check_capabilities(engine: Engine) -> Iterator[str]:
    """Call what only some engines can do."""
    for name, act in (("sleep", engine.sleep), ("wake", engine.wake)):
        try:
            method, path = act()
        except NotImplementedError:
            continue
        if method not in ("GET", "POST", "PUT") or not path.startswith("/"):
            yield f"`{name}` returns {(method, path)!r}: return a method and a path"
    for asked in (None, 2):
        slots = engine.slots(asked)
        if slots is not None and not 0 < slots <= (asked or slots):
            yield "`slots` returns more slots than requested, or none"
    if (words := engine.lacks(None, None, None)) is not None:
        yield f"`lacks` returns {words!r} for an unknown model: return None"
    if engine.tunes:
        for platform in PLATFORMS:
            request = TuningRequest(
                settings=make_settings(engine.modes[0]), platform=platform, info=MODEL,
                installation=Installation(engine=engine.name, version="1.0"), context_asked=True,
                on_gpu=bool(platform.accelerators), reserve_bytes=0,
            )  # fmt: skip
            tuning = engine.tune(request)
            if tuning != engine.tune(request):
                yield "`tune` is not pure: the same request produced a different result"
            if tuning.settings.context_length != CONTEXT:
                yield "`tune` changes the context although `context_asked` is set"


def check_traits(engine: Engine) -> Iterator[str]:
    """Compare what the adapter declares with how it was launched, and with itself."""
    for mode in engine.modes:
        settings, bundle = make_settings(mode), make_bundle(engine.formats[0])
        traits = engine.traits(bundle, settings)
        if _values(traits) != _values(engine.traits(bundle, settings)):
            yield "`traits` is not pure: the same arguments produced different traits"
        if traits.context_length != CONTEXT:
            yield f"`traits` has context_length={traits.context_length}, but {CONTEXT} was planned"
        if traits.num_ctx is not None:
            yield "`traits` sets `num_ctx`, which belongs to single requests"
        if traits.max_concurrency < 1:
            yield "`traits` allows no requests: `max_concurrency` must be at least 1"
        if unknown := sorted(set(traits.parameters) - set(Sampling.__struct_fields__)):
            yield f"`traits` has unknown names in `parameters`: {', '.join(unknown)}"
        if traits.finish_body:
            yield from check_body(traits.finish_body)
        for field in fields(traits):
            path = getattr(traits, field.name) if field.name.endswith("_path") else None
            if path is not None and not path.startswith("/"):
                yield f"`traits` has the {field.name} '{path}': a path starts with '/'"
        if traits.roles is not None and (lacks := {"system", "user", "assistant"} - traits.roles):
            yield f"`traits` does not accept messages with the roles {', '.join(sorted(lacks))}"


def check_body(finish_body: Callable[[dict[str, Any]], object]) -> Iterator[str]:
    """Finish a chat's body twice."""
    first, second = finish_body(deepcopy(CHAT)), finish_body(deepcopy(CHAT))
    if not isinstance(first, dict):
        yield f"`finish_body` returns {first!r}: return the body"
        return
    if first != second:
        yield "`finish_body` is not pure: the same input produced a different body"
    for name in ("messages", "stream"):
        if name not in first:
            yield f"`finish_body` drops `{name}`"


def check_failures(engine: Engine) -> Iterator[str]:
    """Compile each pattern and fill its sentences."""
    for pattern in engine.failures:
        try:
            groups = re.compile(pattern.pattern).groups
        except re.error as error:
            yield f"`failures` has a bad regular expression: {pattern.pattern} ({error})"
            continue
        for words in (pattern.cause, pattern.hint or ""):
            try:
                words.format(*[""] * groups)
            except (IndexError, KeyError, ValueError):
                yield f"`failures` uses a group in '{words}' that {pattern.pattern} does not have"


def check_recordings(engine: Engine, recordings: Sequence[Recording]) -> Iterator[str]:
    """Diagnose recorded exits, and lines that any program may print."""
    diagnose = launch(engine, make_settings(engine.modes[0]), Endpoint(port=PORT), {}).diagnose
    for line, fault in COMMON_LINES:
        diagnosis = diagnose(Exit(code=1, output=("before", line, "after")))
        if diagnosis.fault is not fault:
            yield f"'{line}' is diagnosed as {diagnosis.fault}, not {fault}: '{diagnosis.cause}'"
    for one in recordings:
        diagnosis = diagnose(Exit(code=one.code, output=one.lines))
        if one.cause not in diagnosis.cause:
            yield f"the recording of '{one.cause}' is diagnosed as '{diagnosis.cause}'"
        if (diagnosis.fault, diagnosis.retryable) != (one.fault, one.retryable):
            yield (
                f"the recording of '{one.cause}' is diagnosed as {diagnosis.fault} (retryable: "
                f"{diagnosis.retryable}), not {one.fault} ({one.retryable})"
            )


def _values(traits: Traits) -> dict[str, object]:
    """Return a comparable value: functions may be made anew with each call."""
    values = {field.name: getattr(traits, field.name) for field in fields(traits)}
    return {name: value for name, value in values.items() if not callable(value)}


def _probe(spec: LaunchSpec) -> bool:
    """Probe once, in a thread of its own: the caller may run an event loop."""
    return begin(asyncio.run, probe_once(spec)).result()
