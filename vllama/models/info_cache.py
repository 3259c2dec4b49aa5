"""The metadata of models, read once for each state of their files."""

from __future__ import annotations

import threading
from collections import OrderedDict

from vllama.models.stores.local import check_base
from vllama.models.types import Bundle, ModelInfo

_INFOS_KEPT = 256


class InfoCache:
    """Reads the headers of models' files, and remembers the latest. For many threads."""

    def __init__(self) -> None:
        self._infos: OrderedDict[tuple[object, ...], ModelInfo] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, bundle: Bundle) -> ModelInfo:
        """Return what a model's files say of it, without its template. Raises BadModelFile."""
        if bundle.info is not None:
            return bundle.info
        check_base(bundle)
        key = _state(bundle)
        with self._lock:
            if key in self._infos:
                self._infos.move_to_end(key)
                return self._infos[key]
        # not at the top: starting a server and listing models read no model
        from vllama.models.info import read_info

        info = read_info(bundle)
        with self._lock:
            self._infos[key] = info
            while len(self._infos) > _INFOS_KEPT:
                self._infos.popitem(last=False)
        return info


def _state(bundle: Bundle) -> tuple[object, ...]:
    try:
        times = tuple(path.stat().st_mtime_ns for path in bundle.files)
    except OSError:
        times = ()
    return (bundle.path, bundle.projector, bundle.quant, bundle.size_bytes, times)
