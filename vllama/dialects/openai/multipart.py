"""`multipart/form-data` (RFC 7578): what clients upload, and the same again for an engine.

A form is read piece by piece as it comes, by the library `multipart`: in time linear in its length,
with limits on parts and headers that are checked before the rest is read (docs/decisions/0021).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote

from multipart import (
    MultipartError,
    MultipartSegment,
    ParserLimitReached,
    PushMultipartParser,
    content_disposition_quote,
    parse_options_header,
)

from vllama.base.errors import BadRequest
from vllama.chat.engine.field_limits import fit_field
from vllama.chat.engine.request_fields import check_code, is_passed
from vllama.chat.request import Call

MAX_PARTS = 100
MAX_HEADERS = 8  # of one part; RFC 7578 §4.8 knows three
MAX_HEADER_BYTES = 4096
MAX_TYPE_BYTES = 1024  # of the request's own Content-Type, boundary included
_CANNOT = "failed to parse multipart form: "
_FILES = frozenset({"file", "image", "mask"})


class FormTooLarge(BadRequest):
    """A form has more parts or longer headers than any client sends."""

    status = 413


@dataclass(frozen=True, slots=True, kw_only=True)
class FormPart:
    """One field of a form; `filename` None: it is not a file."""

    name: str
    data: bytes
    filename: str | None = None
    content_type: str = "application/octet-stream"

    @property
    def text(self) -> str:
        """Its content as text."""
        return self.data.decode(errors="replace")


class FormReader:
    """Takes the pieces of one form's body. Raises BadRequest in the library's words."""

    def __init__(self, content_type: str, *, keeps_files: bool = True) -> None:
        """Without `keeps_files` the content of files is to be taken with `take_file`."""
        kind, options = parse_options_header(content_type)
        if kind != "multipart/form-data" or len(content_type) > MAX_TYPE_BYTES:
            raise BadRequest(f"{_CANNOT}the Content-Type is not multipart/form-data")
        with _refusing():
            self._parser = PushMultipartParser(
                options.get("boundary", ""),
                max_header_size=MAX_HEADER_BYTES,
                max_header_count=MAX_HEADERS,
                max_segment_count=MAX_PARTS,
            )
        self._parts: list[FormPart] = []
        self._head: MultipartSegment | None = None
        self._data = bytearray()
        self._keeps_files = keeps_files
        self._taken = bytearray()

    def take_file(self) -> bytes:
        """Return the part of a file received since the last call."""
        taken, self._taken = bytes(self._taken), bytearray()
        return taken

    def feed(self, data: bytes) -> None:
        """Read the next piece; what follows the form's end is ignored, as RFC 2046 §5.1.1 says."""
        if not data:
            return
        with _refusing():
            for event in self._parser.parse(data):
                if isinstance(event, MultipartSegment):
                    self._head, self._data = event, bytearray()
                elif self._head is None:
                    continue
                elif event is None:
                    self._parts.append(_part(self._head, bytes(self._data)))
                elif self._keeps_files or self._head.filename is None:
                    self._data += event
                else:
                    self._taken += event

    def parts(self) -> list[FormPart]:
        """Return the parts in order; to be called when the body has ended."""
        with _refusing():
            self._parser.close()
        check_code({part.name.partition("[")[0]: part.data for part in self._parts})
        return self._parts


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise the library's errors as BadRequest, and FormTooLarge for its limits."""
    try:
        yield
    except MultipartError as error:
        kind = FormTooLarge if isinstance(error, ParserLimitReached) else BadRequest
        raise kind(f"{_CANNOT}{error.args[0]}") from error


def pass_form(
    path: str, parts: Sequence[FormPart], passed: Collection[str], *, model: str, seed: str
) -> tuple[Call, tuple[str, ...]]:
    """Return a client's form as the call for an engine, and the names of the parts left out.

    A recording or an image must be a file: as a text it might be an address.
    """
    kept, ignored = [FormPart(name="model", data=model.encode())], list[str]()
    for part in parts:
        name, is_file = part.name.removesuffix("[]"), part.filename is not None
        if name in _FILES if is_file else name not in _FILES and is_passed(name, passed):
            fit_field(name, None if is_file else part.text)
            kept += [part] if name != "model" else []
        else:
            ignored.append(part.name)
    body, content_type = build_form(kept, seed)
    return Call(path=path, body=body, content_type=content_type), tuple(ignored)


def build_form(parts: Sequence[FormPart], seed: str) -> tuple[bytes, str]:
    """Return body and content type; `seed` makes a boundary that no part contains."""
    boundary = f"vllama-{seed}"
    while any(boundary.encode() in part.data for part in parts):
        boundary += "x"
    out = bytearray()
    for part in parts:
        head = f"content-disposition: form-data; name={_quote(part.name)}"
        if part.filename is not None:
            head += f"; filename={_quote(part.filename)}\r\ncontent-type: {part.content_type}"
        out += f"--{boundary}\r\n{head}\r\n\r\n".encode() + part.data + b"\r\n"
    out += f"--{boundary}--\r\n".encode()
    return bytes(out), f"multipart/form-data; boundary={boundary}"


def _part(head: MultipartSegment, data: bytes) -> FormPart:
    return FormPart(
        name=head.name or "",
        data=data,
        filename=head.filename if head.filename is not None else _read_extended_filename(head),
        content_type=head.content_type or "application/octet-stream",
    )


def _read_extended_filename(head: MultipartSegment) -> str | None:
    """Return the file's name as RFC 5987 writes it, which some clients still do for non-ASCII."""
    disposition = next(value for name, value in head.headerlist if name == "Content-Disposition")
    _, found, rest = disposition.partition("filename*=")
    if not found:
        return None
    charset, _, value = rest.partition(";")[0].strip(' "').partition("''")
    try:
        return unquote(value, charset, errors="replace")
    except LookupError:
        return value


def _quote(text: str) -> str:
    """Quote a name as browsers do."""
    return str(content_disposition_quote(text.encode(errors="replace").decode()))
