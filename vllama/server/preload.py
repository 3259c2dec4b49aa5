"""What a server loads when it starts, and what it then suggests to type."""

from __future__ import annotations

import contextlib
import threading

from vllama.config import Config
from vllama.errors import EngineMissing, ModelNotFound, VllamaError
from vllama.models.library import Library
from vllama.models.model_settings import ModelTables
from vllama.models.types import Bundle, Capability, Progress, PullEvent
from vllama.plan.choose import list_loadable_formats
from vllama.plan.fitting import FitsHere
from vllama.plan.types import Facts, Need
from vllama.routes.catalog import Catalog
from vllama.routes.context import Preload
from vllama.routes.pulls import Pulls
from vllama.scheduler.scheduler import Scheduler
from vllama.server.reporter import Reporter
from vllama.server.signals import Stop

FIRST_MODEL = "smollm2:135m"


class Preloader:
    """Loads the models of the settings with which the server was started."""

    def __init__(
        self,
        config: Config,
        facts: Facts,
        library: Library,
        *,
        catalog: Catalog,
        scheduler: Scheduler,
        pulls: Pulls,
        reporter: Reporter,
        preloaded: Preload,
    ) -> None:
        self._config = config
        self._facts = facts
        self._library = library
        self._catalog = catalog
        self._scheduler = scheduler
        self._pulls = pulls
        self._reporter = reporter
        self._preloaded = preloaded

    async def load(self, stop: Stop) -> None:
        """Load the model of `--model`, then those that the settings of models name.

        If the first fails, `stop` ends the server.
        """
        if self._config.upstreams:
            await self._catalog.all()  # asks the upstreams now, so that no client waits for it
        name = self._config.model
        if name:
            await self._load_first(name, stop)
        for other in ModelTables(self._config.models).list_preloaded():
            try:
                await self._load(other)
            except VllamaError as error:
                self._reporter.warn(f"'{other}' is not loaded: {error.sentence()}")

    def find_command_to_try(self, address: str) -> str:
        """Return the command that a user would type next, for the server at `address`."""
        command = f"vllama run {self._find_model_to_try()}"
        given = self._config.sources
        if any(given.get(name, "").startswith("--") for name in ("host", "port")):
            # flags of this process, which other terminals do not know
            return f"OLLAMA_HOST={address.removeprefix('http://')} {command}"
        return command

    async def _load_first(self, name: str, stop: Stop) -> None:
        try:
            self._preloaded.bundle = await self._load(name)
        except EngineMissing as error:  # whoever started the server offers to install one
            stop.missing = error
            stop.asked.set()
        except VllamaError as error:
            self._reporter.error(error.message, error.hint)
            stop.code = error.exit_code
            stop.asked.set()

    async def _load(self, name: str) -> Bundle:
        """Download a model if it is not here, and load it. Raises VllamaError."""
        bundle = await self._fetch(name)
        lease = await self._scheduler.acquire(bundle, Need(), None)
        self._scheduler.release(lease)
        return bundle

    async def _fetch(self, name: str) -> Bundle:
        """Return the bundle of `name`, after downloading it if it is not on this disk."""
        try:
            return (await self._catalog.find(name)).bundle
        except ModelNotFound:
            pass

        def download(progress: Progress, cancel: threading.Event) -> Bundle:
            return self._library.remote.pull(
                name,
                formats=list_loadable_formats(self._facts),
                fits=FitsHere(self._facts),
                to_load=True,
                progress=progress,
                cancel=cancel,
            )

        async def tell(event: PullEvent) -> None:
            self._reporter.pull(event)

        try:
            return await self._pulls.join(name, download).follow(tell)
        finally:
            self._catalog.forget()

    def _find_model_to_try(self) -> str:
        """Return the model of the start, else the newest that can chat, else a small one."""
        if self._config.model:
            return self._config.model
        find_alias = self._library.configured.tables.find_alias
        for bundle in sorted(
            self._library.list(),
            key=lambda one: (find_alias(one.name) is not None, -one.modified_s),
        ):
            with contextlib.suppress(VllamaError):  # a damaged one
                if Capability.COMPLETION in self._library.info(bundle).capabilities:
                    return bundle.name
        return FIRST_MODEL
