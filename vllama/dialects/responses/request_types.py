"""The fields of `POST /v1/responses` and their types, as Ollama declares them.

Source: `openai/responses.go`. The items of `input` are checked where they are read, since vllama
takes more of them.
"""

from __future__ import annotations

from vllama.chat.go_json import kind
from vllama.dialects.go_types import GoError, Struct, Walk
from vllama.dialects.go_values import (
    ANY_MAP,
    STRINGS,
    ListOf,
    anything,
    boolean,
    described,
    float64,
    integer,
    string,
)


@described({"anyOf": [{"type": "string"}, {"type": "array"}]})
def _input(value: object, walk: Walk) -> None:
    if value is not None and not isinstance(value, str | list):
        raise GoError(
            f"input must be a string or array: json: cannot unmarshal {kind(value)} "
            "into Go value of type []json.RawMessage"
        )


TOOL = Struct(
    "openai.ResponsesTool",
    {
        "type": string,
        "name": string,
        "description": string,
        "strict": boolean,
        "parameters": ANY_MAP,
    },
)
TOOL.add("tools", ListOf(TOOL, "[]openai.ResponsesTool"))
FORMAT = Struct(
    "openai.ResponsesTextFormat",
    {"type": string, "name": string, "schema": anything, "strict": boolean},
)
RESPONSES = Struct(
    "openai.ResponsesRequest",
    {
        "model": string,
        "background": boolean,
        "conversation": anything,
        "include": STRINGS,
        "input": _input,
        "instructions": string,
        "max_output_tokens": integer,
        "reasoning": Struct(
            "openai.ResponsesReasoning",
            {"effort": string, "generate_summary": string, "summary": string},
        ),
        "temperature": float64,
        "text": Struct("openai.ResponsesText", {"format": FORMAT}),
        "top_p": float64,
        "truncation": string,
        "tools": ListOf(TOOL, "[]openai.ResponsesTool"),
        "stream": boolean,
    },
)
