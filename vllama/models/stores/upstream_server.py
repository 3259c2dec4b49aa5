"""Queries an external server about itself and its models.

OpenAI's API has no route for this. Therefore the routes of known servers are tried: `/props`
(llama.cpp), `/server_info` (SGLang), `/api/show` (Ollama, and vllama itself). None of them makes
the server generate. If a server has none of them, only its list of models is known.

See docs/reference/engines.md#upstreams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from vllama.base.errors import SourceError
from vllama.models.limits import MOST_JSON_BYTES, decode_json
from vllama.net.web.bodies import read_body
from vllama.net.web.connections import Connections, RequestFailed

TIMEOUT_S = 3.0
_SHOWN = dict.fromkeys(
    ("license", "template", "system", "parameters", "renderer", "parser", "requires"), str
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Facts about a server. `props` and `info` are the answers of `/props` and `/server_info`.

    `shows`: it has Ollama's `/api/show`, which describes each model; `tags` are then the rows of
    `/api/tags`, by name. `only_embeds`: it serves embeddings only.
    """

    props: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    shows: bool = False
    tags: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
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
        except (RequestFailed, SourceError, ValueError, KeyError, TypeError):
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
                rows = self._request_json("GET", "/api/tags").get("models")
                named = [row for row in rows or () if isinstance(row, dict)]
                return ServerFacts(shows=True, tags={str(row.get("name")): row for row in named})
            # FastAPI answers 405 where a route takes only POST, and 404 where there is none
            lacks_chat = self._request("GET", "/v1/chat/completions")[0] == 404
            has_vectors = self._request("GET", "/v1/embeddings")[0] == 405
            return ServerFacts(only_embeds=lacks_chat and has_vectors)
        except (RequestFailed, SourceError):
            return ServerFacts()

    def show(self, name: str) -> Mapping[str, Any]:
        """Return the answer of Ollama's `/api/show` about a model; empty on failure."""
        try:
            shown = self._request_json("POST", "/api/show", {"model": name})
            return {key: x for key, x in shown.items() if isinstance(x, _SHOWN.get(key, object))}
        except (RequestFailed, SourceError):
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
        data = None if body is None else msgspec.json.encode(body)
        # close: a server that answers one connection at a time must not wait for this one
        headers = self._headers | {"connection": "close"}
        headers |= {"content-type": "application/json"} if data else {}
        with (
            Connections(connect_s=TIMEOUT_S, silence_s=TIMEOUT_S, direct=True) as connections,
            connections.ask(
                f"{self.url}{path}", headers, method=method, body=data, follow=False
            ) as answer,
        ):
            return answer.status, read_body(answer, MOST_JSON_BYTES)
