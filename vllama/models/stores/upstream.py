"""Models of servers that already run elsewhere (`--upstream`): listed from their `/v1/models`.

Nothing of them lies on this disk, so a bundle of this store has no files and carries what the
server told about the model. Blocking; an answer is kept for a few seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from vllama.models.limits import MOST_JSON_BYTES, decode_json
from vllama.models.ref import ModelRef
from vllama.models.stores.base import compute_digest
from vllama.models.types import Bundle, Capability, Format, ModelInfo

KEEP_S = 5.0
TIMEOUT_S = 3.0
SCHEME = "upstream:"


class UpstreamStore:
    """The models that the given servers list; `urls` without a trailing `/v1`."""

    name = "upstream"

    def __init__(self, urls: Sequence[str], key: str | None) -> None:
        self._urls = tuple(_root(url) for url in urls)
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._lock = threading.Lock()
        self._kept: tuple[float, list[Bundle]] = (0.0, [])

    def list(self) -> list[Bundle]:
        """Return the models of all servers that answer; one model on several is one."""
        with self._lock:
            until_s, bundles = self._kept
            if time.monotonic() < until_s:
                return list(bundles)
            found: dict[str, Bundle] = {}
            for url in self._urls:
                for row in self._models(url):
                    bundle = _bundle(row)
                    found.setdefault(bundle.name, bundle)
            # a server that is away for a moment does not take its models along
            bundles = list(found.values()) or bundles
            self._kept = (time.monotonic() + KEEP_S, bundles)
            return list(bundles)

    def find(self, ref: ModelRef) -> Bundle | None:
        """Return the model that was meant, by the server's own id, with or without `:latest`."""
        wanted = ref.text.strip().lower()
        for bundle in self.list():
            own = str(bundle.hub_id).lower()
            if wanted in (own, bundle.name.lower()) or wanted == f"{own}:latest":
                return bundle
        return None

    def keeps(self, bundle: Bundle) -> tuple[str, str]:
        """Return why a model elsewhere is not deleted."""
        return "it lies on another server", "remove it there"

    def _models(self, url: str) -> Sequence[Mapping[str, Any]]:
        # the standard library's client: it is asked while streams run, and this one is cheap
        where = urlsplit(url)
        kind = HTTPSConnection if where.scheme == "https" else HTTPConnection
        try:
            with closing(kind(where.netloc, timeout=TIMEOUT_S)) as connection:
                connection.request("GET", f"{where.path}/v1/models", headers=self._headers)
                answer = connection.getresponse()
                if answer.status != 200:
                    return ()
                rows = decode_json(answer.read(MOST_JSON_BYTES))["data"] or ()
        except (OSError, HTTPException, ValueError, KeyError, TypeError):
            return ()
        return [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]


def _bundle(row: Mapping[str, Any]) -> Bundle:
    """Return a row of `/v1/models` as a bundle; vLLM and llama-server tell more than the name."""
    name: str = row["id"]
    meta = row.get("meta") if isinstance(row.get("meta"), dict) else {}
    assert isinstance(meta, dict)
    context = row.get("max_model_len") or meta.get("n_ctx")
    created = row.get("created")
    return Bundle(
        name=name if ":" in PurePosixPath(name).name else f"{name}:latest",
        store=UpstreamStore.name,
        format=Format.REMOTE,
        path=Path(f"{SCHEME}{name}"),
        files=(),
        size_bytes=int(meta.get("size") or 0),
        digest=compute_digest([(name, "", 0)]),
        modified_s=float(created) if isinstance(created, int | float) else 0.0,
        hub_id=name,
        info=ModelInfo(
            architecture=str(row.get("owned_by") or "unknown"),
            parameter_count=meta.get("n_params"),
            context_length=context if isinstance(context, int) else None,
            # the list does not tell: nothing is refused here that the server may be able to do
            capabilities=frozenset(
                {
                    Capability.COMPLETION,
                    Capability.TOOLS,
                    Capability.THINKING,
                    Capability.VISION,
                }
            ),
        ),
    )


def _root(url: str) -> str:
    """Return the address that `/v1/models` is put after."""
    return (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
