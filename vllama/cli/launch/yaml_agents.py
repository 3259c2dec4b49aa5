"""Agents with settings in YAML: Oh My Pi, Hermes, DeepSeek Harness."""

from __future__ import annotations

import json

from vllama.cli.launch.edits import Values, put_values, write_text
from vllama.cli.launch.more_agents import make_pi_provider
from vllama.cli.launch.types import NAME, Edit, Integration, Places, Target

# Oh My Pi: omp.sh, "Custom models": a provider of models.yml, chosen by a flag.


def _omp_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    base = places.home / (places.environ.get("PI_CONFIG_DIR") or ".omp")
    folder = places.named("PI_CODING_AGENT_DIR", base / "agent")
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
    folder = places.named("HERMES_HOME", places.home / ".hermes")
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
        after="choose the model there with /model",
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
        after=f"start it by yourself with: hermes --provider {NAME} --model NAME",
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
        after="every hermes uses this server now, until 'vllama launch hermes-desktop --restore'",
    ),
    Integration(
        name="dsh",
        title="DeepSeek Harness",
        aliases=("deepseek-harness",),
        install="npm install -g @deepseek-ai/dsh",
        args=("web", "--patch", "{own}/dsh/patch.yml"),
        environ={_DSH_KEY: "{key}"},
        edits=_dsh_edits,
        after=f"only a dsh that {NAME} starts reads this",
    ),
)
