"""Captures for tests, as a server would write them."""

from vllama.observe.captures.format import (
    Body,
    Capture,
    CapturedAnswer,
    CapturedRequest,
    Piece,
    Times,
    encode_parts,
)


def make_capture(
    number: int = 1,
    *,
    path: str = "/api/generate",
    body: bytes = b'{"model":"m","prompt":"hi"}',
    answer: bytes | list[tuple[float, bytes]] = b'{"response":"hello","done":true}',
    content_type: str = "application/json; charset=utf-8",
    request_id: str = "",
    status: int = 200,
    headers: dict[str, str | None] | None = None,
) -> Capture:
    """Return a capture; `answer` is one part, or several with their times."""
    parts = [(0.25, answer)] if isinstance(answer, bytes) else answer
    encoding, texts = encode_parts([part for _, part in parts])
    return Capture(
        id=f"19a-{number}",
        request_id=request_id or f"19a-{number}",
        received_at=f"2026-11-23T01:02:{number:02d}.500000000Z",
        vllama="0",
        client="127.0.0.1",
        key=None,
        request=CapturedRequest(
            method="POST",
            path=path,
            model="m",
            headers={"content-type": "application/json"} if headers is None else headers,
            body=Body.of(body),
        ),
        model=None,
        engine=None,
        settings={},
        times=Times(total_s=0.5),
        answer=CapturedAnswer(
            status=status,
            content_type=content_type,
            size_bytes=sum(len(part) for _, part in parts),
            encoding=encoding,
            parts=[Piece(at_s, text) for (at_s, _), text in zip(parts, texts, strict=True)],
        ),
        outcome="ok" if status == 200 else "error",
        error=None,
        tokens=None,
    )
