"""A look-up of a model: its result, and the files and folders that this rests on.

The stores call `rest_on` for each path before they read it. A path has another signature when the
file is edited, replaced or removed, or when a file in the folder comes, goes or is renamed.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

# what only requests need is imported by them: short commands come here, too
if TYPE_CHECKING:
    from vllama.chat.request import LoadOptions, Sampling
    from vllama.models.settings import ModelSettings
    from vllama.models.types import Bundle, ModelInfo

MAX_PATHS = 500  # a look-up that rests on more is never reused; a signature takes 1 to 2 µs
FRESH_NS = 2_000_000_000  # changes in one tick of a file system look alike; FAT's takes 2 s
HINT_AGE_S = 2.0  # of a list that only hints are made of


Signature: TypeAlias = tuple[int, int, int, int] | None


def sign(path: str | Path) -> Signature:
    """Return inode, size and times of a file or folder, following links; None if it is missing."""
    try:
        status = os.stat(path)  # noqa: PTH116 - runs for each request, and is quicker
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Watch:
    """The signatures of the paths of a look-up, which runs inside a `with` block.

    With more than `max_paths` it never holds. It is content with others that held `max_age_s` ago.
    """

    def __init__(self, max_paths: int = MAX_PATHS, max_age_s: float = 0.0) -> None:
        self.signed: dict[str, Signature] = {}
        self._others: list[Watch] = []  # that it rests on, so that they hold
        self._max_paths, self._max_age_s = max_paths, max_age_s
        self._held_s = -math.inf
        self._began_ns = time.time_ns()
        self._is_exact = False  # not before it has ended

    def __enter__(self) -> Watch:
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
        latest_ns = max((each[3] for each in self.signed.values() if each), default=0)
        is_settled = latest_ns < self._began_ns - FRESH_NS
        self._is_exact = is_settled and len(self.signed) <= self._max_paths
        self._held_s = time.monotonic()

    def holds(self) -> bool:
        """Return whether the same look-up would have the same result now."""
        now_s = time.monotonic()
        if self._is_exact and all(map(eq, map(sign, self.signed), self.signed.values())):
            self._held_s = now_s
            return True
        return False

    def rests_on(self, other: Watch) -> bool:
        """Return whether it rests on another look-up, which held a moment ago."""
        return other in self._others or time.monotonic() - other._held_s < self._max_age_s

    def rest_on(self, other: Watch) -> None:
        """Rest on all that another look-up rests on, too."""
        self._others.append(other)
        self.signed = other.signed | self.signed  # the first signature of a path counts
        self._began_ns = min(self._began_ns, other._began_ns)


_current: ContextVar[Watch | None] = ContextVar("watch", default=None)


def current() -> Watch | None:
    """Return the watch of the running look-up."""
    return _current.get()


def rest_on(*paths: Path) -> None:
    """Add paths to the watch of the running look-up."""
    if (watch := _current.get()) is not None:
        watch.signed |= {path: sign(path) for path in map(str, paths) if path not in watch.signed}


@dataclass(frozen=True, slots=True)
class InspectRules:
    """Rules for requests that inspect a model; `engines` are the capable ones, by title."""

    most_bytes: int
    engines: tuple[str, ...]


@dataclass(eq=False)
class Entry:
    """Result of `Library.find`, good while `watch` holds; `max_tokens` is the server's ceiling."""

    bundle: Bundle
    read: Callable[[], ModelInfo]
    max_tokens: int | None = None
    inspect_rules: InspectRules | None = None
    watch: Watch = field(default_factory=Watch)
    _own: tuple[Sampling, LoadOptions] | None = field(default=None, init=False)

    @cached_property
    def info(self) -> ModelInfo:
        """The metadata, read from the disk the first time. Raises BadModelFile."""
        return self.read()

    def options(self, given: Mapping[str, object]) -> tuple[Sampling, LoadOptions]:
        """Return a request's options over the model's own. Raises BadRequest, Forbidden.

        The user's settings decide which of the request's hold.
        """
        from vllama.accounts.keys.ring import check_load_option
        from vllama.dialects.ollama.options import OWN_OPTIONS, resolve_options

        for name in OWN_OPTIONS:
            if given.get(name) is not None:
                check_load_option(name)
        settings = self.bundle.settings
        if settings.strip or settings.force:
            given = {
                **{name: x for name, x in given.items() if name not in (settings.strip or ())},
                **(settings.force or {}),
            }
        if not given and self._own is not None:
            return self._own
        found = resolve_options(
            self.bundle.parameters,
            given,
            own=self.own_sampling,
            has_own_defaults=self.bundle.upstream is not None,
        )
        self._own = self._own if given else found
        return found

    @cached_property
    def own_sampling(self) -> Mapping[str, float]:
        """The sampling that the model's files name; a GGUF's leave the rest to Ollama's defaults.

        A `generation_config.json` means all of it, with neutral values for the rest.
        """
        from vllama.dialects.ollama.options import NEUTRAL
        from vllama.models.types import Format

        named = self.info.sampling
        folder = self.bundle.format is Format.SAFETENSORS
        return {**NEUTRAL, **named} if named and folder else named

    def limit_answer(self, asked: int | None) -> int | None:
        """Return the most tokens of an answer: the least of what is asked for and the ceilings."""
        limits = (asked, self.bundle.settings.max_tokens, self.max_tokens)
        return min([limit for limit in limits if limit is not None], default=None)

    def answer_as(self, asked: ModelSettings) -> Entry:
        """Return the entry with the response settings of the `asked` model."""
        bundle = self.bundle
        settings = replace(
            bundle.settings, defaults=asked.defaults, force=asked.force, strip=asked.strip
        )
        bundle = replace(
            bundle,
            settings=settings,
            parameters={**bundle.parameters, **(asked.defaults or {})},
            system=bundle.system if asked.system is None else asked.system,
        )
        return replace(self, bundle=bundle)

    @property
    def full_name(self) -> str:
        """The name with its host, as Ollama writes it in what a model cannot do."""
        name = self.bundle.name
        if name.count("/") >= 2:
            return name
        return f"registry.ollama.ai/{name if '/' in name else f'library/{name}'}"
