"""The chain of models that may answer one request: the requested one, then its fallbacks.

`find_model` asks the chain of the running request, so that no handler has to know of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

from vllama.errors import VllamaError
from vllama.models.model_settings import ModelSettings

if TYPE_CHECKING:
    from vllama.clock import Clock
    from vllama.models.types import Bundle

BROKEN_S, BROKEN_MOST_S = 1.0, 30.0


class Chain:
    """The chain of one request; `link` is what is to answer now, "" for the requested model."""

    def __init__(self, breakers: Breakers, is_down: Callable[[Bundle], bool]) -> None:
        """Prepare; `is_down` tells whether another server that has a model fails its checks."""
        self.link = ""
        self.skips = True  # models that have failed lately
        self.on_found: Callable[[], object] = bool
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
        if self.settings.fallback and self.skips:
            known = not self.link and not self._breakers.admit(self.served)
            if known or bundle.key in self._failed or self._is_down(bundle):
                raise Skipped
        self.on_found()
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

    @property
    def server_fails(self) -> bool:
        """Whether the server that is to answer has failed its latest check."""
        return self.bundle is not None and self._is_down(self.bundle)

    def note_failure(self, *, slow: bool) -> None:
        """Have requests skip what could not answer for a while."""
        self._breakers.note_failure(self.served, slow=slow)

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


class Skipped(VllamaError):
    """A model has failed lately, and others may answer for it."""

    def __init__(self) -> None:
        super().__init__("it has failed lately")


current: ContextVar[Chain | None] = ContextVar("chain", default=None)
"""The chain of the request that the running task answers; None: it has none."""


class Breakers:
    """Which links have failed lately, so that requests skip them for a while.

    The pause starts at `BROKEN_S` and doubles with each failure in a row. When it is over, one
    request tries the link, and the others go on to skip it until that one has succeeded.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, tuple[float, float]] = {}  # until when, and the length of the pause

    def admit(self, link: str) -> bool:
        """Return whether a request may try `link` now."""
        if link not in self._open:
            return True
        until_s, pause_s = self._open[link]
        now_s = self._clock.monotonic()
        if now_s < until_s:
            return False
        self._open[link] = now_s + pause_s, pause_s
        return True

    def note_failure(self, link: str, *, slow: bool) -> None:
        """Skip `link` for a while; one that is `slow` to fail costs more time."""
        before_s = self._open[link][1] if link in self._open else 0.0
        pause_s = BROKEN_MOST_S if slow else min(max(BROKEN_S, 2 * before_s), BROKEN_MOST_S)
        self._open[link] = self._clock.monotonic() + pause_s, pause_s

    def note_success(self, link: str) -> None:
        """Use `link` again."""
        self._open.pop(link, None)
