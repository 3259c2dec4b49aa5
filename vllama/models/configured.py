"""What the tables `[models."NAME"]` make of the models: settings, other names, draft models."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from vllama.errors import InvalidModelRef, ModelNotFound, VllamaError
from vllama.models.disk import list_model_files
from vllama.models.model_settings import ModelTables, is_pattern
from vllama.models.types import Bundle, ModelInfo

log = logging.getLogger(__name__)

OK = "ok"
AUTO = "auto"
"""A draft model that is found among the models here."""


class ConfiguredModels:
    """Gives models the settings that the user wrote for them. May be used by many threads."""

    def __init__(
        self,
        tables: ModelTables,
        find: Callable[[str], Bundle | None],
        read: Callable[[Bundle], ModelInfo],
        list_models: Callable[[], Sequence[Bundle]],
    ) -> None:
        """Prepare; `find` returns the model of a name as its store has it, `read` its metadata.

        `list_models` returns all models as their stores have them.
        """
        self.tables = tables
        self._find = find
        self._read = read
        self._list = list_models
        self._lock = threading.Lock()
        self._drafts: dict[tuple[str, str], str] = {}  # OK, or why a draft model is left out

    def find(self, name: str) -> Bundle | None:
        """Return the model called `name`, or None. Raises InvalidModelRef.

        One that is not here is the first model of its fallback chain that is.
        """
        name = self.tables.find_alias(name) or name
        if (bundle := self._find(name)) is not None:
            return bundle
        for link in self.tables.find([name]).fallback or ():
            try:
                bundle = self._find(link)
            except InvalidModelRef:
                continue
            if bundle is not None:
                return replace(bundle, name=_add_tag(name))
        return None

    def apply(
        self, bundle: Bundle, names: Iterable[str] = (), others: Sequence[Bundle] | None = None
    ) -> Bundle:
        """Return a model with its settings; `names` are others that it is known by.

        `others` are the models as their stores have them, None: they are listed if need be.
        """
        settings = self.tables.find([bundle.name, *names])
        if not settings.given:
            return bundle
        stored = bundle
        if settings.defaults:
            bundle = replace(bundle, parameters={**bundle.parameters, **settings.defaults})
        if settings.system is not None:
            bundle = replace(bundle, system=settings.system)
        if settings.draft:
            bundle = self._add_draft(bundle, settings.draft, others)
        return replace(bundle, settings=settings, stored=stored)

    def list_others(self, bundles: Sequence[Bundle]) -> list[Bundle]:
        """Return the models with names that only the tables have, next to `bundles`."""
        here = {bundle.name.lower() for bundle in bundles}
        names = [alias for alias, _ in self.tables.list_aliases()]
        names += [
            name for name, each in self.tables.tables if each.fallback and not is_pattern(name)
        ]
        found = []
        for name in dict.fromkeys(map(_add_tag, names)):
            if name.lower() in here:
                continue
            try:
                bundle = self.find(name)
            except InvalidModelRef:
                continue
            if bundle is not None:
                found.append(replace(bundle, name=name))
        return [self.apply(bundle) for bundle in found]

    def _add_draft(self, bundle: Bundle, name: str, others: Sequence[Bundle] | None) -> Bundle:
        """Return a model with the draft model `name`, or as it is if that cannot draft for it."""
        from vllama.models.draft_check import check_draft  # only where a draft is wanted

        key = (bundle.key, name)
        try:
            draft = self._find_draft(bundle, others) if name == AUTO else self._find(name)
            if draft is None:
                if name == AUTO:
                    return bundle
                raise ModelNotFound(name)
            with self._lock:
                if name != AUTO and self._drafts.get(key) != OK:
                    check_draft(draft.path, bundle, self._read(bundle))
                self._drafts[key] = OK
        except VllamaError as error:
            if self._drafts.get(key) != error.message:
                log.warning("%s: its draft model is left out: %s", bundle.name, error.sentence())
            self._drafts[key] = error.message
            return bundle
        files = (*bundle.files, *list_model_files(draft.path))
        return replace(bundle, draft=draft.path, files=files)

    def _find_draft(self, bundle: Bundle, others: Sequence[Bundle] | None) -> Bundle | None:
        from vllama.models.draft_search import find_draft

        others = self._list() if others is None else others
        return find_draft(bundle, self._read(bundle), others, self._read)


def _add_tag(name: str) -> str:
    return name if ":" in PurePosixPath(name).name else f"{name}:latest"
