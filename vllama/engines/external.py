"""Servers that already run and speak OpenAI's API: vllama relays to them but never starts them.

This is how users go beyond one machine: vLLM across machines, SGLang, llama-server, LM Studio.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import msgspec

from vllama.base.errors import ConfigError
from vllama.chat.engine.traits import Traits
from vllama.chat.grammar_schema import CONVERTER, XGRAMMAR
from vllama.engines.base import Engine, Installation, Missing, Mode, SearchPaths, Settings
from vllama.engines.package_server import LLAMACPP_TOKENIZER, PARAMETERS, PROMPT_TOKENIZER
from vllama.engines.request_body import LLAMACPP, SGLANG, VLLM, write_guided
from vllama.machine.types import Platform
from vllama.models.settings import UpstreamSettings
from vllama.models.types import Bundle, Capability, Format, UpstreamModel
from vllama.supervise.spec import Endpoint, LaunchSpec

HEALTH_PATH = "/v1/models"
AT_ONCE = 4096  # requests; a server elsewhere has a queue of its own
# a complete OpenAI server; what its parsers were told to find is not known
UNKNOWN = Traits(
    context_length=0,
    max_concurrency=AT_ONCE,
    parameters=PARAMETERS,
    takes_prompt_lists=True,
    takes_template_kwargs=True,
    reasoning_field="reasoning_content",
    # strict servers refuse fields that they do not know, and say which
    when_refused={"reasoning_content": {"reasoning_field": None}},
    count_tokens_path="/v1/messages/count_tokens",
    # a server without these routes answers 404, which the client is told
    rerank_path="/v1/rerank",
    transcription_path="/v1/audio/transcriptions",
    translation_path="/v1/audio/translations",
    speech_path="/v1/audio/speech",
    images_path="/v1/images/generations",
    image_edits_path="/v1/images/edits",
)
# by the `owned_by` of a server's models; docs/reference/engines.md#upstreams
KNOWN: Mapping[str, Traits] = {
    "vllm": replace(
        UNKNOWN,
        passed_fields=VLLM,
        finish_body=write_guided,
        takes_structural_tags=True,
        schema_compiler=XGRAMMAR,
        keeps_call_schema=False,
        silent_tool_choice="none",
        takes_n=True,
        openai_in_full=True,
        takes_continue_final_message=True,
        names_stop=True,
        seed_bits=63,
        request_id_header="x-request-id",
        tokenizer=replace(PROMPT_TOKENIZER, messages_field="messages"),
        # nothing else tells that it was started without a parser
        when_refused={"--enable-auto-tool-choice": {"parses_tools": False}},
    ),
    "library": replace(UNKNOWN, reasoning_field="reasoning"),  # Ollama
    "sglang": replace(
        UNKNOWN,
        schema_compiler=XGRAMMAR,
        passed_fields=SGLANG,
        takes_structural_tags=True,
        takes_n=True,
        takes_continue_final_message=True,
        tokenizer=PROMPT_TOKENIZER,
    ),
    "llamacpp": replace(
        UNKNOWN,
        schema_compiler=CONVERTER,
        passed_fields=LLAMACPP,
        # under our name; all servers ignore names that they do not know
        parameters=PARAMETERS | {"repeat_penalty": "repeat_penalty"},
        # a template without tools leaves a forced call to the model
        keeps_call_schema=False,
        silent_tool_choice="none",
        tokenizer=LLAMACPP_TOKENIZER,
    ),
}


@dataclass(frozen=True, kw_only=True)
class External(Engine):
    """Adapter of running servers; `upstreams` come from the settings."""

    name: str = "external"
    aliases: tuple[str, ...] = ("upstream",)
    title: str = "external server"
    formats: tuple[Format, ...] = (Format.REMOTE,)
    modes: tuple[Mode, ...] = (Mode.CHAT, Mode.EMBED)
    upstreams: tuple[UpstreamSettings, ...] = ()

    def configure(self, options: Mapping[str, object]) -> External:
        """Return an adapter for the setting `upstreams`. Raises ConfigError."""
        upstreams = options.get("upstreams") or ()
        assert isinstance(upstreams, tuple)
        for each in upstreams:
            parse_upstream(each)
        return replace(self, upstreams=upstreams)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints of all servers."""
        return tuple(map(parse_upstream, self.upstreams))

    def find(self, search_paths: SearchPaths) -> Installation | Missing:
        """Return an installation if the settings name an upstream."""
        if not self.endpoints:
            return Missing(
                engine=self.name,
                reason="no upstream is set",
                hint="specify a running server with --upstream http://host:port",
            )
        where = ", ".join(dict.fromkeys(endpoint.url for endpoint in self.endpoints))
        return Installation(engine=self.name, version=f"at {where}", offloads=True)

    def preference(self, platform: Platform) -> tuple[int, str]:
        """Come first where an upstream is given: it serves the models that it lists."""
        if any(each.is_listed for each in self.upstreams):
            return 200, "specified as an upstream"
        return (1, "used as a fallback") if self.upstreams else (0, "no upstream is set")

    def attach(self, bundle: Bundle | None = None) -> tuple[tuple[Endpoint, ...], str]:
        """Return the endpoints that have a model, and the path that tells whether one answers."""
        if bundle is None or bundle.upstream is None:
            return self.endpoints, HEALTH_PATH
        model = bundle.upstream
        having = tuple(each for each in self.upstreams if each.id in model.servers)
        ids = {each.id: model.ids.get(each.id, bundle.hub_id) for each in having}
        return tuple(
            msgspec.structs.replace(
                parse_upstream(each), model=ids[each.id] if ids[each.id] != bundle.hub_id else None
            )
            for each in having
        ) or self.endpoints, HEALTH_PATH

    def launch(
        self,
        bundle: Bundle,
        settings: Settings,
        installation: Installation,
        endpoint: Endpoint,
        environ: Mapping[str, str],
    ) -> LaunchSpec:
        """Raise ConfigError: there is nothing to start."""
        raise ConfigError("cannot start an external server: vllama only connects to it")

    def traits(self, bundle: Bundle, settings: Settings) -> Traits:
        """Declare what is known of the server, and for the rest a complete OpenAI server."""
        model = bundle.upstream or UpstreamModel()
        capabilities = bundle.info.capabilities if bundle.info is not None else frozenset()
        known = KNOWN.get(model.owner, UNKNOWN)
        # of several servers that have the model, each must be meant to get a field
        passed = [{*each.pass_fields} for each in self.upstreams if each.id in model.servers]
        return replace(
            known,
            passed_fields=known.passed_fields.union(set.intersection(*passed) if passed else ()),
            context_length=settings.context_length,
            max_concurrency=settings.parallel or AT_ONCE,
            model_name=bundle.hub_id,
            generates=model.shown is not None,
            takes_prompt_lists=model.shown is None,
            takes_images=Capability.VISION in capabilities,
            takes_audio=Capability.AUDIO in capabilities,
            parses_tools=not model.tool_calls_in_text,
            splits_reasoning=not model.thinking_in_text,
            may_leave_calls=model.tool_calls_in_text is None,
            may_leave_thinking=model.thinking_in_text is None,
        )


def parse_upstream(upstream: UpstreamSettings) -> Endpoint:
    """Return the endpoint of `http://host:port[/prefix][/v1]`. Raises ConfigError."""
    url = upstream.url
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"cannot use upstream '{url}': {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"cannot use upstream '{url}': not an http address",
            hint="use the form http://host:port or https://host/prefix",
        )
    return Endpoint(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port or (443 if parts.scheme == "https" else 80),
        prefix=parts.path.rstrip("/").removesuffix("/v1"),
        api_key=upstream.key,
        weight=upstream.weight,
        concurrent=upstream.concurrent,
        health_path=upstream.health_path,
        health_interval_s=upstream.health_interval_s,
        upstream=upstream.name,
        is_spare=bool(upstream.name) or not upstream.is_listed,
        is_elsewhere=True,
    )


ENGINE: Engine = External()
