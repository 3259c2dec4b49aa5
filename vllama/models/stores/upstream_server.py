"""Queries an external server about itself and its models.

OpenAI's API has no route for this. Therefore the routes of known servers are tried: `/props`
(llama.cpp), `/server_info` (SGLang), `/api/show` (Ollama, and vllama itself). None of them makes
the server generate. If a server has none of them, only its list of models is known.

See docs/reference/engines.md#upstreams.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

import msgspec

from vllama.models.limits import MOST_JSON_BYTES, decode_json

TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Facts about a server. `props` and `info` are the answers of `/props` and `/server_info`.

    `shows`: it has Ollama's `/api/show`, which describes each model. `only_embeds`: it serves
    embeddings only.
    """

    props: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    shows: bool = False
    only_embeds: bool = False


class UpstreamServer:
    """The client of one server; `url` is without `/v1`. Blocking."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def list_models(self) -> list[Mapping[str, Any]] | None:
        """Return the rows of `/v1/models` with an id, None if the server does not answer."""
        try:
            status, body = self._request("GET", "/v1/models")
            rows = decode_json(body)["data"] or () if status == 200 else None
        except (OSError, HTTPException, ValueError, KeyError, TypeError):
            return None
        if rows is None:
            return None
        return [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]

    def describe(self) -> ServerFacts:
        """Try the routes by which servers describe themselves; return no facts on failure."""
        try:
            if "default_generation_settings" in (props := self._request_json("GET", "/props")):
                # a request without fields: 501 if it was not started for embeddings
                status, _ = self._request("POST", "/v1/embeddings", {})
                return ServerFacts(props=props, only_embeds=status == 400)
            for path in ("/server_info", "/get_server_info"):
                if "model_path" in (info := self._request_json("GET", path)):
                    return ServerFacts(info=info, only_embeds=info.get("is_embedding") is True)
            if isinstance(self._request_json("GET", "/api/version").get("version"), str):
                return ServerFacts(shows=True)
            # FastAPI answers 405 where a route takes only POST, and 404 where there is none
            lacks_chat = self._request("GET", "/v1/chat/completions")[0] == 404
            has_vectors = self._request("GET", "/v1/embeddings")[0] == 405
            return ServerFacts(only_embeds=lacks_chat and has_vectors)
        except (OSError, HTTPException):
            return ServerFacts()

    def show(self, name: str) -> Mapping[str, Any]:
        """Return the answer of Ollama's `/api/show` about a model; empty on failure."""
        try:
            return self._request_json("POST", "/api/show", {"model": name})
        except (OSError, HTTPException):
            return {}

    def _request_json(self, method: str, path: str, body: object = None) -> Mapping[str, Any]:
        """Return the JSON object that a route returns; empty if it returns anything else."""
        status, data = self._request(method, path, body)
        try:
            value = decode_json(data) if status == 200 else {}
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def _request(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        # the standard library's client, since it is cheap, and this runs while answers stream
        where = urlsplit(self.url)
        kind = HTTPSConnection if where.scheme == "https" else HTTPConnection
        data = None if body is None else msgspec.json.encode(body)
        headers = self._headers | ({"content-type": "application/json"} if data else {})
        with closing(kind(where.netloc, timeout=TIMEOUT_S)) as connection:
            connection.request(method, f"{where.path}{path}", data, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(MOST_JSON_BYTES)
