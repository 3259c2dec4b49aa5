"""Desktop apps that read their settings when they start: ChatGPT with Codex, Claude."""

from __future__ import annotations

import json
from pathlib import Path

from vllama.errors import ConfigError
from vllama.integrations import jsonc, toml_edit
from vllama.integrations.agents import codex_provider
from vllama.integrations.types import (
    ASSUMED_CONTEXT,
    NAME,
    Edit,
    Integration,
    Places,
    Target,
)

# ChatGPT: it shares config.toml with the Codex CLI, developers.openai.com/codex/config-reference.
# Its model picker shows the models of `model_catalog_json` only.


def _chatgpt_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    folder = places.named("CODEX_HOME", places.home / ".codex")
    catalog = folder / f"{NAME}-models.json"
    values = {
        "model": target.model,
        "model_provider": NAME,
        "model_catalog_json": str(catalog),
        **codex_provider(target),
    }
    models = json.dumps({"models": [_codex_model(target, folder)]}, indent=2) + "\n"
    return (
        Edit(path=catalog, change=lambda text: models),
        Edit(path=folder / "config.toml", change=lambda text: toml_edit.put(text, values)),
    )


def _codex_model(target: Target, folder: Path) -> dict[str, object]:
    """Describe the model with the fields that Codex 0.169 requires, and its context."""
    return {
        "slug": target.model,
        "display_name": target.model,
        "context_window": target.context or ASSUMED_CONTEXT,
        "input_modalities": target.inputs,
        "base_instructions": _codex_instructions(folder),
        "supported_reasoning_levels": [],
        "shell_type": "default",
        "visibility": "list",
        "supported_in_api": True,
        "priority": 0,
        "support_verbosity": False,
        "truncation_policy": {"mode": "bytes", "limit": 10_000},
        "experimental_supported_tools": [],
    }


def _codex_instructions(folder: Path) -> str:
    """Return the system prompt of a model that Codex knows, else a short one."""
    try:
        known = json.loads((folder / "models_cache.json").read_text(encoding="utf-8"))["models"]
        return next(str(text) for model in known if (text := model["base_instructions"]))
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return "You are Codex, a coding agent. You share a workspace with the user."


# Claude Desktop: claude.com/docs/cowork/3p/configuration and /gateway. A profile lies in its
# library of configurations; `deploymentMode` says that one is to be used.

_CLAUDE_PROFILE = "76c1a3a6-0000-4000-8000-766c6c616d61"
_CLAUDE_NAMES = ("claude", "anthropic")


def _claude_desktop_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    if not any(name in target.model.lower() for name in _CLAUDE_NAMES):
        raise ConfigError(
            f"cannot use '{target.model}' with Claude Desktop: it only offers models with names "
            "like those of Anthropic's",
            hint=f"give it another name: 'vllama cp {target.model} claude-local', "
            "then --model claude-local",
        )
    support = places.home / "Library" / "Application Support"
    library = support / "Claude-3p" / "configLibrary"
    profile = {
        "inferenceProvider": "gateway",
        "inferenceGatewayBaseUrl": target.url,
        "inferenceGatewayApiKey": target.key,
        "inferenceGatewayAuthScheme": "bearer",
        "inferenceModels": [{"name": target.model}],
        "deploymentDisplayName": NAME,
        "chatTabEnabled": True,
    }

    def write_profile(text: str) -> str:
        for key, value in profile.items():
            text = jsonc.put(text, (key,), value)
        return text

    def apply_profile(text: str) -> str:
        library = jsonc.load(text) if text.strip() else {}
        entries = library.get("entries", []) if isinstance(library, dict) else []
        entry = {"id": _CLAUDE_PROFILE, "name": NAME}
        if entry not in entries:
            text = jsonc.put(text, ("entries", len(entries)), entry)
        return jsonc.put(text, ("appliedId",), _CLAUDE_PROFILE)

    def set_mode(text: str) -> str:
        return jsonc.put(text, ("deploymentMode",), "3p")

    return (
        Edit(path=library / f"{_CLAUDE_PROFILE}.json", change=write_profile),
        Edit(path=library / "_meta.json", change=apply_profile),
        *(
            Edit(path=support / name / "claude_desktop_config.json", change=set_mode)
            for name in ("Claude-3p", "Claude")
        ),
    )


DESKTOP_APPS = (
    Integration(
        name="chatgpt",
        title="ChatGPT",
        aliases=("codex-app", "codex-desktop", "codex-gui"),
        apps=("ChatGPT.app", "Codex.app"),
        systems=("darwin",),
        install="see chatgpt.com/download",
        edits=_chatgpt_edits,
        after="quit and open ChatGPT if it is running; codex in the terminal uses this server too",
    ),
    Integration(
        name="claude-desktop",
        title="Claude Desktop",
        aliases=("claude-app",),
        apps=("Claude.app",),
        systems=("darwin",),
        install="see claude.com/download",
        edits=_claude_desktop_edits,
        after="quit and open Claude if it is running",
    ),
)
