"""A model that can be loaded: what a name means on this machine, with the user's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from vllama.models.settings import ModelSettings
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.models.watch import Watch

if TYPE_CHECKING:
    from vllama.chat.request import LoadOptions, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @cached_property
    def info(self) -> ModelInfo:
        """The metadata, read from the disk the first time. Raises BadModelFile."""
        return self.read()

    def options(self, given: Mapping[str, object]) -> tuple[Sampling, LoadOptions]:
        """Return a request's options over the model's own. Raises BadRequest, Forbidden.

        The user's settings decide which of the request's hold.
        """
        if given.get("engine") is not None:
            from vllama.accounts.keys.ring import check_engine

            check_engine()
        settings = self.bundle.settings
        if settings.strip or settings.force:
            given = {
                **{name: x for name, x in given.items() if name not in (settings.strip or ())},
                **(settings.force or {}),
            }
        return self._resolve(given) if given else self._own_options

    @cached_property
    def _own_options(self) -> tuple[Sampling, LoadOptions]:
        return self._resolve({})

    def _resolve(self, given: Mapping[str, object]) -> tuple[Sampling, LoadOptions]:
        # not at the top: commands that find models have no requests
        from vllama.dialects.ollama.options import resolve_options

        return resolve_options(
            self.bundle.parameters,
            given,
            own=self.own_sampling,
            has_own_defaults=self.bundle.upstream is not None,
        )

    @cached_property
    def own_sampling(self) -> Mapping[str, float]:
        """The sampling that the model's files name; a GGUF's leave the rest to Ollama's defaults.

        A `generation_config.json` means all of it, with neutral values for the rest.
        """
        from vllama.dialects.ollama.options import NEUTRAL

        named = self.info.sampling
        folder = self.bundle.format is Format.SAFETENSORS
        return {**NEUTRAL, **named} if named and folder else named

    def limit_answer(self, asked: int | None) -> int | None:
        """Return the most tokens of an answer: the least of what is asked for and the ceilings."""
        limits = (asked, self.bundle.settings.max_tokens, self.max_tokens)
        return min([limit for limit in limits if limit is not None], default=None)

    def answer_as(self, asked: ModelSettings) -> Entry:
        """Return it with what the settings of the `asked` model say of responses."""
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
