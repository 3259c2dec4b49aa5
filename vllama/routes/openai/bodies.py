"""The bodies of requests in OpenAI's API, and at the routes of others who follow its form."""

from __future__ import annotations

from vllama.base.meaning import Schema
from vllama.dialects.decisions.questions import LETTERS, MAX_LEVELS, MAX_QUESTIONS
from vllama.dialects.ollama.embeddings import ENCODINGS
from vllama.dialects.openai import request_types as requests
from vllama.dialects.openai.choices import MAX_CHOICES
from vllama.dialects.openai.extras import EFFORTS
from vllama.dialects.responses.request_types import ResponsesBody
from vllama.routes.describe.fields import (
    BOOLEAN,
    IMAGE_URL,
    INTEGER,
    NON_EMPTY,
    NUMBER,
    OWN_FIELDS,
    TEXT,
    TEXT_FIELDS,
    TEXT_OR_NULL,
    TOP_LOGPROBS,
    WHOLE_NUMBER,
    make_array,
    make_enum,
    make_object,
    make_word,
    refer,
)
from vllama.routes.route import Body

_EFFORT = make_enum("none", *EFFORTS, "", None)
_TOKEN: Schema = WHOLE_NUMBER | {"minimum": 0}
_SAMPLING: dict[str, Schema] = {
    **TEXT_FIELDS,
    "n": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_CHOICES},
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
    "OpenAIMessage": make_object(
        role=TEXT, content={"anyOf": [TEXT, {"type": "array", "items": _PART}]}
    ),
    "OpenAICall": make_object(function=make_object(name=TEXT)),
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
    type=requests.ChatCompletionBody,
    parts=_PARTS,
    required=("messages",),
    fields=_SAMPLING
    | {
        "messages": make_array(refer("OpenAIMessage")),
        "tools": {"items": refer("Tool")},
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
    type=requests.CompletionBody,
    fields=_SAMPLING
    | {
        "logprobs": TOP_LOGPROBS,
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
    type=requests.EmbeddingBody,
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
        "encoding_format": make_enum(*ENCODINGS, "", None),
    },
    examples={"A text": {"model": "all-minilm", "input": "one text"}},
)


_ITEM_PART: Schema = {
    "anyOf": [
        make_object(type=make_word("input_text", "output_text"), text=TEXT),
        make_object(type=make_word("input_image"), image_url=IMAGE_URL),
    ]
}
_CONTENT: Schema = {"anyOf": [TEXT, {"type": "array", "items": _ITEM_PART}]}
MESSAGE = make_object({"type": make_word("message")}, role=NON_EMPTY, content=_CONTENT)
_ITEM: Schema = {
    "anyOf": [
        MESSAGE,
        make_object(
            {"arguments": TEXT}, type=make_word("function_call"), call_id=TEXT, name=NON_EMPTY
        ),
        make_object({"output": _CONTENT}, type=make_word("function_call_output"), call_id=TEXT),
        make_object({"encrypted_content": TEXT}, type=make_word("reasoning")),
    ]
}
RESPONSE = Body(
    type=ResponsesBody,
    parts={"ResponsesTool": make_object(type=TEXT)},
    fields={
        **TEXT_FIELDS,
        "input": {
            "description": "a text, or items: messages, calls, results of calls, reasoning",
            "anyOf": [TEXT_OR_NULL, {"type": "array", "items": _ITEM}],
        },
        "previous_response_id": TEXT_OR_NULL
        | {"description": "the response that this one goes on from"},
        "store": {"description": "whether it outlives the server"},
        "background": {"description": "ignored: the answer comes at once"},
        "metadata": {"type": ["object", "null"]},
        "parallel_tool_calls": BOOLEAN,
        "presence_penalty": NUMBER,
        "frequency_penalty": NUMBER,
        "tools": {"items": refer("ResponsesTool")},
        "tool_choice": {
            "description": "whether the model may, must or must not call a function, and which",
            "anyOf": [
                *make_enum("auto", "none", "required", None)["anyOf"],
                make_object(type=TEXT),
            ],
        },
    },
    examples={
        "A question": {"input": "Say hello.", "max_output_tokens": 20},
        "Streamed": {"input": "Say hello.", "stream": True},
    },
)


