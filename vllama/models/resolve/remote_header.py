"""Reads the metadata of a model at a source, before its gigabytes are fetched.

A GGUF's header is read by Range in steps of 1 MiB until it parses; of safetensors models, the small
JSON files and the header of each weights file are read. With that, memory can be planned exactly
(`plan.fit`). Blocking.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.base.errors import BadModelFile, Offline, SourceError, describe_connection_error
from vllama.base.threads import in_parallel
from vllama.models.download.file_download import open_client
from vllama.models.headers.gguf.header import GgufHeader, parse_header
from vllama.models.headers.gguf.parser import NeedMore
from vllama.models.headers.info import combine_headers
from vllama.models.headers.safetensors import read_folder
from vllama.models.names.mistral_format import PARAMS
from vllama.models.names.variants import is_projector
from vllama.models.settings import ModelsSettings
from vllama.models.types import (
    Format,
    Location,
    ModelInfo,
    Repository,
    SourceFile,
    Transient,
    Variant,
)
from vllama.net.web.bodies import iter_raw
from vllama.net.web.connections import BadAddress, ConnectionBroken, Connections

if TYPE_CHECKING:
    from vllama.models.sources.hf import HuggingFace

STEP = 1024 * 1024
_LONGEST = 64 * STEP  # no real header is longer
_SMALL = 32 * STEP
_WEIGHTS = (".safetensors", ".safetensors.index.json")
_ABOUT = frozenset(
    {"config.json", PARAMS, "tokenizer_config.json", "chat_template.jinja", "modules.json"}
)


def read_remote_info(
    source: HuggingFace, repository: Repository, variant: Variant, settings: ModelsSettings
) -> ModelInfo:
    """Read a variant's metadata from its source: 1 to 8 MB for each file of weights, mostly less.

    Raises BadModelFile, and what `source.locate` raises (AuthRequired, Offline, SourceError).
    """
    with open_client(settings) as client:

        def reach(file: SourceFile) -> _Remote:
            return _Remote(client, source.locate(repository, file), file)

        if variant.format is Format.GGUF:
            return _gguf(reach, variant, settings.download_connections)
        return _safetensors(reach, variant, settings.download_connections)


class _Remote:
    """One file at its address, read from the beginning as far as needed."""

    def __init__(self, client: Connections, location: Location, file: SourceFile) -> None:
        self._client, self._location, self.path = client, location, file.path
        self.size_bytes = location.size_bytes
        self.have = b""

    def grow(self, at_least: int) -> bytes:
        """Return at least that many first bytes of the file, if it has them, in whole steps."""
        end = min(-(-at_least // STEP) * STEP, self.size_bytes)
        if end > len(self.have):
            self.have += self._read(len(self.have), end)
        return self.have

    def _read(self, start: int, end: int) -> bytes:
        headers = {
            **self._location.headers,
            "range": f"bytes={start}-{end - 1}",
            "accept-encoding": "identity",
        }
        try:
            with self._client.ask(self._location.url, headers) as response:
                status = response.status
                if status not in (200, 206):
                    kind = Transient if status >= 500 else SourceError
                    raise kind(f"cannot read '{self.path}': the storage returned {status}")
                # a server without Range sends the file from its beginning: stop early
                skip = start if status == 200 else 0
                body = b""
                for piece in iter_raw(response):
                    body += piece
                    if len(body) >= skip + end - start:
                        break
        except ConnectionBroken as error:
            reason = describe_connection_error(error)
            raise Offline(f"cannot read '{self.path}': {reason}") from error
        except BadAddress as error:
            raise SourceError(f"cannot read '{self.path}': {error}") from error
        body = body[skip : skip + end - start]
        if len(body) < end - start:
            raise SourceError(f"cannot read '{self.path}': the storage returned too little data")
        return body


def _gguf(reach: Callable[[SourceFile], _Remote], variant: Variant, threads: int) -> ModelInfo:
    headers = in_parallel(lambda file: _gguf_header(reach(file)), variant.files, threads)
    pairs = list(zip(variant.files, headers, strict=True))
    info = combine_headers(
        [header for file, header in pairs if not is_projector(file.path)],
        projector=next((header for file, header in pairs if is_projector(file.path)), None),
        quant=variant.quant,
    )
    if info.parameter_count == 0:
        raise BadModelFile(f"cannot use '{variant.files[0].path}': it has no weights")
    return info


def _gguf_header(remote: _Remote) -> GgufHeader:
    wanted = 1
    while True:
        data = remote.grow(wanted)
        try:
            return parse_header(data, total_bytes=remote.size_bytes, source=remote.path)
        except NeedMore as error:
            # at least one step: the parser knows only its next piece, not the header's end
            wanted = max(error.at_least, len(data) + 1)
            if wanted > _LONGEST:
                raise BadModelFile(f"cannot use '{remote.path}': its header is too long") from error


def _safetensors(
    reach: Callable[[SourceFile], _Remote], variant: Variant, threads: int
) -> ModelInfo:
    """Rebuild the folder without the tensors' data, and read it like a local one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def rebuild(file: SourceFile) -> None:
            place = folder / file.path
            if not (file.path in _ABOUT or file.path.endswith(_WEIGHTS)):
                place.touch()  # its name is enough: it says what kind of tokenizer there is
                return
            remote = reach(file)
            if not file.path.endswith(".safetensors"):
                place.write_bytes(remote.grow(min(remote.size_bytes, _SMALL)))
                return
            start = remote.grow(8)
            length = struct.unpack("<Q", start[:8])[0] if len(start) >= 8 else 0
            content = remote.grow(min(8 + length, _LONGEST))
            with place.open("wb") as skeleton:  # sparse: the missing data takes no space
                skeleton.write(content[: 8 + length])
                skeleton.truncate(remote.size_bytes)

        wanted = [file for file in variant.files if "/" not in file.path]
        in_parallel(rebuild, wanted, threads)
        try:
            return read_folder(folder)
        except BadModelFile as error:
            message = error.message.replace(f"{folder}/", "").replace(str(folder), "the model")
            raise BadModelFile(message, hint=error.hint) from error
