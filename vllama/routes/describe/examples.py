"""Examples of requests by the names of their types; where they name no model, it is `MODEL`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MODEL = "qwen3:0.6b"
"""It can chat, call tools and think."""
_QUESTION = {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}
_TEXT = {"type": "string"}
_CITY = {"type": "object", "properties": {"city": _TEXT}, "required": ["city"]}
_WEATHER = {"name": "get_weather", "description": "Get the weather in a city", "parameters": _CITY}
_VECTORS, _RANKER = {"model": "all-minilm"}, {"model": "bge-reranker-v2-m3"}
_PARCEL, _ASKED = "The parcel arrived a week late.", {"instructions": "Is this a complaint?"}
EXAMPLES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "ChatBody": {
        "A question": _QUESTION,
        "With a token limit, without streaming": {
            **_QUESTION,
            "stream": False,
            "options": {"num_predict": 20, "temperature": 0},
        },
        "With a tool": {
            "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
            "tools": [{"type": "function", "function": _WEATHER}],
        },
    },
    "GenerateBody": {
        "A prompt": {"prompt": "The capital of Norway is"},
        "JSON with a schema": {
            "prompt": "Name a color.",
            "stream": False,
            "format": {"type": "object", "properties": {"color": _TEXT}},
        },
        "Load the model": {},
    },
    "EmbedBody": {"Two texts": _VECTORS | {"input": ["one text", "another"]}},
    "LegacyEmbedBody": {"A text": _VECTORS | {"prompt": "one text"}},
    "TokenizeBody": {"A text": {"text": "Hello, world"}},
    "DetokenizeBody": {"Three tokens": {"tokens": [19556, 28, 905]}},
    "ShowBody": {"A model": {}, "With the plan": {"plan": True}},
    "PlanBody": {"A model": {}},
    "PullBody": {"A model": {}},
    "CreateBody": {
        "With a system message": {"model": "pirate", "from": MODEL, "system": "You are a pirate."}
    },
    "CopyBody": {"A copy": {"source": MODEL, "destination": "smol"}},
    "DeleteBody": {"A model": {"model": "smol"}},
    "ChatCompletionBody": {
        "A question": _QUESTION,
        "Streamed": _QUESTION | {"stream": True, "max_tokens": 50},
    },
    "CompletionBody": {"A prompt": {"prompt": "One, two,", "max_tokens": 10}},
    "EmbeddingBody": {"A text": _VECTORS | {"input": "one text"}},
    "ResponsesBody": {"A question": {"input": "Say hello.", "max_output_tokens": 20}},
    "MessagesBody": {"A question": _QUESTION | {"max_tokens": 50}},
    "CountBody": {"A question": _QUESTION},
    "RerankBody": {
        "Two documents": {
            **_RANKER,
            "query": "What do pandas eat?",
            "documents": ["Pandas eat bamboo.", "Paris is in France."],
        }
    },
    "ScoreBody": {"A pair": _RANKER | {"text_1": "a panda", "text_2": "a bear"}},
    "DecisionsBody": {
        "A predicate": {
            "input": _PARCEL,
            "questions": [{"type": "predicate", "name": "angry", **_ASKED}],
        }
    },
    "SystemOneBody": {
        "A yes-or-no question": {
            "state": _PARCEL,
            "questions": {"angry": {"type": "noul", **_ASKED}},
        }
    },
    "NewKeyBody": {"A key for a team": {"name": "team", "rate": "60/min"}},
    "SettingsBody": {"A longer keep-alive for idle models": {"settings": {"keep_alive": "10m"}}},
}
