"""Coding agents of the terminal: Claude Code, Codex, Copilot CLI, opencode, goose, aider."""

from __future__ import annotations

import json
from collections.abc import Sequence

from vllama.integrations import jsonc, toml_edit
from vllama.integrations.types import NAME, TOKEN, Edit, Integration, Places, Start, Target

_CLAUDE_TIERS = ("OPUS", "SONNET", "HAIKU")


# Claude Code: code.claude.com/docs/en/settings and /llm-gateway. Its settings file wins over the
# variables of the shell, `--settings` wins over the file.


def _claude_variables(target: Target) -> dict[str, str]:
    limits = {}
    if target.context:
        # it assumes 200,000 tokens for a model that it does not know, and would compact too late
        limits["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(target.context)
        limits["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(target.answer_tokens)
    return {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key,
        "ANTHROPIC_API_KEY": "",  # a key of the user's is not for this server
        "ANTHROPIC_MODEL": target.model,
        **{f"ANTHROPIC_DEFAULT_{tier}_MODEL": target.model for tier in _CLAUDE_TIERS},
        "CLAUDE_CODE_SUBAGENT_MODEL": target.model,
        # a header that changes with every request would end up at the head of the prompt and
        # make the engine read all of it again
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        **limits,
    }


def _claude_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    variables = _claude_variables(target)
    settings = ("--settings", json.dumps({"env": variables}), "--model", target.model)
    return Start(args=(*settings, *args), environ=variables)


def _claude_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    path = places.named("CLAUDE_CONFIG_DIR", places.home / ".claude") / "settings.json"

    def change(text: str) -> str:
        for name, value in _claude_variables(target).items():
            text = jsonc.put(text, ("env", name), value)
        return text

    return (Edit(path=path, change=change),)


# Codex: developers.openai.com/codex/config-advanced. A profile is a file of its own since 0.134.


def _codex_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    return Start(args=("--profile", NAME, "--model", target.model, *args), environ={})


def _codex_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    folder = places.named("CODEX_HOME", places.home / ".codex")
    values: dict[str, object] = {"model": target.model, "model_provider": NAME}
    if target.context:
        values["model_context_window"] = target.context

    def change(text: str) -> str:
        return toml_edit.put(text, values | codex_provider(target))

    return (Edit(path=folder / f"{NAME}.config.toml", change=change),)


def codex_provider(target: Target) -> dict[str, object]:
    """Describe the server to Codex."""
    provider = {"name": NAME, "base_url": f"{target.url}/v1", "wire_api": "responses"}
    if target.key != TOKEN:
        provider["experimental_bearer_token"] = target.key
    return {"model_providers": {NAME: provider}}


# opencode: opencode.ai/docs/config and /providers. Its files are merged; the variable wins.


def _opencode_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    chosen = json.dumps({"model": f"{NAME}/{target.model}"})
    return Start(args=tuple(args), environ={"OPENCODE_CONFIG_CONTENT": chosen})


def _opencode_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    folder = places.named("OPENCODE_CONFIG_DIR", places.config / "opencode")
    commented = folder / "opencode.jsonc"
    usual = commented if commented.exists() else folder / "opencode.json"
    provider = ("provider", NAME)
    model: dict[str, object] = {"name": target.model}
    if target.context:
        model["limit"] = {"context": target.context, "output": target.answer_tokens}
    if "vision" in target.capabilities:
        model["modalities"] = {"input": target.inputs, "output": ["text"]}

    def change(text: str) -> str:
        if not text.strip():
            text = jsonc.put(text, ("$schema",), "https://opencode.ai/config.json")
        text = jsonc.put(text, (*provider, "npm"), "@ai-sdk/openai-compatible")
        text = jsonc.put(text, (*provider, "name"), NAME)
        text = jsonc.put(text, (*provider, "options", "baseURL"), f"{target.url}/v1")
        return jsonc.put(text, (*provider, "models", target.model), model)

    return (Edit(path=places.named("OPENCODE_CONFIG", usual), change=change),)


# Copilot CLI: docs.github.com, "Using your own LLM models in GitHub Copilot CLI".


def _copilot_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    variables = {
        "COPILOT_PROVIDER_BASE_URL": f"{target.url}/v1",
        "COPILOT_PROVIDER_API_KEY": target.key,
        "COPILOT_PROVIDER_WIRE_API": "responses",
        "COPILOT_MODEL": target.model,
    }
    return Start(args=tuple(args), environ=variables)


# goose: its guide "Environment variables".


def _goose_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    variables = {
        "GOOSE_PROVIDER": "ollama",
        "GOOSE_MODEL": target.model,
        "OLLAMA_HOST": target.url,
    }
    return Start(args=tuple(args or ("session",)), environ=variables)


# aider: aider.chat/docs/llms/ollama.html; a variable for each option: /docs/config/options.html.


def _aider_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    variables = {"OLLAMA_API_BASE": target.url, "AIDER_MODEL": f"ollama_chat/{target.model}"}
    return Start(args=tuple(args), environ=variables)


AGENTS = (
    Integration(
        name="claude",
        title="Claude Code",
        aliases=("claude-code",),
        commands=("claude",),
        folders=(".local/bin", ".claude/local"),
        install="npm install -g @anthropic-ai/claude-code",
        start=_claude_start,
        edits=_claude_edits,
        overrides=True,
        after="every claude uses this server now, until 'vllama launch claude --restore'",
    ),
    Integration(
        name="codex",
        title="Codex",
        commands=("codex",),
        install="npm install -g @openai/codex",
        start=_codex_start,
        edits=_codex_edits,
        after=f"start it by yourself with: codex --profile {NAME}",
    ),
    Integration(
        name="opencode",
        title="opencode",
        commands=("opencode",),
        folders=(".opencode/bin",),
        install="npm install -g opencode-ai",
        start=_opencode_start,
        edits=_opencode_edits,
        after="choose the model there with /models",
    ),
    Integration(
        name="copilot",
        title="GitHub Copilot CLI",
        aliases=("copilot-cli",),
        commands=("copilot",),
        folders=(".local/bin",),
        install="npm install -g @github/copilot",
        start=_copilot_start,
    ),
    Integration(
        name="goose",
        title="goose",
        aliases=("goose-cli",),
        commands=("goose",),
        folders=(".local/bin",),
        install="see block.github.io/goose",
        start=_goose_start,
    ),
    Integration(
        name="aider",
        title="aider",
        commands=("aider",),
        folders=(".local/bin",),
        install="pip install aider-install, then aider-install",
        start=_aider_start,
    ),
)
