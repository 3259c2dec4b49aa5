"""Preloading of models when a server starts, and the commands that it then suggests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading

from vllama.base import executors
from vllama.base.clock import wait_for
from vllama.base.errors import EngineMissing, ModelNotFound, VllamaError
from vllama.models.settings import ModelTables
from vllama.models.types import Bundle, Capability, Progress, PullEvent
from vllama.plan.choose import list_loadable_formats
from vllama.plan.form_choice import FitsHere
from vllama.plan.types import Need
from vllama.routes.context import Gateway
from vllama.routes.server.health import lacks_upstream
from vllama.server.reload import warn_of_links
from vllama.server.reporter import Reporter
from vllama.server.signals import Stop

FIRST_MODEL = "smollm2:135m"
RETRY_S = 60.0  # after a failed download of a model in `models_file`

log = logging.getLogger(__name__)


class Preloader:
    """Loads the models of the settings with which the server was started."""

    def __init__(self, gateway: Gateway, reporter: Reporter) -> None:
        self._gateway = gateway
        self._in_use = gateway.in_use
        self._reporter = reporter
        self.listed = asyncio.Event()  # set to have the models of `models_file` downloaded

    async def run(self, stop: Stop, address: str) -> None:
        """Load the first models, then report that the server at `address` is ready."""
        await self.load(stop)
        if not stop.asked.is_set():
            await self._wait_for_upstreams()
            command = await executors.upkeep.run(self.find_command_to_try, address)
            self._reporter.ready(address, command)
            await warn_of_links(self._in_use)

    async def load(self, stop: Stop) -> None:
        """Load the model of `--model`, then those that the settings of models name.

        If the first fails, `stop` ends the server.
        """
        if self._in_use.config.upstreams:
            await (
                self._gateway.catalog.all()
            )  # asks the upstreams now, so that no client waits for it
        name = self._in_use.config.model
        if name:
            await self._load_first(name, stop)
        for other in ModelTables(self._in_use.config.models).list_preloaded():
            try:
                await self._load(other)
            except VllamaError as error:
                self._reporter.warn(f"'{other}' is not loaded: {error.sentence()}")

    async def keep_listed(self) -> None:
        """Download missing models of `models_file` whenever `listed` is set, until canceled."""
        pause_s = math.inf
        while True:
            await wait_for(self.listed, pause_s)
            self.listed.clear()
            pause_s = math.inf
            file = self._in_use.config.models_file
            try:
                text = await executors.upkeep.run(file.read_text) if file else ""
            except OSError as error:
                log.warning("cannot read the models in '%s': %s", file, error.strerror)
                continue
            for name in filter(None, map(str.strip, text.splitlines())):
                try:
                    await self._fetch(name)
                except VllamaError as error:
                    pause_s = RETRY_S
                    log.warning("cannot download '%s': %s", name, error.sentence())

    async def _wait_for_upstreams(self) -> None:
        """Wait until an upstream can serve, if nothing else could; say for which, and why."""
        watch, reported = self._gateway.watch, ""
        await watch.check()
        while True:
            watch.changed.clear()
            if not await lacks_upstream(watch, self._in_use.library):
                break
            text = "; ".join(
                f"{where} does not serve: {why}" for where, why in watch.troubles.items()
            )
            if text != reported:
                reported = text
                self._reporter.note(f"waiting for an upstream: {text}")
            await watch.changed.wait()
        for endpoint in watch.endpoints:
            if endpoint.url not in watch.troubles:
                self._reporter.note(f"upstream: {endpoint.url} answers")

    def find_command_to_try(self, address: str) -> str:
        """Return the command that a user would type next, for the server at `address`."""
        command = f"vllama run {self._find_model_to_try()}"
        given = self._in_use.config.sources
        if any(given.get(name, "").startswith("--") for name in ("host", "port")):
            # flags of this process, which other terminals do not know
            return f"OLLAMA_HOST={address.removeprefix('http://')} {command}"
        return command

    async def _load_first(self, name: str, stop: Stop) -> None:
        try:
            self._gateway.preload.bundle = await self._load(name)
        except EngineMissing as error:  # `vllama serve` offers to install one
            stop.missing = error
            stop.asked.set()
        except VllamaError as error:
            self._reporter.error(error.message, error.hint)
            stop.code = error.exit_code
            stop.hurry.set()  # nothing was served yet, so nothing has to be waited for
            stop.asked.set()

    async def _load(self, name: str) -> Bundle:
        """Download a model if it is not here, and load it. Raises VllamaError."""
        bundle = await self._fetch(name)
        lease = await self._gateway.scheduler.acquire(bundle, Need(), None)
        self._gateway.scheduler.release(lease)
        return bundle

    async def _fetch(self, name: str) -> Bundle:
        """Return the bundle of `name`, after downloading it if it is not on this disk."""
        try:
            return (await self._gateway.catalog.find(name)).bundle
        except ModelNotFound:
            pass

        def download(progress: Progress, cancel: threading.Event) -> Bundle:
            return self._in_use.library.remote.pull(
                name,
                formats=list_loadable_formats(self._in_use.facts),
                fits=FitsHere(self._in_use.facts),
                to_load=True,
                progress=progress,
                cancel=cancel,
            )

        async def tell(event: PullEvent) -> None:
            self._reporter.pull(event)

        try:
            return await self._gateway.pulls.join(name, download).follow(tell)
        finally:
            self._gateway.catalog.forget()

    def _find_model_to_try(self) -> str:
        """Return the model of the start, else the newest that can chat, else a small one."""
        if self._in_use.config.model:
            return self._in_use.config.model
        find_alias = self._in_use.library.tables.find_alias
        for bundle in sorted(
            self._in_use.library.list(),
            key=lambda one: (find_alias(one.name) is not None, -one.modified_s),
        ):
            with contextlib.suppress(VllamaError):  # a damaged one
                if Capability.COMPLETION in self._in_use.library.info(bundle).capabilities:
                    return bundle.name
        return FIRST_MODEL
