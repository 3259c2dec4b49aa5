"""Routes for sound and images."""

from __future__ import annotations

from functools import partial

from vllama.dialects.openai import answer_types as answers
from vllama.routes.openai import audio, media
from vllama.routes.openapi.fields import NON_EMPTY, TEXT
from vllama.routes.openapi.operation import Body, Operation

_SOUND = {"type": "string", "contentMediaType": "application/octet-stream", "minLength": 1}
_transcribe = partial(
    Operation,
    body=Body(
        form=True,
        required=("file",),
        fields={
            "file": _SOUND | {"description": "the recording; 25 MB at most"},
            "language": TEXT,
            "prompt": TEXT | {"description": "what the recording is about"},
            "response_format": {"type": "string", "enum": ["json", "text"]},
        },
    ),
    answer=answers.Transcription,
    media={"text/plain": TEXT},
)
OPERATIONS = {
    audio.transcriptions: _transcribe("Turn speech into text"),
    audio.translations: _transcribe("Turn speech into English text"),
    media.speech: Operation(
        "Read a text aloud, by a server behind this one",
        body=Body(
            required=("input",),
            fields={
                "input": NON_EMPTY,
                "voice": {},
                "response_format": {"enum": ["mp3", "opus", "aac", "flac", "wav", "pcm", "", None]},
            },
        ),
        media={f"audio/{name}": {} for name in ("mpeg", "ogg", "aac", "flac", "wav", "pcm")},
    ),
    media.generate_images: Operation(
        "Draw what a text describes, by a server behind this one",
        body=Body(required=("prompt",), fields={"prompt": NON_EMPTY}),
        media={"application/json": {}},
    ),
    media.edit_images: Operation(
        "Change an image as a text describes, by a server behind this one",
        body=Body(
            form=True, required=("image", "prompt"), fields={"image": _SOUND, "prompt": TEXT}
        ),
        media={"application/json": {}},
    ),
}
