"""Editors: VS Code and Zed. They read their settings from files only."""

from __future__ import annotations

from pathlib import Path

from vllama.cli.launch import jsonc
from vllama.cli.launch.edits import Values, put_values
from vllama.cli.launch.types import NAME, Edit, Integration, Places, Target

_VENDOR = "customendpoint"
_CONTEXT = 8192
"""Taken where the model's is not known: VS Code wants a number."""


# VS Code: code.visualstudio.com/docs/agent-customization/language-models, "Custom endpoint".


def _vscode_user(places: Places) -> Path:
    """Return VS Code's folder for the user's settings."""
    if places.environ.get("VSCODE_PORTABLE"):
        return places.named("VSCODE_PORTABLE", places.home) / "user-data" / "User"
    match places.system:
        case "darwin":
            base = places.home / "Library" / "Application Support"
        case "win32":
            base = places.named("APPDATA", places.home / "AppData" / "Roaming")
        case _:
            base = places.config
    return places.named("VSCODE_APPDATA", base) / "Code" / "User"


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

    def change(text: str) -> str:
        groups = jsonc.load(text) if text.strip() else []
        if not isinstance(groups, list):
            raise ValueError("it is no list of providers")
        at = _index(groups, {"name": NAME, "vendor": _VENDOR})
        if at == len(groups) or not isinstance(groups[at].get("models"), list):
            return jsonc.put(text, (at,), group)
        models = groups[at]["models"]
        return jsonc.put(text, (at, "models", _index(models, {"id": target.model})), model)

    return (Edit(path=_vscode_user(places) / "chatLanguageModels.json", change=change),)


def _index(entries: list[object], wanted: dict[str, object]) -> int:
    """Return the place of the entry with these values, or that behind the last."""
    for at, entry in enumerate(entries):
        if isinstance(entry, dict) and wanted.items() <= entry.items():
            return at
    return len(entries)


# Zed: zed.dev/docs/ai/use-a-local-model. It finds the models by itself.


def _zed_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    folder = places.home / ".config" if places.system == "darwin" else places.config
    values: Values = {("language_models", "ollama", "api_url"): target.url}
    return (put_values(folder / "zed" / "settings.json", values),)


EDITORS = (
    Integration(
        name="vscode",
        title="Visual Studio Code",
        aliases=("code",),
        commands=("code",),
        install="see code.visualstudio.com/download",
        edits=_vscode_edits,
        refuses_key="it takes keys in its own dialog only",
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
)
