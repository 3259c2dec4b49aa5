"""The bodies of requests for chats, completions and embeddings."""

from __future__ import annotations

from vllama.dialects.go_types import Schema, make_enum
from vllama.dialects.openai import request_types as requests
from vllama.routes.fields import (
    BOOLEAN,
    IMAGE_URL,
    INTEGER,
    NUMBER,
    OWN_FIELDS,
    TEXT,
    TEXT_OR_NULL,
    TOP_LOGPROBS,
    WHOLE_NUMBER,
    make_array,
    make_object,
    make_word,
    refer,
)
from vllama.routes.operation import Body

_EFFORT = make_enum("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max", "", None)
_TOKEN: Schema = WHOLE_NUMBER | {"minimum": 0}
_SAMPLING: dict[str, Schema] = {
    **OWN_FIELDS,
    "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 128},
    "top_k": INTEGER,
    "min_p": NUMBER,
    "typical_p": NUMBER,
    "repeat_penalty": NUMBER,
    "repeat_last_n": INTEGER,
    "num_keep": INTEGER,
    "max_completion_tokens": INTEGER,
}
_QUESTION = {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}
_PROMPT = {"prompt": "One, two,", "max_tokens": 10}
_PART: Schema = {
    "anyOf": [
        TEXT,
        make_object(type=make_word("text"), text=TEXT),
        make_object(type=make_word("image_url"), image_url=make_object(url=IMAGE_URL)),
        make_object(type=make_word("input_audio"), input_audio=make_object(data=TEXT)),
    ]
}
_PARTS = {
    "openai.Message": make_object(
        role=TEXT, content={"anyOf": [TEXT, {"type": "array", "items": _PART}]}
    ),
    "openai.ToolCall": make_object(function=make_object(name=TEXT)),
}
_TOOL_CHOICE: Schema = {
    "description": "whether the model may, must or must not call a function, and which",
    "anyOf": [
        *make_enum("auto", "none", "required", "any", "", None)["anyOf"],
        make_object(type=make_word("function"), function=make_object(name=TEXT)),
        make_object(
            type=make_word("allowed_tools"),
            allowed_tools=make_object(tools={"type": "array", "items": {}}),
        ),
    ],
}
CHAT = Body(
    type=requests.CHAT,
    parts=_PARTS,
    required=("messages",),
    fields=_SAMPLING
    | {
        "messages": make_array(refer("openai.Message")),
        "tools": {"items": refer("api.Tool")},
        "top_logprobs": TOP_LOGPROBS,
        "reasoning_effort": _EFFORT,
        "tool_choice": _TOOL_CHOICE,
        "parallel_tool_calls": {},
        "logit_bias": {"type": ["object", "null"]},
    },
    examples={
        "A question": _QUESTION,
        "Streamed": _QUESTION | {"stream": True, "max_tokens": 50},
    },
)
COMPLETION = Body(
    type=requests.COMPLETION,
    fields=_SAMPLING
    | {
        "logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
        "prompt": {
            "description": "a text, or several",
            "anyOf": [TEXT_OR_NULL, make_array(TEXT)],
        },
        "stop": {"items": TEXT},  # what is no list is ignored, as with Ollama
        "echo": BOOLEAN | {"description": "the answer begins with the prompt"},
        "raw": BOOLEAN,
    },
    examples={"A prompt": _PROMPT, "Streamed": _PROMPT | {"stream": True}},
)
EMBEDDING = Body(
    type=requests.EMBEDDING,
    required=("input",),
    fields={
        **OWN_FIELDS,
        "input": {
            "description": "a text, texts, tokens, or lists of tokens",
            "anyOf": [
                TEXT,
                make_array(TEXT),
                make_array(_TOKEN),
                make_array(make_array(_TOKEN)),
            ],
        },
        "encoding_format": make_enum("float", "base64", "", None),
    },
    examples={"A text": {"model": "all-minilm", "input": "one text"}},
)
