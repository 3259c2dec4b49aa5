"""The models on the disk: whether some have come, changed or gone, whoever has done that."""

from __future__ import annotations

from vllama.base import executors
from vllama.models.types import Bundle
from vllama.routes.catalog import Catalog


class Disk:
    """The models at the last look; `changes` counts how often they were others than before."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._seen: frozenset[tuple[object, ...]] = frozenset()
        self._known_changes = 0
        self.changes = 0

    @property
    def is_outdated(self) -> bool:
        """Whether this server itself has changed something since the last look."""
        return self._catalog.changes != self._known_changes

    @property
    def count(self) -> int:
        """How many models there were."""
        return len(self._seen)

    async def look(self) -> None:
        """Look at the disk, in a thread: no model is read."""
        self._known_changes = self._catalog.changes
        bundles = await executors.upkeep.run(self._catalog.library.list)
        seen = frozenset(_identify(bundle) for bundle in bundles)
        if seen != self._seen:
            self._seen = seen
            self.changes += 1


def _identify(bundle: Bundle) -> tuple[object, ...]:
    return bundle.name, bundle.key, bundle.size_bytes, bundle.modified_s
