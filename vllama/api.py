"""The Python API: `Server` and `serve` run a server, `resolve`, `plan` and `pull` are about models.

A server of a program's own is `vllama serve` in a process of its own, so that neither can hold up
the other. It runs under the guard that engines have (`vllama.supervise.guard`): nothing outlives
this process, however it ends. It listens on a free port of loopback unless a port is named.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from vllama import config
from vllama.base import executors
from vllama.base.errors import ConfigError, ServeFailed
from vllama.config import Config, removed
from vllama.config.parse import whole_path
from vllama.config.settings import BY_FIELD
from vllama.models.library import Library, open_library
from vllama.models.names.ref import ModelRef
from vllama.models.remote import make_too_large_error
from vllama.models.types import Bundle, Progress
from vllama.plan.choose import list_loadable_formats
from vllama.plan.form_choice import FitsHere
from vllama.plan.ladder import make_first_plan
from vllama.plan.preview import Resolved, resolve_name
from vllama.plan.quant_fallback import list_forms_here
from vllama.plan.remote import add_remote
from vllama.plan.types import Need, Plan
from vllama.server.preflight import gather_facts
from vllama.supervise.guard import Command, Guard, GuardFailed
from vllama.supervise.spec import Grace

__all__ = ["Resolved", "Server", "plan", "pull", "resolve", "serve"]


def resolve(model: str, **settings: Any) -> Resolved:
    """Resolve `model` without downloading it: on this disk, else on the hub.

    `settings` are those of `vllama serve` by field (`context_length=8192`). Raises InvalidModelRef,
    ModelNotFound, NoPlan, NotEnoughMemory, Offline, SourceError.
    """
    settings_ = config.load(settings, config.environ())
    return resolve_name(_library(settings_), gather_facts(settings_), whole_path(model))


def plan(model: str, **settings: Any) -> Plan:
    """Return how `serve` would run `model`: engine, context, memory, and the reasons.

    Reads the header of a model that is not here from the hub, a few MB at most. Raises what
    `resolve` raises.
    """
    settings_ = config.load(settings, config.environ())
    library, facts = _library(settings_), gather_facts(settings_)
    found = resolve_name(library, facts, whole_path(model))
    if found.resolution is None:
        facts, info = add_remote(facts, found.bundle), library.plan_info(found.bundle)
        return make_first_plan(
            facts, found.bundle, info, Need(), lambda: list_forms_here(library, found.bundle)
        )
    if found.resolution.shortage is not None:
        raise make_too_large_error(
            ModelRef.parse(whole_path(model)),
            found.resolution,
            found.resolution.shortage,
            to_load=True,
        )
    return make_first_plan(facts, found.bundle, library.remote.look_into(found.resolution), Need())


def pull(
    model: str,
    *,
    progress: Progress = lambda event: None,
    cancel: threading.Event | None = None,
    **settings: Any,
) -> Bundle:
    """Download `model`, or go on with a download that was stopped; return what is on the disk.

    `progress` gets a `PullEvent` now and then; setting `cancel` stops it, and what is there is
    kept. Raises what `resolve` raises, and Canceled, DiskFull.
    """
    settings_ = config.load(settings, config.environ())
    facts = gather_facts(settings_)
    return _library(settings_).remote.pull(
        whole_path(model),
        formats=list_loadable_formats(facts),
        fits=FitsHere(facts),
        progress=progress,
        cancel=cancel,
    )


def _library(settings: Config) -> Library:
    config.prepare_environment()
    return open_library(config.models_settings(settings))


GRACE = Grace(term_s=15.0, second_term_s=10.0)
SPAWN_LIMIT_S = 30.0
STOP_LIMIT_S = 45.0
LOOK_EVERY_S = 0.1
READY = re.compile(r"ready: (https?://\S+)")
"""How the server says where it is, once the model of `--model` is loaded."""


def serve(model: str | None = None, **options: Any) -> Server:
    """Return a server to be used in `with` or `async with`; `options` are those of `Server`."""
    return Server(model, **options)


class Server:
    """`vllama serve` as a context manager: ready once it is entered, gone when it is left.

    `model` is loaded before it is ready; without one, models are loaded as requests ask for them.
    `settings` are those of `vllama serve` by their names in the config file or their fields
    (`context_length=8192`, `strict=True`); they win over variables and file. `environ` are the
    variables it starts with, this process's own as a rule. `on_line` gets each line that it prints
    while it starts, in another thread.

    Entering raises ServeFailed with the server's own words where it ends before it is ready, and
    the constructor ConfigError for a setting that does not exist.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        engine: str | None = None,
        port: int = 0,
        environ: Mapping[str, str] | None = None,
        on_line: Callable[[str], object] | None = None,
        **settings: object,
    ) -> None:
        self.model = model
        self.url = ""
        """Where it listens, `http://127.0.0.1:PORT`; OpenAI's API is at `/v1` below it."""
        self._on_line = on_line or (lambda line: None)
        self._arguments = (
            *(("--model", model) if model else ()),
            *(("--engine", engine) if engine else ()),
            *("--host", "127.0.0.1", "--port", str(port), "--log-format", "text"),
        )
        self._environ = {**(config.environ() if environ is None else environ), **_env(settings)}
        self._pid = 0
        self._cancelled = threading.Event()
        self._ended = threading.Event()
        self._code: int | None = None
        self._stack = ExitStack()
        self._said: list[str] = []

    def start(self) -> None:
        """Start it and wait until it is ready. Raises ServeFailed."""
        self._cancelled.clear()
        self._ended.clear()
        with ExitStack() as stack:
            # the guard removes it as well, in case this process is killed
            folder = tempfile.TemporaryDirectory(prefix="vllama-serve-", ignore_cleanup_errors=True)
            log = Path(stack.enter_context(folder)) / "serve.log"
            log.touch()
            lines = stack.enter_context(log.open(encoding="utf-8", errors="replace"))
            try:
                self._spawn(stack, log)
            except GuardFailed as error:
                raise ServeFailed(f"cannot start a server: {error}") from None
            self._wait_ready(lines)
            self._stack = stack.pop_all()

    def stop(self) -> None:
        """End it with all that it started, and wait for that."""
        self._stack.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.create_task(executors.upkeep.run(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._cancelled.set()  # the thread ends what it has begun
            await asyncio.wait({starting})
            if not starting.cancelled() and starting.exception() is None:
                await executors.upkeep.run(self.stop)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await executors.upkeep.run(self.stop)

    def _spawn(self, stack: ExitStack, log: Path) -> None:
        command = Command(
            argv=(sys.executable, "-P", "-m", "vllama", "serve", *self._arguments),
            env=self._environ,
            log_path=log,
            cwd=None,
            grace=GRACE,
            scratch=log.parent,
        )
        guard = stack.enter_context(Guard(command))
        self._pid = guard.read_pid(SPAWN_LIMIT_S)
        # a daemon: a program that ends without leaving the context must not wait for it
        waiter = threading.Thread(
            target=self._wait_end, args=(guard,), name="vllama-server", daemon=True
        )
        waiter.start()
        stack.callback(waiter.join)
        stack.callback(self._terminate)

    def _wait_end(self, guard: Guard) -> None:
        self._code = guard.read_exit()
        self._ended.set()

    def _terminate(self) -> None:
        """End it in order; the guard, which is closed next, sees to the rest."""
        if not self._ended.is_set():
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
            self._ended.wait(STOP_LIMIT_S)

    def _wait_ready(self, log: TextIO) -> None:
        rest = ""
        while True:
            ended = self._ended.wait(LOOK_EVERY_S)
            *whole, rest = (rest + log.read()).split("\n")
            for line in whole:
                self._hear(line)
                if self.url:
                    return
            if ended or self._cancelled.is_set():
                raise self._make_error()

    def _hear(self, line: str) -> None:
        if found := READY.match(line):
            self.url = found[1]
        self._said.append(line)
        self._on_line(line)

    def _make_error(self) -> ServeFailed:
        """Make the error of a server that ended before it was ready."""
        told = {
            name: line.removeprefix(name)
            for name in ("Error: ", "Hint: ")
            for line in self._said
            if line.startswith(name)
        }
        last = next((line for line in reversed(self._said) if line.strip()), "it printed nothing")
        cause = told.get("Error: ") or f"exit code {self._code}: {last}"
        what = f"'{self.model}'" if self.model else "models"
        return ServeFailed(f"cannot serve {what}: {cause}", hint=told.get("Hint: "))


def _env(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings as variables, which unlike arguments no other user of the machine can see."""
    by_key = {setting.key: setting for setting in BY_FIELD.values()}
    out = {}
    for name, value in settings.items():
        setting = BY_FIELD.get(name) or by_key.get(name)
        if setting is None:
            raise ConfigError(
                f"cannot start a server: '{name}' is not a setting",
                hint=removed.SETTINGS.get(name) or removed.suggest_setting(name, by_key),
            )
        if value is not None:
            out[setting.env] = setting.kind.text(value)
    return out
