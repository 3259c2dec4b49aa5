"""Editors and desktop apps, which read their settings from files only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vllama.base.errors import ConfigError
from vllama.cli.launch.agents import codex_provider
from vllama.cli.launch.edits import Values, make_edit, put_values, with_values, write_text
from vllama.cli.launch.types import ASSUMED_CONTEXT, NAME, Edit, Integration, Places, Target

_VENDOR = "customendpoint"
_CONTEXT = 8192
"""Taken where the model's is not known: VS Code wants a number."""


# VS Code: code.visualstudio.com/docs/agent-customization/language-models, "Custom endpoint".


def _vscode_user(places: Places) -> Path:
    """Return VS Code's folder for the user's settings."""
    if places.environ.get("VSCODE_PORTABLE"):
        return places.find_named("VSCODE_PORTABLE", places.home) / "user-data" / "User"
    match places.system:
        case "darwin":
            base = places.home / "Library" / "Application Support"
        case "win32":
            base = places.find_named("APPDATA", places.home / "AppData" / "Roaming")
        case _:
            base = places.config
    return places.find_named("VSCODE_APPDATA", base) / "Code" / "User"


def _vscode_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    context = target.context or _CONTEXT
    answer = min(context // 4, 8192)
    model = {
        "id": target.model,
        "name": target.model,
        "url": f"{target.url}/v1/chat/completions",
        "toolCalling": "tools" in target.capabilities,
        "vision": "vision" in target.capabilities,
        "thinking": "thinking" in target.capabilities,
        "maxInputTokens": context - answer,
        "maxOutputTokens": answer,
    }
    group = {"name": NAME, "vendor": _VENDOR, "apiType": "chat-completions", "models": [model]}

    def change(groups: Any) -> Any:
        if not isinstance(groups, list | None):
            raise ValueError("not a list of providers")
        known = groups or []
        at = _index(known, {"name": NAME, "vendor": _VENDOR})
        ours = known[at] if at < len(known) else {}
        models = ours.get("models")
        if not isinstance(models, list):
            return _put(known, at, group)
        models = _put(models, _index(models, {"id": target.model}), model)
        return _put(known, at, {**ours, "models": models})

    return (make_edit(_vscode_user(places) / "chatLanguageModels.json", change),)


def _index(entries: list[Any], wanted: dict[str, object]) -> int:
    """Return the place of the entry with these values, or that behind the last."""
    for at, entry in enumerate(entries):
        if isinstance(entry, dict) and wanted.items() <= entry.items():
            return at
    return len(entries)


def _put(entries: list[Any], at: int, entry: object) -> list[Any]:
    return [*entries[:at], entry, *entries[at + 1 :]]


# Zed: zed.dev/docs/ai/use-a-local-model. It finds the models by itself.


def _zed_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    folder = places.home / ".config" if places.system == "darwin" else places.config
    values: Values = {("language_models", "ollama", "api_url"): target.url}
    return (put_values(folder / "zed" / "settings.json", values),)


# ChatGPT: it shares config.toml with the Codex CLI, developers.openai.com/codex/config-reference.
# Its model picker shows the models of `model_catalog_json` only.


def _chatgpt_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    folder = places.find_named("CODEX_HOME", places.home / ".codex")
    catalog = folder / f"{NAME}-models.json"
    values = {**codex_provider(target), ("model_catalog_json",): str(catalog)}
    models = json.dumps({"models": [_codex_model(target, folder)]}, indent=2) + "\n"
    return (write_text(catalog, models), put_values(folder / "config.toml", values))


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
            f"cannot use '{target.model}' with Claude Desktop: it accepts only model names "
            "like Anthropic's",
            hint=f"copy it to such a name: 'vllama cp {target.model} claude-local', then --model "
            "claude-local",
        )
    support = places.home / "Library" / "Application Support"
    library = support / "Claude-3p" / "configLibrary"
    profile: Values = {
        ("inferenceProvider",): "gateway",
        ("inferenceGatewayBaseUrl",): target.url,
        ("inferenceGatewayApiKey",): target.key,
        ("inferenceGatewayAuthScheme",): "bearer",
        ("inferenceModels",): [{"name": target.model}],
        ("deploymentDisplayName",): NAME,
        ("chatTabEnabled",): True,
    }

    entry = {"id": _CLAUDE_PROFILE, "name": NAME}

    def apply_profile(document: Any) -> Any:
        applied = with_values(document, {("appliedId",): _CLAUDE_PROFILE})
        entries = applied.get("entries", [])
        return {**applied, "entries": entries if entry in entries else [*entries, entry]}

    return (
        put_values(library / f"{_CLAUDE_PROFILE}.json", profile),
        make_edit(library / "_meta.json", apply_profile),
        *(
            put_values(support / name / "claude_desktop_config.json", {("deploymentMode",): "3p"})
            for name in ("Claude-3p", "Claude")
        ),
    )


APPS = (
    Integration(
        name="vscode",
        title="Visual Studio Code",
        aliases=("code",),
        commands=("code",),
        install="see code.visualstudio.com/download",
        edits=_vscode_edits,
        refuses_key="it accepts keys only in its own dialog",
        after=f"choose the model in the chat's model picker, under {NAME}",
    ),
    Integration(
        name="zed",
        title="Zed",
        commands=("zed", "zeditor", "zedit"),
        folders=(".local/bin",),
        install="see zed.dev/download",
        edits=_zed_edits,
        key_variable="OLLAMA_API_KEY",
        after="choose the model in the agent panel, under Ollama",
    ),
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
