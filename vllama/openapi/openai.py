"""OpenAI's routes, and those of others who follow its form."""

from __future__ import annotations

from vllama.dialects.go_types import Schema
from vllama.dialects.openai import answer_types as answers
from vllama.dialects.openai import request_types as requests
from vllama.dialects.responses import answer_types as responses
from vllama.dialects.responses.request_types import RESPONSES
from vllama.openapi.fields import EXAMPLE_MODEL, MODEL, OWN_FIELDS, TOP_LOGPROBS
from vllama.openapi.operation import Body, Operation, Parameter, Stream, StreamKind, Tag

_DONE = "[DONE]"
_NUMBER: Schema = {"type": ["number", "null"]}
_INTEGER: Schema = {"type": ["integer", "null"]}
_BOOLEAN: Schema = {"type": ["boolean", "null"]}
_TEXT: Schema = {"type": "string"}
_EFFORT: Schema = {
    "enum": ["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max", "", None]
}
_N: Schema = {"type": ["integer", "null"], "minimum": 1, "maximum": 128}
_SAMPLING: dict[str, Schema] = {
    **OWN_FIELDS,
    "model": MODEL,
    "n": _N,
    "top_k": _INTEGER,
    "min_p": _NUMBER,
    "typical_p": _NUMBER,
    "repeat_penalty": _NUMBER,
    "repeat_last_n": _INTEGER,
    "num_keep": _INTEGER,
    "max_completion_tokens": _INTEGER,
}
_QUESTION = {
    "model": EXAMPLE_MODEL,
    "messages": [{"role": "user", "content": "Why is the sky blue?"}],
}
_RESPONSE_ID = Parameter(name="id", help="the response's id, such as `resp_1a2b`")
_INPUT: Schema = {
    "description": "a text, or items: messages, calls, results of calls, reasoning",
    "anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "object"}}],
}
_SOUND = {"type": "string", "contentMediaType": "application/octet-stream"}

_ROWS: dict[str, Schema] = {
    name: {
        "type": "array",
        "minItems": 2,
        "items": {
            "type": "object",
            "required": [field],
            "properties": {field: _TEXT, "description": {"type": ["string", "null"]}},
        },
    }
    for name, field in (("choices", "value"), ("levels", "label"))
}
_TYPED: Schema = {
    "anyOf": [
        {
            "type": "object",
            "required": ["type", "instructions", *rows],
            "properties": {
                "type": {"const": kind},
                "name": {"type": ["string", "null"]},
                "instructions": {"type": "string", "minLength": 1},
                **{name: _ROWS[name] | {"maxItems": most} for name in rows},
            },
        }
        for kind, rows, most in (
            ("predicate", (), 0),
            ("choice", ("choices",), 26),
            ("score", ("levels",), 10),
        )
    ]
}


