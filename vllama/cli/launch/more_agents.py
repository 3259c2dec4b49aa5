"""More coding agents of the terminal: Qwen Code, Kimi, Pool, Droid, pi, Cline, OpenClaw, Muse."""

from __future__ import annotations

from typing import Any

from vllama.cli.launch.edits import Values, load_json, make_edit, put_values, with_values
from vllama.cli.launch.types import ASSUMED_CONTEXT, NAME, Edit, Integration, Places, Target

# Kimi Code: moonshotai.github.io/kimi-code, "Environment variables": a model for one session. Its
# predecessor, kimi-cli of PyPI, only says that it is no longer maintained.


def _kimi_variables(target: Target) -> dict[str, str]:
    extra = {"vision": "image_in", "thinking": "thinking"}
    known = ("tool_use", *(extra[name] for name in extra if name in target.capabilities))
    return {
        "KIMI_MODEL_NAME": target.model,
        "KIMI_MODEL_PROVIDER_TYPE": "openai",
        "KIMI_MODEL_BASE_URL": target.openai_url,
        "KIMI_MODEL_API_KEY": target.key,
        "KIMI_MODEL_CAPABILITIES": ",".join(known),
        "KIMI_MODEL_MAX_CONTEXT_SIZE": str(target.context or ASSUMED_CONTEXT),
        "KIMI_MODEL_MAX_OUTPUT_SIZE": str(target.answer_tokens),
    }


# Droid: docs.factory.ai/cli/byok/overview, and its --help: `--settings` merges a file with the
# user's settings for one session. Without a chosen model it asks for an account.

_DROID_MODEL = f"custom:{NAME}"


def _droid_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    model = {
        "id": _DROID_MODEL,
        "model": target.model,
        "displayName": f"{target.model} ({NAME})",
        "baseUrl": target.openai_url,
        "apiKey": target.key,
        "provider": "generic-chat-completion-api",
        "maxOutputTokens": target.answer_tokens,
        "supportsImages": "vision" in target.capabilities,
    }
    values = {
        ("customModels",): [model],
        ("sessionDefaultSettings", "model"): _DROID_MODEL,
    }
    return (put_values(places.own / "droid" / "settings.json", values),)


# pi: its guide "Custom models": a provider of models.json, chosen by flags.


def make_pi_provider(target: Target, **more: object) -> dict[str, object]:
    """Return the provider of pi and of its descendants; `more` are fields of the model."""
    return {
        "baseUrl": target.openai_url,
        "api": "openai-completions",
        "apiKey": target.key,
        "models": [_make_pi_model(target, **more)],
    }


def _make_pi_model(target: Target, **more: object) -> dict[str, object]:
    model: dict[str, object] = {
        "id": target.model,
        **more,
        "input": target.inputs,
        "reasoning": "thinking" in target.capabilities,
        "maxTokens": target.answer_tokens,
    }
    return model | ({"contextWindow": target.context} if target.context else {})


def _pi_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    folder = places.find_named("PI_CODING_AGENT_DIR", places.home / ".pi" / "agent")
    return (put_values(folder / "models.json", {("providers", NAME): make_pi_provider(target)}),)


# Cline: `cline --help`, and providers.json as `cline auth` writes it. It leaves out a provider
# without the time of its last change.


def _cline_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    settings = {"provider": "ollama", "model": target.model, "baseUrl": target.openai_url}
    provider = ("providers", "ollama")
    values: Values = {(*provider, "settings"): settings, (*provider, "tokenSource"): "manual"}

    def change(document: Any) -> Any:
        document = with_values(document, values, new={("version",): 1})
        changed = document["providers"]["ollama"].get("updatedAt", "1970-01-01T00:00:00.000Z")
        return with_values(document, {(*provider, "updatedAt"): changed})

    path = places.home / ".cline" / "data" / "settings" / "providers.json"
    return (make_edit(path, change),)


# OpenClaw: docs.openclaw.ai/providers/ollama; its gateway reads the file again by itself. `chat`
# needs no gateway; `tui` does, which a new user has not set up.


