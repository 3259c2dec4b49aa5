"""Facts about a server that somebody else runs, and about a model on it.

OpenAI's API has no route for this. Therefore the routes of known servers are tried: `/props`
(llama.cpp), `/server_info` (SGLang), `/api/show` (Ollama, and vllama itself). None of them makes
the server generate. If a server has none of them, only its list of models is known.

What the user's settings say of a model comes first, then what the server says, then a guess that
refuses nothing. See docs/reference/engines.md#upstreams.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from vllama.base.errors import SourceError
from vllama.chat.request import Sampling
from vllama.models.headers.chat_templates import read_template_capabilities
from vllama.models.limits import MOST_JSON_BYTES, decode_json, decode_object
from vllama.models.names.ref import add_default_tag
from vllama.models.settings import UpstreamTraits
from vllama.models.stores.base import compute_digest
from vllama.models.types import Bundle, Capability, Format, ModelInfo, UpstreamModel
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
        return decode_object(data) if status == 200 else {}

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


STORE = "upstream"
SCHEME = "upstream:"
# capabilities of a model whose server reports none, so that nothing is refused here
ANYTHING = frozenset(
    {Capability.COMPLETION, Capability.TOOLS, Capability.THINKING, Capability.VISION}
)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_EMBEDS = re.compile(r"(?i)embed|(?:^|[/_-])(?:bge|gte|e5)[_-]|minilm")


def describe_model(
    row: Mapping[str, Any], facts: ServerFacts, shown: Mapping[str, Any], said: UpstreamTraits
) -> Bundle:
    """Return the model of a row in a server's list, under the name that it has there.

    `facts` are those of the server, `shown` is what it shows of the model, `said` what the user
    says of it.
    """
    name: str = row["id"]
    meta = _table(row.get("meta"))
    owner = str(row.get("owned_by") or "")
    info = _read_shown(shown) if shown else ModelInfo(architecture=owner or "unknown")
    tag = facts.tags.get(name) or facts.tags.get(f"{name}:latest") or {}
    digest = str(tag.get("digest")).removeprefix("sha256:")
    context = (
        said.context_length
        # what is loaded is less, and grows when it is asked for
        or (info.context_length if shown else None)
        or _number(row.get("max_model_len"))
        or _number(_table(facts.props.get("default_generation_settings")).get("n_ctx"))
        or _number(meta.get("n_ctx"))
        or _number(facts.info.get("context_length"))
    )
    embedding_length = info.embedding_length or _number(meta.get("n_embd"))
    capabilities = _capabilities(name, facts, info.capabilities if shown else None, said)
    arch = info.architecture
    numbers = {"context_length": context, "embedding_length": embedding_length}
    metadata = {
        "general.architecture": arch,
        "general.basename": name,
        **info.metadata,
        **{f"{arch}.{key}": value for key, value in numbers.items() if value},
    }
    return Bundle(
        name=add_default_tag(name),
        store=STORE,
        format=Format.REMOTE,
        path=Path(f"{SCHEME}{name}"),
        files=(),
        size_bytes=_number(meta.get("size")) or _number(tag.get("size")) or 0,
        digest=digest if _DIGEST.fullmatch(digest) else compute_digest([(name, "", 0)]),
        modified_s=float(_number(row.get("created")) or 0),
        hub_id=name,
        info=replace(
            info,
            parameter_count=info.parameter_count or _number(meta.get("n_params")),
            context_length=context,
            embedding_length=embedding_length,
            capabilities=capabilities,
            metadata=metadata,
        ),
        upstream=UpstreamModel(
            owner=owner,
            tool_calls_in_text=_in_text(said.tool_calls, facts.info, "tool_call_parser"),
            thinking_in_text=_in_text(said.thinking, facts.info, "reasoning_parser"),
            shown=shown if facts.shows else None,
        ),
    )


def _capabilities(
    name: str,
    facts: ServerFacts,
    shown: frozenset[Capability] | None,
    said: UpstreamTraits,
) -> frozenset[Capability]:
    """Return the capabilities of a model: from the user, or else its server, or else its name."""
    embeds = said.embeddings
    if embeds is None and shown is None:
        embeds = facts.only_embeds or _EMBEDS.search(name) is not None
    if embeds:
        return frozenset({Capability.EMBEDDING})
    found = set(shown or ANYTHING)
    if embeds is False and Capability.EMBEDDING in found:
        found = set(ANYTHING)
    if facts.props:
        template = facts.props.get("chat_template")
        modalities = _table(facts.props.get("modalities"))
        found -= {Capability.TOOLS, Capability.THINKING, Capability.VISION}
        found |= read_template_capabilities(str(template or ""), "")
        found |= {Capability.VISION} if modalities.get("vision") else set()
        found |= {Capability.AUDIO} if modalities.get("audio") else set()
    for capability, wanted in (
        (Capability.TOOLS, None if said.tool_calls is None else said.tool_calls != "none"),
        (Capability.THINKING, None if said.thinking is None else said.thinking != "none"),
        (Capability.VISION, said.images),
    ):
        if wanted is not None:
            found = found | {capability} if wanted else found - {capability}
    return frozenset(found)


def _in_text(said: str | None, info: Mapping[str, Any], parser: str) -> bool | None:
    """Return whether tool calls or thinking remain in the text; SGLang reports its `parser`."""
    if said is not None:
        return said in ("text", "tags")
    return not info[parser] if parser in info else None


def _read_shown(shown: Mapping[str, Any]) -> ModelInfo:
    """Parse an answer of Ollama's `/api/show`."""
    details, metadata = _table(shown.get("details")), dict(_table(shown.get("model_info")))
    arch = str(metadata.get("general.architecture") or details.get("family") or "unknown")
    words = shown.get("capabilities")
    named = {str(word) for word in words} if isinstance(words, list) else set()
    known = frozenset(each for each in Capability if each.value in named)
    level = details.get("quantization_level")
    # its `/v1` has OpenAI's values of these for requests without, and not its model's
    usual = {name: getattr(Sampling(), name) for name in ("temperature", "top_p")}
    own = re.findall(r"(?m)^(temperature|top_p) +([0-9.]+)$", str(shown.get("parameters")))
    return ModelInfo(
        architecture=arch,
        parameter_count=_number(metadata.get("general.parameter_count")),
        quant=level if isinstance(level, str) and level else None,
        context_length=_number(metadata.get(f"{arch}.context_length")),
        embedding_length=_number(metadata.get(f"{arch}.embedding_length")),
        capabilities=known or ANYTHING,
        metadata=metadata,
        sampling={**usual, **{name: float(value) for name, value in own}},
    )


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> int | None:
    """Return `value` if it is a positive integer, else None."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**63:
        return None
    return value
