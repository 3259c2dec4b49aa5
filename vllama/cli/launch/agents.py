"""Coding agents of the terminal; the YAML ones are Oh My Pi, Hermes and DeepSeek Harness."""

from __future__ import annotations

import json

from vllama.cli.launch.edits import Values, put_values, with_values, write_text
from vllama.cli.launch.more_agents import make_pi_provider
from vllama.cli.launch.types import NAME, Edit, Integration, Places, Target

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


def _claude_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    path = places.find_named("CLAUDE_CONFIG_DIR", places.home / ".claude") / "settings.json"
    variables = _claude_variables(target)
    return (put_values(path, {("env", name): value for name, value in variables.items()}),)


# Codex: developers.openai.com/codex/config-advanced. A profile is a file of its own since 0.134.


def _codex_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    folder = places.find_named("CODEX_HOME", places.home / ".codex")
    values = codex_provider(target)
    if target.context:
        values["model_context_window",] = target.context
    return (put_values(folder / f"{NAME}.config.toml", values),)


def codex_provider(target: Target) -> dict[tuple[str, ...], object]:
    """Return the values that make Codex use the server."""
    provider = {"name": NAME, "base_url": target.openai_url, "wire_api": "responses"}
    if target.has_key:
        provider["experimental_bearer_token"] = target.key
    return {
        ("model",): target.model,
        ("model_provider",): NAME,
        **{("model_providers", NAME, key): value for key, value in provider.items()},
    }


# opencode: opencode.ai/docs/config and /providers. Its files are merged; the variable wins.


def _opencode_variables(target: Target) -> dict[str, str]:
    config = {"model": f"{NAME}/{target.model}"}
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(with_values(config, _opencode_values(target)))}


def _opencode_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    folder = places.find_named("OPENCODE_CONFIG_DIR", places.config / "opencode")
    commented = folder / "opencode.jsonc"
    usual = commented if commented.exists() else folder / "opencode.json"
    schema: Values = {("$schema",): "https://opencode.ai/config.json"}
    path = places.find_named("OPENCODE_CONFIG", usual)
    return (put_values(path, _opencode_values(target), new=schema),)


def _opencode_values(target: Target) -> Values:
    provider = ("provider", NAME)
    model: dict[str, object] = {"name": target.model}
    if target.context:
        model["limit"] = {"context": target.context, "output": target.answer_tokens}
    if "vision" in target.capabilities:
        model["modalities"] = {"input": target.inputs, "output": ["text"]}
    values: dict[tuple[str, ...], object] = {
        (*provider, "npm"): "@ai-sdk/openai-compatible",
        (*provider, "name"): NAME,
        (*provider, "options", "baseURL"): target.openai_url,
    }
    if target.has_key:
        values[*provider, "options", "apiKey"] = target.key
    values[*provider, "models", target.model] = model
    return values


# goose: its guide "Environment variables". Its provider for Ollama shows no key.


def _goose_variables(target: Target) -> dict[str, str]:
    variables = {
        "GOOSE_PROVIDER": "openai" if target.has_key else "ollama",
        "GOOSE_MODEL": target.model,
        "OLLAMA_HOST": target.url,
    }
    if target.has_key:
        variables["OPENAI_HOST"] = target.url
        variables["OPENAI_BASE_PATH"] = "v1/chat/completions"
        variables["OPENAI_API_KEY"] = target.key
    return variables


AGENTS = (
    Integration(
        name="claude",
        title="Claude Code",
        aliases=("claude-code",),
        folders=(".local/bin", ".claude/local"),
        install="npm install -g @anthropic-ai/claude-code",
        args=("--settings", '{{"env": {variables}}}', "--model", "{model}"),
        variables=_claude_variables,
        edits=_claude_edits,
        overrides=True,
        after="all claude sessions use this server until 'vllama launch claude --restore'",
    ),
    Integration(
        name="codex",
        title="Codex",
        install="npm install -g @openai/codex",
        args=("--profile", NAME, "--model", "{model}"),
        edits=_codex_edits,
        after=f"to start it yourself: codex --profile {NAME}",
    ),
    Integration(
        name="opencode",
        title="opencode",
        folders=(".opencode/bin",),
        install="npm install -g opencode-ai",
        variables=_opencode_variables,
        edits=_opencode_edits,
        after="choose the model with /models",
    ),
    Integration(  # docs.github.com, "Using your own LLM models in GitHub Copilot CLI"
        name="copilot",
        title="GitHub Copilot CLI",
        aliases=("copilot-cli",),
        folders=(".local/bin",),
        install="npm install -g @github/copilot",
        environ={
            "COPILOT_PROVIDER_BASE_URL": "{url}/v1",
            "COPILOT_PROVIDER_API_KEY": "{key}",
            "COPILOT_PROVIDER_WIRE_API": "responses",
            "COPILOT_MODEL": "{model}",
        },
    ),
    Integration(
        name="goose",
        title="goose",
        aliases=("goose-cli",),
        folders=(".local/bin",),
        install="see block.github.io/goose",
        variables=_goose_variables,
        default_args=("session",),
    ),
    Integration(  # aider.chat/docs/llms/ollama.html; variables: /docs/config/options.html
        name="aider",
        title="aider",
        folders=(".local/bin",),
        install="pip install aider-install, then aider-install",
        key_variable="OLLAMA_API_KEY",
        environ={"OLLAMA_API_BASE": "{url}", "AIDER_MODEL": "ollama_chat/{model}"},
    ),
)