def _transcribe(path: str, summary: str) -> Operation:
    """Return the description of one of the two routes that hear."""
    return Operation(
        paths=(path,),
        tag=Tag.OPENAI,
        summary=summary,
        body=Body(
            form=True,
            required=("file", "model"),
            fields={
                "file": _SOUND | {"description": "the recording; 25 MB at most"},
                "model": MODEL,
                "language": _TEXT,
                "prompt": _TEXT | {"description": "what the recording is about"},
                "response_format": {"type": "string", "enum": ["json", "text"]},
            },
        ),
        answer=answers.Transcription,
        media={"text/plain": _TEXT},
        runs_model=True,
    )


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        paths=("/v1/chat/completions",),
        tag=Tag.OPENAI,
        summary="Continue a conversation",
        help="Fields that only the engine knows are passed on to it.",
        body=Body(
            type=requests.CHAT,
            required=("model", "messages"),
            fields=_SAMPLING
            | {
                "messages": {"type": "array", "minItems": 1},
                "top_logprobs": TOP_LOGPROBS,
                "reasoning_effort": _EFFORT,
                "tool_choice": {"description": "`auto`, `none`, `required`, or a function"},
                "parallel_tool_calls": _BOOLEAN,
                "logit_bias": {"type": ["object", "null"]},
            },
            examples={
                "A question": _QUESTION,
                "Streamed": _QUESTION | {"stream": True, "max_tokens": 50},
            },
        ),
        answer=answers.ChatCompletion,
        stream=Stream(
            kind=StreamKind.EVENTS,
            type=(answers.ChatChunk, answers.OpenAIError),
            ends_with=_DONE,
        ),
        runs_model=True,
    ),
    Operation(
        paths=("/v1/completions",),
        tag=Tag.OPENAI,
        summary="Continue prompts",
        help="A prompt goes through the model's template; with `raw` it is sent as it is.",
        body=Body(
            type=requests.COMPLETION,
            required=("model",),
            fields=_SAMPLING
            | {
                "logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
                "echo": _BOOLEAN | {"description": "the answer begins with the prompt"},
                "raw": _BOOLEAN,
            },
            examples={
                "A prompt": {"model": EXAMPLE_MODEL, "prompt": "One, two,", "max_tokens": 10},
                "Streamed": {
                    "model": EXAMPLE_MODEL,
                    "prompt": "One, two,",
                    "max_tokens": 10,
                    "stream": True,
                },
            },
        ),
        answer=answers.TextCompletion,
        stream=Stream(
            kind=StreamKind.EVENTS,
            type=(answers.TextCompletion, answers.OpenAIError),
            ends_with=_DONE,
        ),
        runs_model=True,
    ),
    Operation(
        paths=("/v1/embeddings",),
        tag=Tag.OPENAI,
        summary="Make embeddings of texts or tokens",
        body=Body(
            type=requests.EMBEDDING,
            required=("model", "input"),
            fields={
                "model": MODEL,
                **OWN_FIELDS,
                "input": {
                    "description": "a text, texts, tokens, or lists of tokens",
                    "anyOf": [
                        _TEXT,
                        {"type": "array", "minItems": 1, "items": _TEXT},
                        {"type": "array", "minItems": 1, "items": {"type": "integer"}},
                        {
                            "type": "array",
                            "minItems": 1,
                            "items": {
                                "type": "array",
                                "minItems": 1,
                                "items": {"type": "integer"},
                            },
                        },
                    ],
                },
                "encoding_format": {"enum": ["float", "base64", "", None]},
            },
            examples={"A text": {"model": "all-minilm", "input": "one text"}},
        ),
        answer=answers.Embeddings,
        runs_model=True,
    ),
    Operation(
        paths=("/v1/models",),
        methods=("get",),
        tag=Tag.OPENAI,
        summary="List the models of this machine",
        answer=answers.OpenAIModels,
    ),
    Operation(
        paths=("/v1/models/{model}",),
        methods=("get",),
        tag=Tag.OPENAI,
        summary="Describe a model",
        parameters=(
            Parameter(
                name="model",
                help="the model's name, which may contain slashes",
                example=EXAMPLE_MODEL,
            ),
        ),
        answer=answers.OpenAIModel,
        errors=(404,),
    ),
    Operation(
        paths=("/v1/responses",),
        tag=Tag.OPENAI,
        summary="Continue a conversation, in items and events",
        body=Body(
            type=RESPONSES,
            required=("model",),
            fields={
                **OWN_FIELDS,
                "model": MODEL,
                "input": _INPUT,
                "previous_response_id": {
                    "type": ["string", "null"],
                    "description": "the response that this one goes on from",
                },
                "store": _BOOLEAN | {"description": "whether it outlives the server"},
                "metadata": {"type": ["object", "null"]},
                "parallel_tool_calls": _BOOLEAN,
                "presence_penalty": _NUMBER,
                "frequency_penalty": _NUMBER,
                "tool_choice": {"description": "`auto`, `none`, `required`, or a function"},
            },
            examples={
                "A question": {
                    "model": EXAMPLE_MODEL,
                    "input": "Say hello.",
                    "max_output_tokens": 20,
                },
                "Streamed": {"model": EXAMPLE_MODEL, "input": "Say hello.", "stream": True},
            },
        ),
        answer=responses.Response,
        stream=Stream(kind=StreamKind.EVENTS, type=responses.ResponseEvent, named=True),
        errors=(415,),
        runs_model=True,
    ),
    Operation(
        paths=("/v1/responses/{id}",),
        methods=("get",),
        tag=Tag.OPENAI,
        summary="Return a response that was kept",
        parameters=(_RESPONSE_ID,),
        answer=responses.Response,
        errors=(404,),
    ),
    Operation(
        paths=("/v1/responses/{id}",),
        methods=("delete",),
        tag=Tag.OPENAI,
        summary="Forget a response",
        parameters=(_RESPONSE_ID,),
        answer=responses.DeletedResponse,
        errors=(404,),
    ),
    Operation(
        paths=("/v1/responses/{id}/input_items",),
        methods=("get",),
        tag=Tag.OPENAI,
        summary="List the input of a response, the newest item first",
        parameters=(_RESPONSE_ID,),
        answer=responses.InputItems,
        errors=(404,),
    ),
    Operation(
        paths=("/v1/rerank", "/v1/reranking", "/v2/rerank", "/rerank", "/reranking"),
        tag=Tag.OPENAI,
        summary="Order documents by how well they fit a query",
        help="With `texts` in place of `documents` the answer is a bare array.",
        body=Body(
            required=("model", "query", "documents"),
            fields={
                "model": MODEL,
                "query": _TEXT,
                "documents": {
                    "type": "array",
                    "minItems": 1,
                    "items": {"anyOf": [_TEXT, {"type": "object"}]},
                },
                "top_n": {"type": ["integer", "null"], "minimum": 0},
                "return_documents": _BOOLEAN,
            },
            examples={
                "Two documents": {
                    "model": "bge-reranker-v2-m3",
                    "query": "What do pandas eat?",
                    "documents": ["Pandas eat bamboo.", "Paris is in France."],
                }
            },
        ),
        answer=(answers.Ranking, list[answers.RankedText]),
        runs_model=True,
    ),
    Operation(
        paths=("/v1/score", "/score"),
        tag=Tag.OPENAI,
        summary="Compare pairs of texts",
        body=Body(
            required=("model", "text_1", "text_2"),
            fields={
                "model": MODEL,
                "text_1": {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": _TEXT}]},
                "text_2": {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": _TEXT}]},
            },
            examples={
                "A pair": {"model": "bge-reranker-v2-m3", "text_1": "a panda", "text_2": "a bear"}
            },
        ),
        answer=answers.Scores,
        runs_model=True,
    ),
    Operation(
        paths=("/v1/decisions",),
        tag=Tag.OPENAI,
        summary="Answer typed questions with probabilities",
        body=Body(
            required=("model", "input", "questions"),
            fields={
                "model": MODEL,
                "input": _INPUT,
                "questions": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 400,
                    "items": _TYPED,
                },
            },
            examples={
                "A predicate": {
                    "model": EXAMPLE_MODEL,
                    "input": "The parcel came a week late.",
                    "questions": [
                        {"type": "predicate", "name": "angry", "instructions": "Is it a complaint?"}
                    ],
                }
            },
        ),
        answer=answers.Decisions,
        runs_model=True,
    ),
    Operation(
        paths=("/v1/systemone",),
        tag=Tag.OPENAI,
        summary="Answer typed questions about a state, in System One's form",
        body=Body(
            required=("model", "state", "questions"),
            fields={
                "model": MODEL,
                "state": {"type": ["string", "object", "array", "null"]},
                "questions": {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": {
                        "type": "object",
                        "required": ["type", "instructions"],
                        "properties": {
                            "type": {"enum": ["noul", "choice", "score"]},
                            "instructions": {"type": ["string", "object", "array"]},
                        },
                    },
                },
            },
            examples={
                "A yes-or-no question": {
                    "model": EXAMPLE_MODEL,
                    "state": "The parcel came a week late.",
                    "questions": {"angry": {"type": "noul", "instructions": "Is it a complaint?"}},
                }
            },
        ),
        answer=answers.SystemOneAnswers,
        error_form=Tag.OLLAMA,
        runs_model=True,
    ),
    _transcribe("/v1/audio/transcriptions", "Turn speech into text"),
    _transcribe("/v1/audio/translations", "Turn speech into English text"),
    Operation(
        paths=("/v1/audio/speech",),
        tag=Tag.OPENAI,
        summary="Read a text aloud, by a server behind this one",
        body=Body(
            required=("model", "input"),
            fields={
                "model": MODEL,
                "input": {"type": "string", "minLength": 1},
                "voice": {},
                "response_format": {"enum": ["mp3", "opus", "aac", "flac", "wav", "pcm", "", None]},
            },
        ),
        media={f"audio/{name}": {} for name in ("mpeg", "ogg", "aac", "flac", "wav", "pcm")},
        runs_model=True,
    ),
    Operation(
        paths=("/v1/images/generations",),
        tag=Tag.OPENAI,
        summary="Draw what a text describes, by a server behind this one",
        body=Body(
            required=("model", "prompt"),
            fields={"model": MODEL, "prompt": {"type": "string", "minLength": 1}},
        ),
        media={"application/json": {}},
        runs_model=True,
    ),
    Operation(
        paths=("/v1/images/edits",),
        tag=Tag.OPENAI,
        summary="Change an image as a text describes, by a server behind this one",
        body=Body(
            form=True,
            required=("model", "image", "prompt"),
            fields={"model": MODEL, "image": _SOUND, "prompt": _TEXT},
        ),
        media={"application/json": {}},
        runs_model=True,
    ),
)
