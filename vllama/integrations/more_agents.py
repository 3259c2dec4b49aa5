"""More coding agents of the terminal: Qwen Code, Kimi, Pool, Droid, pi, Cline, OpenClaw, Muse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vllama.errors import ConfigError
from vllama.integrations import jsonc
from vllama.integrations.types import (
    ASSUMED_CONTEXT,
    NAME,
    TOKEN,
    Edit,
    Integration,
    Places,
    Start,
    Target,
)

# Qwen Code: qwenlm.github.io/qwen-code-docs, "Authentication": OpenAI-compatible API.


def _qwen_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    variables = {
        "OPENAI_BASE_URL": f"{target.url}/v1",
        "OPENAI_API_KEY": target.key,
        "OPENAI_MODEL": target.model,
    }
    return Start(args=("--auth-type", "openai", "--model", target.model, *args), environ=variables)


# Kimi Code: moonshotai.github.io/kimi-code, "Environment variables": a model for one session. Its
# predecessor, kimi-cli of PyPI, only says that it is no longer maintained.


def _kimi_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    extra = {"vision": "image_in", "thinking": "thinking"}
    known = ("tool_use", *(extra[name] for name in extra if name in target.capabilities))
    variables = {
        "KIMI_MODEL_NAME": target.model,
        "KIMI_MODEL_PROVIDER_TYPE": "openai",
        "KIMI_MODEL_BASE_URL": f"{target.url}/v1",
        "KIMI_MODEL_API_KEY": target.key,
        "KIMI_MODEL_CAPABILITIES": ",".join(known),
        "KIMI_MODEL_MAX_CONTEXT_SIZE": str(target.context or ASSUMED_CONTEXT),
        "KIMI_MODEL_MAX_OUTPUT_SIZE": str(target.answer_tokens),
    }
    return Start(args=tuple(args), environ=variables)


# Pool: github.com/poolsideai/pool.


def _pool_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    variables = {
        "POOLSIDE_STANDALONE_BASE_URL": f"{target.url}/v1",
        "POOLSIDE_API_KEY": target.key,
    }
    return Start(args=("-m", target.model, *args), environ=variables)


# Droid: docs.factory.ai/cli/byok/overview, and its --help: `--settings` merges a file with the
# user's settings for one session. Without a chosen model it asks for an account.

_DROID_MODEL = f"custom:{NAME}"


def _droid_settings(places: Places) -> Path:
    return places.own / "droid" / "settings.json"


def _droid_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    return Start(args=("--settings", str(_droid_settings(places)), *args), environ={})


def _droid_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    model = {
        "id": _DROID_MODEL,
        "model": target.model,
        "displayName": f"{target.model} ({NAME})",
        "baseUrl": f"{target.url}/v1",
        "apiKey": target.key,
        "provider": "generic-chat-completion-api",
        "maxOutputTokens": target.answer_tokens,
        "supportsImages": "vision" in target.capabilities,
    }

    def change(text: str) -> str:
        text = jsonc.put(text, ("customModels",), [model])
        return jsonc.put(text, ("sessionDefaultSettings", "model"), _DROID_MODEL)

    return (Edit(path=_droid_settings(places), change=change),)


# pi: its guide "Custom models": a provider of models.json, chosen by flags.


def _pi_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    return Start(args=("--provider", NAME, "--model", target.model, *args), environ={})


def make_pi_provider(target: Target, **more: object) -> dict[str, object]:
    """Return the provider of pi and of its descendants; `more` are fields of the model."""
    model: dict[str, object] = {
        "id": target.model,
        **more,
        "input": target.inputs,
        "reasoning": "thinking" in target.capabilities,
        "maxTokens": target.answer_tokens,
    }
    if target.context:
        model["contextWindow"] = target.context
    return {
        "baseUrl": f"{target.url}/v1",
        "api": "openai-completions",
        "apiKey": target.key,
        "models": [model],
    }


def _pi_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    folder = places.named("PI_CODING_AGENT_DIR", places.home / ".pi" / "agent")

    def change(text: str) -> str:
        return jsonc.put(text, ("providers", NAME), make_pi_provider(target))

    return (Edit(path=folder / "models.json", change=change),)


# Cline: `cline --help`, and providers.json as `cline auth` writes it. It leaves out a provider
# without the time of its last change.


def _cline_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    return Start(args=("--provider", "ollama", "--model", target.model, *args), environ={})


def _cline_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    settings = {"provider": "ollama", "model": target.model, "baseUrl": f"{target.url}/v1"}
    provider = ("providers", "ollama")

    def change(text: str) -> str:
        if not text.strip():
            text = jsonc.put(text, ("version",), 1)
        text = jsonc.put(text, (*provider, "settings"), settings)
        text = jsonc.put(text, (*provider, "tokenSource"), "manual")
        if "updatedAt" not in jsonc.load(text)["providers"]["ollama"]:
            text = jsonc.put(text, (*provider, "updatedAt"), "1970-01-01T00:00:00.000Z")
        return text

    path = places.home / ".cline" / "data" / "settings" / "providers.json"
    return (Edit(path=path, change=change),)


# OpenClaw: docs.openclaw.ai/providers/ollama; its gateway reads the file again by itself. `chat`
# needs no gateway; `tui` does, which a new user has not set up.


def _openclaw_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    return Start(args=tuple(args or ("chat",)), environ={})


def _openclaw_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    model: dict[str, object] = {
        "id": target.model,
        "name": target.model,
        "input": target.inputs,
        "reasoning": "thinking" in target.capabilities,
        "maxTokens": target.answer_tokens,
    }
    if target.context:
        model["contextWindow"] = target.context
    provider = {"baseUrl": target.url, "apiKey": target.key, "api": "ollama", "models": [model]}

    def change(text: str) -> str:
        text = jsonc.put(text, ("models", "providers", NAME), provider)
        return jsonc.put(text, ("agents", "defaults", "model", "primary"), f"{NAME}/{target.model}")

    return (Edit(path=places.home / ".openclaw" / "openclaw.json", change=change),)


# Muse Code: it has no flag for a server. Its settings can be moved with XDG_CONFIG_HOME, so it gets
# a copy of the user's, with our server and a list of models, which it does not start without. Each
# model needs the provider and the profile of its sessions.


def _muse_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    return Start(args=tuple(args), environ={"XDG_CONFIG_HOME": str(places.own / "muse")})


def _muse_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    if target.key != TOKEN:
        reason = "it cannot be given a key for this session only"
        raise ConfigError(f"cannot use Muse Code with a server that requires a key: {reason}")
    model = {
        "model_id": target.model,
        "provider_id": "meta",
        "profile_id": "tbh",
        "display_label": target.model,
        "description": f"served by {NAME}",
        "visibility": "visible",
        "display_order": 0,
        "is_default": True,
        "context_limit": target.context or ASSUMED_CONTEXT,
        "output_limit": target.answer_tokens,
    }
    settings = {
        "provider": "meta",
        "model": target.model,
        "endpoint_transport": {"base_url": f"{target.url}/v1", "auth": "none"},
        "model_catalog": [model],
    }
    users = places.config / "muse" / "settings.json"

    def change(text: str) -> str:
        if not text.strip() and users.exists():
            text = users.read_text(encoding="utf-8")
        if not text.strip():
            text = jsonc.put(text, ("schema_version",), 1)
        for name, value in settings.items():
            text = jsonc.put(text, (name,), value)
        return text

    return (Edit(path=places.own / "muse" / "muse" / "settings.json", change=change),)


MORE_AGENTS = (
    Integration(
        name="qwen",
        title="Qwen Code",
        aliases=("qwen-code",),
        commands=("qwen",),
        folders=(".local/bin", ".npm-global/bin"),
        install="npm install -g @qwen-code/qwen-code",
        start=_qwen_start,
    ),
    Integration(
        name="kimi",
        title="Kimi Code CLI",
        aliases=("kimi-code", "kimi-cli"),
        commands=("kimi",),
        folders=(".local/bin",),
        install="npm install -g @moonshot-ai/kimi-code",
        start=_kimi_start,
    ),
    Integration(
        name="cline",
        title="Cline",
        commands=("cline",),
        install="npm install -g cline",
        start=_cline_start,
        edits=_cline_edits,
        after="start it by yourself with: cline --provider ollama",
    ),
    Integration(
        name="droid",
        title="Droid",
        commands=("droid",),
        folders=(".local/bin",),
        install="npm install -g droid",
        start=_droid_start,
        edits=_droid_edits,
        after=f"only a droid that {NAME} starts reads this",
    ),
    Integration(
        name="pi",
        title="pi",
        commands=("pi",),
        install="npm install -g @earendil-works/pi-coding-agent",
        start=_pi_start,
        edits=_pi_edits,
        after=f"start it by yourself with: pi --provider {NAME}",
    ),
    Integration(
        name="pool",
        title="Pool",
        aliases=("poolside",),
        commands=("pool",),
        folders=(".local/bin",),
        install="see github.com/poolsideai/pool",
        start=_pool_start,
    ),
    Integration(
        name="openclaw",
        title="OpenClaw",
        aliases=("clawdbot", "moltbot"),
        commands=("openclaw", "clawdbot"),
        install="npm install -g openclaw",
        start=_openclaw_start,
        edits=_openclaw_edits,
        after="start it by yourself with: openclaw chat",
    ),
    Integration(
        name="muse",
        title="Muse Code",
        aliases=("muse-code",),
        commands=("muse",),
        folders=(".local/bin",),
        install="see dev.meta.ai",
        start=_muse_start,
        edits=_muse_edits,
        after=f"only a muse that {NAME} starts reads this",
    ),
)