_INSTRUCTIONS: Schema = {"anyOf": [NON_EMPTY, {"type": "object"}]}
_CHOICES: Schema = {
    "type": "object",
    "minProperties": 2,
    "maxProperties": len(LETTERS),
    "additionalProperties": TEXT_OR_NULL,
}
_STATE_QUESTION: Schema = {
    "anyOf": [
        make_object(
            {
                "criteria": {
                    "type": ["object", "null"],
                    "properties": dict.fromkeys(("true", "false"), TEXT_OR_NULL),
                    "additionalProperties": False,
                }
            },
            type=make_word("noul"),
            instructions=_INSTRUCTIONS,
        ),
        make_object(type=make_word("choice"), instructions=_INSTRUCTIONS, criteria=_CHOICES),
        make_object(
            type=make_word("score"),
            instructions=_INSTRUCTIONS,
            criteria=make_array(TEXT_OR_NULL, minItems=2, maxItems=MAX_LEVELS),
        ),
    ]
}


def _make_question(kind: str, **rows: Schema) -> Schema:
    named = {"name": TEXT_OR_NULL}
    return make_object(named, type=make_word(kind), instructions=NON_EMPTY, **rows)


def _make_rows(field: str, most: int) -> Schema:
    row = make_object({"description": TEXT_OR_NULL}, **{field: TEXT})
    return make_array(row, minItems=2, maxItems=most)


_TYPED: Schema = {
    "anyOf": [
        _make_question("predicate"),
        _make_question("choice", choices=_make_rows("value", len(LETTERS))),
        _make_question("score", levels=_make_rows("label", MAX_LEVELS)),
    ]
}
_TEXTS: Schema = {"anyOf": [TEXT, make_array(TEXT)]}
_RERANKER = "bge-reranker-v2-m3"
RERANK = Body(
    name="RerankRequest",
    required=("query", "documents"),
    fields={
        "query": TEXT,
        "documents": make_array({"anyOf": [TEXT, {"type": "object"}]}),
        "top_n": INTEGER | {"minimum": 0},
        "return_documents": BOOLEAN,
    },
    examples={
        "Two documents": {
            "model": _RERANKER,
            "query": "What do pandas eat?",
            "documents": ["Pandas eat bamboo.", "Paris is in France."],
        }
    },
)
SCORE = Body(
    name="ScoreRequest",
    required=("text_1", "text_2"),
    fields={"text_1": _TEXTS, "text_2": _TEXTS},
    examples={"A pair": {"model": _RERANKER, "text_1": "a panda", "text_2": "a bear"}},
)
DECISIONS = Body(
    name="DecisionsRequest",
    required=("input", "questions"),
    fields={
        "input": {
            "description": "what the questions are about",
            "anyOf": [NON_EMPTY, make_array(MESSAGE)],
        },
        "questions": make_array(_TYPED, maxItems=MAX_QUESTIONS),
    },
    examples={
        "A predicate": {
            "input": "The parcel came a week late.",
            "questions": [
                {"type": "predicate", "name": "angry", "instructions": "Is it a complaint?"}
            ],
        }
    },
)
SYSTEM_ONE = Body(
    name="SystemOneRequest",
    required=("state", "questions"),
    fields={
        "state": {
            "description": "what the questions are about",
            "anyOf": [TEXT_OR_NULL, {"type": "object"}, {"type": "array", "items": {}}],
        },
        "questions": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": _STATE_QUESTION,
        },
    },
    examples={
        "A yes-or-no question": {
            "state": "The parcel came a week late.",
            "questions": {"angry": {"type": "noul", "instructions": "Is it a complaint?"}},
        }
    },
)
