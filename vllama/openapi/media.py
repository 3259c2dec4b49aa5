"""Routes for sound and images."""

from __future__ import annotations

from vllama.dialects.openai import answer_types as answers
from vllama.openapi.fields import (
    MODEL,
    TEXT,
)
from vllama.openapi.operation import Body, Operation, Tag

_SOUND = {"type": "string", "contentMediaType": "application/octet-stream", "minLength": 1}


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
                "language": TEXT,
                "prompt": TEXT | {"description": "what the recording is about"},
                "response_format": {"type": "string", "enum": ["json", "text"]},
            },
        ),
        answer=answers.Transcription,
        media={"text/plain": TEXT},
        runs_model=True,
    )


OPERATIONS: tuple[Operation, ...] = (
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
            fields={"model": MODEL, "image": _SOUND, "prompt": TEXT},
        ),
        media={"application/json": {}},
        runs_model=True,
    ),
)