def _openclaw_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    model = _make_pi_model(target, name=target.model)
    provider = {"baseUrl": target.url, "apiKey": target.key, "api": "ollama", "models": [model]}
    values = {
        ("models", "providers", NAME): provider,
        ("agents", "defaults", "model", "primary"): f"{NAME}/{target.model}",
    }
    return (put_values(places.home / ".openclaw" / "openclaw.json", values),)


# Muse Code: it has no flag for a server. Its settings can be moved with XDG_CONFIG_HOME, so it gets
# a copy of the user's, with our server and a list of models, which it does not start without. Each
# model needs the provider and the profile of its sessions.


def _muse_edits(target: Target, places: Places) -> tuple[Edit, ...]:
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
    settings: Values = {
        ("provider",): "meta",
        ("model",): target.model,
        ("endpoint_transport",): {"base_url": target.openai_url, "auth": "none"},
        ("model_catalog",): [model],
    }
    users = places.config / "muse" / "settings.json"
    ours = places.own / "muse" / "muse" / "settings.json"

    def change(document: Any) -> Any:
        if document is None and users.exists():
            document = load_json(users.read_text(encoding="utf-8"))
        return with_values(document, settings, new={("schema_version",): 1})

    return (make_edit(ours, change),)


MORE_AGENTS = (
    Integration(  # qwenlm.github.io/qwen-code-docs, "Authentication": OpenAI-compatible API
        name="qwen",
        title="Qwen Code",
        aliases=("qwen-code",),
        folders=(".local/bin", ".npm-global/bin"),
        install="npm install -g @qwen-code/qwen-code",
        args=("--auth-type", "openai", "--model", "{model}"),
        environ={
            "OPENAI_BASE_URL": "{url}/v1",
            "OPENAI_API_KEY": "{key}",
            "OPENAI_MODEL": "{model}",
        },
    ),
    Integration(
        name="kimi",
        title="Kimi Code CLI",
        aliases=("kimi-code", "kimi-cli"),
        folders=(".local/bin",),
        install="npm install -g @moonshot-ai/kimi-code",
        variables=_kimi_variables,
    ),
    Integration(
        name="cline",
        title="Cline",
        install="npm install -g cline",
        args=("--provider", "ollama", "--model", "{model}"),
        edits=_cline_edits,
        key_variable="OLLAMA_API_KEY",
        after="to start it yourself: cline --provider ollama",
    ),
    Integration(
        name="droid",
        title="Droid",
        folders=(".local/bin",),
        install="npm install -g droid",
        args=("--settings", "{own}/droid/settings.json"),
        edits=_droid_edits,
        after=f"only a droid started by {NAME} uses these settings",
    ),
    Integration(
        name="pi",
        title="pi",
        install="npm install -g @earendil-works/pi-coding-agent",
        args=("--provider", NAME, "--model", "{model}"),
        edits=_pi_edits,
        after=f"to start it yourself: pi --provider {NAME}",
    ),
    Integration(  # github.com/poolsideai/pool
        name="pool",
        title="Pool",
        aliases=("poolside",),
        folders=(".local/bin",),
        install="see github.com/poolsideai/pool",
        args=("-m", "{model}"),
        environ={"POOLSIDE_STANDALONE_BASE_URL": "{url}/v1", "POOLSIDE_API_KEY": "{key}"},
    ),
    Integration(
        name="openclaw",
        title="OpenClaw",
        aliases=("clawdbot", "moltbot"),
        commands=("openclaw", "clawdbot"),
        install="npm install -g openclaw",
        default_args=("chat",),
        edits=_openclaw_edits,
        after="to start it yourself: openclaw chat",
    ),
    Integration(
        name="muse",
        title="Muse Code",
        aliases=("muse-code",),
        folders=(".local/bin",),
        install="see dev.meta.ai",
        environ={"XDG_CONFIG_HOME": "{own}/muse"},
        edits=_muse_edits,
        refuses_key="it does not support a key for only one session",
        after=f"only a muse started by {NAME} uses these settings",
    ),
)
