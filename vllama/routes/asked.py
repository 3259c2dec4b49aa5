"""What of a request decides which node answers it: read from its body as the node will read it.

Apart from `nodes`, which forwards it: this is about bodies and names, and knows no node.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, json

from vllama.base import executors
from vllama.base.errors import InvalidModelRef
from vllama.chat.bodies import decode_object
from vllama.models.names.ref import DEFAULT_NAMESPACE, Kind, ModelRef
from vllama.net.http.content_encoding import decompress
from vllama.net.http.request import Request
from vllama.routes.inference.demand import hash_messages, hash_text
from vllama.routes.route import Dialect, Route


class Asked(Struct):
    """What of a request's body decides where it goes."""

    model: str | None = None
    name: str | None = None
    messages: Any = None
    input: Any = None
    prompt: Any = None
    previous_response_id: str | None = None


async def read_asked(request: Request, route: Route, body: bytes) -> Asked:
    """Read what decides from JSON or a form. Raises VllamaError."""
    encoding, content_type = map(request.header, (b"content-encoding", b"content-type"))
    if encoding and route.dialect is Dialect.RESPONSES:  # Codex packs what it sends
        body = await executors.codec.run(decompress, body, encoding)
    if not content_type.lower().startswith("multipart/form-data"):
        asked = read_json(body)
        if route.dialect is not Dialect.RESPONSES:
            asked.previous_response_id = None
        return asked
    from vllama.dialects.openai.multipart import FormReader  # only speech and images come so

    form = FormReader(content_type)
    form.feed(body)
    return Asked(model=next((one.text for one in form.parts() if one.name == "model"), None))


def read_json(body: bytes) -> Asked:
    """Read what decides: names in any case, the first value only. Raises BadRequest."""
    try:
        asked = json.decode(body, type=Asked)
    except (ValueError, RecursionError):
        asked = Asked()
    if asked.model or asked.name:
        return asked
    values = {name.lower(): value for name, value in decode_object(body).items()}

    def read(name: str) -> str | None:
        return text if isinstance(text := values.get(name), str) else None

    return Asked(
        model=read("model"),
        name=read("name"),
        messages=values.get("messages"),
        input=values.get("input"),
        prompt=values.get("prompt"),
        previous_response_id=read("previous_response_id"),
    )


def find_prefix(asked: Asked) -> object:
    """Return how a conversation begins, None if nothing tells; its turns had better go to one."""
    messages = asked.messages or asked.input
    if isinstance(messages, list):
        return hash_messages(messages)()
    text = asked.prompt or messages
    return hash_text(text)() if text else None


def complete_name(name: str) -> str:
    """Return a model's name as models are found by: in its short form, with tag, in lower case."""
    try:
        ref = ModelRef.parse(name)
    except InvalidModelRef:
        return name.lower()
    if ref.kind is Kind.PATH:
        return name
    is_short = ref.kind is Kind.HUB and ref.host is None  # a namespace of Ollama's, as in its lists
    full = f"{ref.plain}:{ref.tag}" if is_short else ref.display
    return full.lower().removeprefix(f"{DEFAULT_NAMESPACE}/")
