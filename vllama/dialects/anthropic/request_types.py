"""Anthropic's requests as Ollama declares them (`anthropic/anthropic.go`)."""

from __future__ import annotations

from types import GenericAlias
from typing import Annotated, Any

import msgspec

from vllama.chat.go_json import MAX_MESSAGES, check_messages
from vllama.dialects.go_structs import GoStruct, find_struct, list_of, make_struct
from vllama.dialects.go_types import GoError, Schema, Walk, find_error
from vllama.dialects.go_values import Int, LimitedList, ListOf, OrderedMapOf, anything

Citation = make_struct(
    "anthropic.Citation",
    "Where a text comes from.",
    type=str,
    url=str,
    title=str,
    encrypted_index=str,
    cited_text=str,
)
ImageSource = make_struct(
    "anthropic.ImageSource", "Where a picture is.", type=str, media_type=str, data=str, url=str
)


class _Source:
    """A picture's source. That of a search result, which Ollama does not know, is a text."""

    def __call__(self, value: object, walk: Walk, /) -> object:
        """Check a source."""
        return value if isinstance(value, str) else find_struct(ImageSource)(value, walk)

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema."""
        return {"anyOf": [find_struct(ImageSource).describe(structs), {"type": "string"}]}


ContentBlock = make_struct(
    "anthropic.ContentBlock",
    "A part of a message.",
    type=str,
    text=str,
    citations=list_of(Citation),
    source=Annotated[ImageSource | str | None, _Source()],
    id=str,
    name=str,
    input=Annotated[dict[str, Any], OrderedMapOf(anything)],
    tool_use_id=str,
    content=Any,
    is_error=bool,
    thinking=str,
    signature=str,
)
_BLOCKS = ListOf(find_struct(ContentBlock), "[]anthropic.ContentBlock")
MessageParam = make_struct(
    "",
    role=str,
    content=Any,
    go_shown='struct { Role string "json:\\"role\\""; '
    'Content json.RawMessage "json:\\"content\\"" }',
)


class _MessageParam:
    """An `anthropic.MessageParam`, which decodes itself: its content is a text or blocks."""

    def __call__(self, value: object, walk: Walk, /) -> object:
        """Check a message."""
        error = find_error(value, find_struct(MessageParam))
        if error is None:
            fields = value if isinstance(value, dict) else {}
            keys = {key.lower(): key for key in fields}
            if "content" not in keys:
                raise GoError("unexpected end of JSON input")
            content = fields[keys["content"]]
            error = None if isinstance(content, str) else find_error(content, _BLOCKS)
        if error is not None:
            raise error
        return value

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema."""
        content = {"anyOf": [{"type": "string"}, _BLOCKS.describe(structs)]}
        role = {"type": "string"}
        structs["anthropic.MessageParam"] = {
            "type": "object",
            "properties": {"role": role, "content": content},
            "required": ["content"],
            "description": "A turn of the conversation.",
        }
        return {"$ref": "#/components/schemas/anthropic.MessageParam"}


# its content has to be there, and msgspec leaves null to the walk
_Message = msgspec.defstruct(
    "Message",
    [("content", str | list_of(ContentBlock)), ("role", str, "")],
    bases=(GoStruct,),
    kw_only=True,
)
MESSAGE = _MessageParam()
Messages: Any = Annotated[
    GenericAlias(list, (_Message,)),
    msgspec.Meta(max_length=MAX_MESSAGES),
    LimitedList(MESSAGE, "[]anthropic.MessageParam", check_messages),
]
Tool = make_struct(
    "anthropic.Tool",
    "A tool that the model may use.",
    type=str,
    name=str,
    description=str,
    input_schema=Any,
    max_uses=Int,
)
ToolChoice = make_struct(
    "anthropic.ToolChoice",
    "Whether the model uses a tool, and which.",
    type=str,
    name=str,
    disable_parallel_tool_use=bool,
)
ThinkingConfig = make_struct(
    "anthropic.ThinkingConfig", "Whether the model thinks first.", type=str, budget_tokens=Int
)
Metadata = make_struct("anthropic.Metadata", "What the client says of the request.", user_id=str)
OutputConfig = make_struct("anthropic.OutputConfig", "How the model answers.", effort=str)
MessagesBody = make_struct(
    "anthropic.MessagesRequest",
    model=str,
    max_tokens=Int,
    messages=Messages,
    system=Any,
    stream=bool,
    temperature=float,
    top_p=float,
    top_k=Int,
    stop_sequences=list_of(str),
    tools=list_of(Tool),
    tool_choice=ToolChoice,
    thinking=ThinkingConfig,
    metadata=Metadata,
    output_config=OutputConfig,
)
MESSAGES = find_struct(MessagesBody)
