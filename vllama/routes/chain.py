"""The chain of models that may answer one request: the requested one, then its fallbacks.

`find_model` asks the chain of the running request, so that no handler has to know of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

from vllama.base.errors import VllamaError
from vllama.models.settings import ModelSettings
from vllama.targets.breakers import Breakers

if TYPE_CHECKING:
    from vllama.models.types import Bundle

FIRST_TOKEN_S = 30.0


class Chain:
    """The chain of one request; `link` is what is to answer now, "" for the requested model."""

    def __init__(self, breakers: Breakers[str], is_down: Callable[[Bundle], bool]) -> None:
        """Prepare; `is_down` tells whether another server that has a model fails its checks."""
        self.link = ""
        self.skips = True  # models that have failed lately
        self.on_found: Callable[[float], object] = bool  # called with the limit for a token
        self._breakers = breakers
        self._is_down = is_down
        self._failed: set[str] = set()  # the keys of models that have failed for this request
        self.name = ""  # of the requested model, once the handler has looked for it
        self.model = ""  # the requested model, "" if there is none of that name here
        self.bundle: Bundle | None = None  # what is to answer
        self.settings = ModelSettings()  # those of the requested model

    def take(self, name: str, settings: ModelSettings) -> None:
        """Note which model is requested, and what is set for it, before it is looked for."""
        self.name, self.settings, self.bundle = name, settings, None

    def begin(self, bundle: Bundle) -> Bundle:
        """Return what is to answer. Raises Skipped for a model that is unlikely to.

        That is one whose server is down, or that has failed lately or for this very request. What
        was set for the requested model's answers also holds for those of its fallbacks.
        """
        if self.link:
            bundle = self._with_settings(bundle)
        else:
            self.settings, self.model = bundle.settings, bundle.name
        self.bundle = bundle
        if self.settings.fallback:
            if self.skips and (
                bundle.key in self._failed
                or self._is_down(bundle)
                or not self._breakers.admit(bundle.key)
            ):
                raise Skipped
            self.on_found(self.settings.fallback_after_s or FIRST_TOKEN_S)
        return bundle

    def _with_settings(self, bundle: Bundle) -> Bundle:
        wanted = self.settings
        settings = replace(
            bundle.settings, defaults=wanted.defaults, force=wanted.force, strip=wanted.strip
        )
        return replace(
            bundle,
            settings=settings,
            parameters={**bundle.parameters, **(wanted.defaults or {})},
            system=bundle.system if wanted.system is None else wanted.system,
        )

    def note_failure(self, *, slow: bool) -> None:
        """Have requests skip what could not answer for a while, whatever name they use for it."""
        if self.bundle is not None:
            self._breakers.note_failure(self.bundle.key, slow=slow)

    def note_success(self) -> None:
        """Use what has answered again."""
        if self.bundle is not None:
            self._breakers.note_success(self.bundle.key)

    def note_attempt(self) -> None:
        """Do not try the same model under another name for this request."""
        if self.bundle is not None:
            self._failed.add(self.bundle.key)

    @property
    def served(self) -> str:
        """What is to answer, as it is called in logs and metrics."""
        return self.link or self.model

    @property
    def is_elsewhere(self) -> bool:
        """Whether another server is to answer."""
        return self.bundle is not None and self.bundle.upstream is not None

    @property
    def may_pass_on(self) -> bool:
        """Whether another server is to answer, and links are left that have not been tried."""
        return self.is_elsewhere and self.skips and bool(self.settings.fallback)


class Skipped(VllamaError):
    """A model has failed lately, and others may answer for it."""

    def __init__(self) -> None:
        super().__init__("it has failed lately")


current: ContextVar[Chain | None] = ContextVar("chain", default=None)
"""The chain of the request that the running task answers; None: it has none."""
