"""The demand of a request before its engine is known: its maximum tokens, and its beginning.

The tokens are reserved of what its key has left. No token is less than a byte, so the bytes of a
prompt are the most that it can have; nobody has counted it yet. What cannot be bounded is
`UNBOUNDED`, for which such a request runs alone.

Requests that begin alike had better go to one replica: an engine keeps what it has computed of a
prompt's beginning. All turns of a conversation share everything up to the user's first message.
In a cluster the node is chosen so, too, by a body that is read as the node will read it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, json

from vllama.base.errors import InvalidModelRef
from vllama.chat.bodies import decode_object
from vllama.chat.engine.context import IMAGE_TOKENS, bound_traits, compute_answer_limit
from vllama.chat.request import ChatRequest, count_bytes
from vllama.models.names.ref import DEFAULT_NAMESPACE, Kind, ModelRef
from vllama.net.http.request import Request
from vllama.routes.route import Dialect, Route, RouteKind

if TYPE_CHECKING:
    from vllama.chat.engine.traits import Traits
    from vllama.routes.prompts.prepare import CheckedRequest
    from vllama.routes.recording.running import Wanted
    from vllama.scheduler.scheduler import Scheduler


UNBOUNDED = 1 << 62
AROUND, BEFORE = 16, 256
"""Tokens that a template may put around a message, and before the first: a prompt of its own."""

Size = Callable[["Traits | None"], int]


def count_nothing(traits: Traits | None) -> int:
    """Return 0: nothing is generated, and what is read does not count."""
    return 0


def measure(scheduler: Scheduler, wanted: Wanted, size: Size) -> int:
    """Return the most tokens that a request can take, as far as its model is known."""
    traits = scheduler.find_traits(wanted.bundle, wanted.need)
    if traits is not None and wanted.need.load.num_ctx is not None:
        traits = bound_traits(traits, wanted.need.load.num_ctx)
    return size(traits)


def size_context(traits: Traits | None) -> int:
    """Return all that a model can take at once, for what has no size here."""
    return UNBOUNDED if traits is None else traits.window


def size_inputs(inputs: Sequence[str | list[int]]) -> Size:
    """Return the size of inputs for which no text is generated: texts, or tokens."""
    return lambda traits: sum(
        AROUND + len(one if isinstance(one, list) else one.encode()) for one in inputs
    )


def size_answers(asked: Sequence[CheckedRequest], n: int = 1) -> Size:
    """Return the size of prompts with `n` answers each."""
    prompts: list[tuple[int, int | None, bool]] = []

    def size(traits: Traits | None) -> int:
        if not prompts:  # once, and only for keys with such a limit
            prompts.extend(
                (size_prompt(one.asked), one.sampling.max_tokens, one.asked.shift) for one in asked
            )
        return sum(_size_answer(*prompt, n, traits) for prompt in prompts)

    return size


def size_prompt(asked: ChatRequest) -> int:
    """Return the most tokens that a prompt can have; nobody knows how many an image takes."""
    media = sum(message.media_count for message in asked.messages)
    return count_bytes(asked) + BEFORE + AROUND * len(asked.messages) + IMAGE_TOKENS * media


def _size_answer(prompt: int, most: int | None, shift: bool, n: int, traits: Traits | None) -> int:
    if traits is None:
        return UNBOUNDED if most is None else prompt + n * most
    prompt = min(prompt, traits.window)
    limit = compute_answer_limit(most, traits)
    whole = prompt + n * (traits.window if limit is None else limit)
    return whole if shift and traits.shifts_context else min(whole, n * traits.window)


PREFIX_CHARS = 1024

Prefix = Callable[[], Hashable]


def hash_messages(messages: object) -> Prefix:
    """Return a function that tells how a conversation begins; it costs nothing until called."""

    def prefix() -> Hashable:
        parts = []
        for message in messages if isinstance(messages, Sequence) else ():
            role, content = _fields(message)
            parts.append((role, repr(content)))
            if role == "user":
                break
        return hash(tuple(parts))

    return prefix


def hash_text(*texts: object) -> Prefix:
    """Return a function that tells how a prompt begins."""
    return lambda: hash(tuple(str(text)[:PREFIX_CHARS] for text in texts))


def _fields(message: object) -> tuple[object, object]:
    if isinstance(message, Mapping):
        return message.get("role"), message.get("content")
    return getattr(message, "role", None), getattr(message, "content", message)


# -- for the nodes of a cluster ------------------------------------------------------------------


class Asked(Struct):
    """The fields of a request's body that decide where it goes."""

    model: str | None = None
    name: str | None = None
    messages: Any = None
    input: Any = None
    prompt: Any = None
    previous_response_id: str | None = None
    stream: Any = None

    def streams(self, route: Route) -> bool:
        """Return whether a stream of tokens is wanted: the default of Ollama's API only."""
        wanted = route.dialect is Dialect.OLLAMA if self.stream is None else bool(self.stream)
        return wanted and route.stream is not None and route.kind is RouteKind.MODEL


async def read_asked(request: Request, route: Route, body: bytes) -> Asked:
    """Read what decides from JSON or a form. Raises VllamaError."""
    content_type = request.header(b"content-type")
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
