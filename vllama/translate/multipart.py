"""`multipart/form-data` (RFC 7578): what clients upload, and the same again for an engine.

Read with the standard library's parser of messages, which has the same syntax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from email.policy import HTTP

from vllama.errors import BadRequest

MAX_PARTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One field of a form; `filename` None: it is not a file."""

    name: str
    data: bytes
    filename: str | None = None
    content_type: str = "application/octet-stream"

    @property
    def text(self) -> str:
        """Its content as text."""
        return self.data.decode(errors="replace")


def parse_form(body: bytes, content_type: str) -> list[Part]:
    """Return the parts in order. Raises BadRequest in the words of Ollama's parser."""
    head = f"content-type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    if "\n" in content_type or "\r" in content_type:
        raise BadRequest("failed to parse multipart form: malformed MIME header")
    message = BytesParser(policy=HTTP).parsebytes(head, headersonly=True)
    if message.get_content_type() != "multipart/form-data":
        raise BadRequest(
            "failed to parse multipart form: request Content-Type isn't multipart/form-data"
        )
    if not message.get_boundary():
        raise BadRequest(
            "failed to parse multipart form: no multipart boundary param in Content-Type"
        )
    form = BytesParser(policy=HTTP).parsebytes(head + body)
    parts = form.get_payload()
    if not form.is_multipart() or not isinstance(parts, list) or form.defects:
        raise BadRequest("failed to parse multipart form: multipart: NextPart: EOF")
    if len(parts) > MAX_PARTS:
        raise BadRequest(f"failed to parse multipart form: more than {MAX_PARTS} parts")
    return [_part(part) for part in parts if isinstance(part, Message)]


def build_form(parts: Sequence[Part], seed: str) -> tuple[bytes, str]:
    """Return body and content type; `seed` makes a boundary that no part contains."""
    boundary = f"vllama-{seed}"
    while any(boundary.encode() in part.data for part in parts):
        boundary += "x"
    out = []
    for part in parts:
        head = f'content-disposition: form-data; name="{_quoted(part.name)}"'
        if part.filename is not None:
            head += f'; filename="{_quoted(part.filename)}"\r\ncontent-type: {part.content_type}'
        out.append(f"--{boundary}\r\n{head}\r\n\r\n".encode() + part.data + b"\r\n")
    return b"".join(
        out
    ) + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def _part(part: Message) -> Part:
    data = part.get_payload(decode=True)
    name = part.get_param("name", header="content-disposition")
    filename = part.get_filename()
    return Part(
        name=name if isinstance(name, str) else "",
        data=data if isinstance(data, bytes) else b"",
        filename=filename,
        content_type=part.get_content_type(),
    )


def _quoted(text: str) -> str:
    """Escape what would end a quoted name (as browsers do)."""
    for char, code in (('"', "%22"), ("\r", "%0D"), ("\n", "%0A")):
        text = text.replace(char, code)
    return text.encode(errors="replace").decode()
