"""Requests and answers of the routes that score texts: rerank, and score.

Several forms share each route. Rerank: Jina's, Cohere's and vLLM's (`documents`, `results`), and
that of text-embeddings-inference (`texts`, a bare array). Score is vLLM's: one text or several on
the left, several on the right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from vllama.base.errors import BadRequest, UpstreamError
from vllama.base.meaning import TEXT, Schema, make_array, says
from vllama.chat.bodies import has_too_many_values
from vllama.chat.engine.claims import read_usage
from vllama.dialects.ollama.request_types import MAX_INT, Model, OwnFields, is_base64
from vllama.dialects.openai.answer_types import (
    PairScore,
    RankedDocument,
    RankedText,
    Ranking,
    Scores,
    Usage,
)

_RERANK_FIELDS = (
    "model", "query", "documents", "texts", "top_n", "top_k", "return_documents", "return_text",
    "raw_scores", "rank_fields", "stream",
)  # fmt: skip
_SCORE_FIELDS = ("model", "text_1", "text_2", "queries", "documents", "items", "data_1", "data_2")
_PAIRS = (
    ("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"),
)  # fmt: skip


_TEXTS: Schema = {"anyOf": [TEXT, make_array(TEXT)]}
_MEDIA = frozenset({
    "url", "image", "image_url", "audio", "audio_url", "video", "video_url", "file", "path",
})  # fmt: skip


_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)]


class RerankBody(OwnFields):
    """`POST /v1/rerank`."""

    model: Model = ""
    query: Annotated[str | None, says(required=True)] = None
    documents: Annotated[
        Annotated[list[str | dict[str, Any]], msgspec.Meta(min_length=1)] | None,
        says("texts to rank, or objects with a `text`", required=True),
    ] = None
    texts: Annotated[
        Annotated[list[str], msgspec.Meta(min_length=1)] | None,
        says("texts to rank, as sent by text-embeddings-inference clients"),
    ] = None
    top_n: Annotated[_Count | None, says("number of documents to return")] = None
    top_k: Annotated[_Count | None, says("alias for `top_n`")] = None
    return_documents: Annotated[bool | None, says("false: omit the documents")] = None
    return_text: Annotated[bool | None, says("true: include the `texts`")] = None


class ScoreBody(msgspec.Struct):
    """`POST /v1/score`."""

    model: Model
    text_1: Annotated[Any, says("text or texts to compare", **_TEXTS)]
    text_2: Annotated[Any, says("text or texts to compare with", **_TEXTS)]


class _Row(msgspec.Struct):
    index: int
    relevance_score: float


class _Answer(msgspec.Struct):
    results: list[_Row]
    usage: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Answer).decode


class Rerank(msgspec.Struct, frozen=True, kw_only=True):
    """A request to order documents. `top_n` None: all of them.

    `bare`: the answer is the array that clients of text-embeddings-inference expect. `fields` is
    the rest of the body, for the engine.
    """

    query: str
    documents: tuple[Any, ...]
    top_n: int | None = None
    with_documents: bool = True
    bare: bool = False
    fields: Mapping[str, Any] = {}

    def write(
        self, scores: Sequence[float], *, model: str, identity: str, tokens: int
    ) -> Ranking | list[RankedText]:
        """Return the answer: the documents by falling score; equal ones keep their order."""
        order = sorted(range(len(scores)), key=lambda number: -scores[number])[: self.top_n]
        if self.bare:
            shown = self.documents if self.with_documents else [UNSET] * len(scores)
            return [RankedText(number, scores[number], shown[number]) for number in order]
        rows = [RankedDocument(number, scores[number], self._document(number)) for number in order]
        return Ranking(identity, "list", model, Usage(tokens, tokens), rows)

    def _document(self, number: int) -> dict[str, Any] | UnsetType:
        document: Any = self.documents[number] if self.with_documents else UNSET
        return {"text": document} if isinstance(document, str) else document


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the scores of pairs of texts; `fields` as in `Rerank`.

    One text on the left is compared with each on the right, else the two sides are of one length.
    """

    left: tuple[str, ...]
    right: tuple[str, ...]
    fields: Mapping[str, Any] = {}

    def comparisons(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each query with the documents to score for it."""
        if len(self.left) == 1:
            yield self.left[0], self.right
        else:
            yield from ((one, (other,)) for one, other in zip(self.left, self.right, strict=True))

    @staticmethod
    def write(
        scores: Sequence[float], *, model: str, identity: str, created_s: int, tokens: int
    ) -> Scores:
        """Return the answer: the scores in the order of the pairs."""
        rows = [PairScore(number, "score", score) for number, score in enumerate(scores)]
        return Scores(identity, "list", created_s, model, rows, Usage(tokens, tokens, 0))


def parse_rerank(body: Mapping[str, Any]) -> Rerank:
    """Parse a decoded body in any of the forms; its fields have their types. Raises BadRequest."""
    data = {name: value for name, value in body.items() if value is not None}
    bare = "texts" in data and "documents" not in data
    documents = data.get("texts" if bare else "documents")
    if "query" not in data or documents is None:
        raise BadRequest("Missing required parameter: 'query' and 'documents'.")
    if any(map(_has_address, documents)):
        raise BadRequest("URLs in 'documents' are not supported; use base64 data instead")
    return Rerank(
        query=data["query"],
        documents=tuple(documents),
        top_n=int(data.get("top_n", data.get("top_k", 0))) or None,
        with_documents=data.get("return_text" if bare else "return_documents", not bare),
        bare=bare,
        fields={name: value for name, value in data.items() if name not in _RERANK_FIELDS},
    )


def parse_score(body: Mapping[str, Any]) -> Score:
    """Parse a decoded body. Raises BadRequest."""
    data = {name: value for name, value in body.items() if value is not None}
    names = next((pair for pair in _PAIRS if pair[0] in data and pair[1] in data), None)
    if names is None:
        raise BadRequest("Missing required parameter: 'text_1' and 'text_2'.")
    left, right = (_texts(name, data[name]) for name in names)
    if len(left) not in (1, len(right)):
        raise BadRequest(
            f"Invalid '{names[0]}': expected one text or as many as in '{names[1]}' "
            f"({len(right)}), but got {len(left)}."
        )
    rest = {name: value for name, value in data.items() if name not in _SCORE_FIELDS}
    return Score(left=left, right=right, fields=rest)


def write_rerank_body(
    query: str, documents: Sequence[Any], fields: Mapping[str, Any], model: str
) -> dict[str, Any]:
    """Return the body for an engine; it is asked for all scores, as texts where there is one."""
    texts = [item if (text := _find_text(item)) is None else text for item in documents]
    return {**fields, "model": model, "query": query, "documents": texts}


def read_scores(body: bytes, count: int) -> tuple[list[float], int]:
    """Return an engine's scores in the order of the documents, and the tokens that it read.

    Raises UpstreamError if a document has no score.
    """
    try:
        if has_too_many_values(body):
            raise ValueError
        answer = _decode(body)
    except (ValueError, RecursionError):
        raise UpstreamError("cannot read the scores of the engine") from None
    scores = {row.index: row.relevance_score for row in answer.results}
    if set(scores) != set(range(count)):
        raise UpstreamError("the engine returned too few scores")
    usage = read_usage(answer.usage, "token usage of scores")
    tokens = usage.get("total_tokens") or usage.get("prompt_tokens") or 0
    return [scores[number] for number in range(count)], tokens


def _find_text(document: Any) -> str | None:
    """Return a document's text; None: it has none, and goes to the engine as it is."""
    text = document.get("text") if isinstance(document, dict) else document
    return text if isinstance(text, str) else None


def _has_address(document: Any) -> bool:
    """Tell whether a document names a file or an address where an engine would open it."""
    if _find_text(document) is not None:
        return False
    todo = [("", document)]
    while todo:
        name, value = todo.pop()
        if isinstance(value, dict):
            todo += value.items()
        elif isinstance(value, list):
            todo += [(name, item) for item in value]
        elif isinstance(value, str):
            is_data = value.startswith("data:") or is_base64(value)
            if "://" in value or (name.lower() in _MEDIA and not is_data):
                return True
    return False


def _texts(name: str, value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) for one in texts):
        raise BadRequest(f"Invalid value for '{name}': expected a string or an array of strings.")
    return tuple(texts)