# Oh My Pi: omp.sh, "Custom models": a provider of models.yml, chosen by a flag.


def _omp_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    base = places.home / (places.environ.get("PI_CONFIG_DIR") or ".omp")
    folder = places.find_named("PI_CODING_AGENT_DIR", base / "agent")
    provider = make_pi_provider(target, name=target.model)
    return (put_values(folder / "models.yml", {("providers", NAME): provider}),)


# Hermes: hermes-agent.nousresearch.com/docs, "Configuration": a provider of config.yaml. The agent
# takes it from flags; its desktop app has none, so there it becomes the default.


def _hermes_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    return (_hermes_edit(target, places, {}),)


def _hermes_desktop_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    default = {"provider": NAME, "default": target.model, **_hermes_address(target)}
    return (_hermes_edit(target, places, default),)


def _hermes_address(target: Target) -> dict[str, str]:
    return {"base_url": target.openai_url, "api_key": target.key}


def _hermes_edit(target: Target, places: Places, default: dict[str, str]) -> Edit:
    provider = {"name": NAME, **_hermes_address(target)}
    model = {"context_length": target.context} if target.context else {}
    values: Values = {
        **{("providers", NAME, key): value for key, value in provider.items()},
        ("providers", NAME, "models", target.model): model,
        **{("model", key): value for key, value in default.items()},
    }
    folder = places.find_named("HERMES_HOME", places.home / ".hermes")
    return put_values(folder / "config.yaml", values)


# DeepSeek Harness: the READMEs of @deepseek-ai/dsh and dsh-llm-pi-ai. `--patch` sends it to
# settings of our own for one session.

_DSH_KEY = "VLLAMA_LAUNCH_KEY"


def _dsh_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    folder = places.own / "dsh"
    settings = folder / "settings.yaml"
    model: dict[str, object] = {
        "id": target.model,
        "name": target.model,
        "input": target.inputs,
        "maxTokens": target.answer_tokens,
    }
    if target.context:
        model["contextWindow"] = target.context
    provider = {
        "displayName": NAME,
        "apiKeyEnv": _DSH_KEY,
        "api": "openai-completions",
        "baseURL": target.openai_url,
        "models": [model],
    }
    values = {
        ("agent-default-model",): {"provider": NAME, "model": target.model},
        ("llm-pi-ai", "providers", NAME): provider,
    }
    patch = json.dumps([{"id": "settings", "config": {"path": str(settings)}}]) + "\n"
    return (put_values(settings, values), write_text(folder / "patch.yml", patch))  # JSON is YAML


YAML_AGENTS = (
    Integration(
        name="omp",
        title="Oh My Pi",
        aliases=("oh-my-pi",),
        folders=(".local/bin", ".bun/bin"),
        install="see omp.sh",
        args=("--model", f"{NAME}/{{model}}"),
        environ={"OMP_SKIP_SETUP": "1"},  # its first start would ask for accounts of others
        edits=_omp_edits,
        after="choose the model with /model",
    ),
    Integration(
        name="hermes",
        title="Hermes Agent",
        aliases=("hermes-agent",),
        folders=(".local/bin",),
        install="see hermes-agent.nousresearch.com/docs",
        args=("--provider", NAME, "--model", "{model}"),
        # without a model of its own it starts nothing but its setup, unless this variable is there
        environ={"OPENAI_BASE_URL": "{url}/v1"},
        edits=_hermes_edits,
        after=f"to start it yourself: hermes --provider {NAME} --model NAME",
    ),
    Integration(
        name="hermes-desktop",
        title="Hermes Desktop",
        commands=("hermes",),
        folders=(".local/bin",),
        install="see hermes-agent.nousresearch.com/docs",
        args=("desktop",),
        edits=_hermes_desktop_edits,
        shares="hermes",
        after="all hermes sessions use this server until 'vllama launch hermes-desktop --restore'",
    ),
    Integration(
        name="dsh",
        title="DeepSeek Harness",
        aliases=("deepseek-harness",),
        install="npm install -g @deepseek-ai/dsh",
        args=("web", "--patch", "{own}/dsh/patch.yml"),
        environ={_DSH_KEY: "{key}"},
        edits=_dsh_edits,
        after=f"only a dsh started by {NAME} uses these settings",
    ),
)
