"""Agents with settings in YAML: Oh My Pi, Hermes, DeepSeek Harness."""

from __future__ import annotations

import json
from collections.abc import Sequence

from vllama.integrations import yaml_edit
from vllama.integrations.more_agents import make_pi_provider
from vllama.integrations.types import NAME, Edit, Integration, Places, Start, Target

# Oh My Pi: omp.sh, "Custom models": a provider of models.yml, chosen by a flag.


def _omp_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    skip = {"OMP_SKIP_SETUP": "1"}  # its first start would ask for accounts of other providers
    return Start(args=("--model", f"{NAME}/{target.model}", *args), environ=skip)


def _omp_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    base = places.home / (places.environ.get("PI_CONFIG_DIR") or ".omp")
    folder = places.named("PI_CODING_AGENT_DIR", base / "agent")
    provider = make_pi_provider(target, name=target.model)

    def change(text: str) -> str:
        return yaml_edit.put(text, ("providers", NAME), provider)

    return (Edit(path=folder / "models.yml", change=change),)


# Hermes: hermes-agent.nousresearch.com/docs, "Configuration": a provider of config.yaml. The agent
# takes it from flags; its desktop app has none, so there it becomes the default.


def _hermes_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    # without a model of its own it starts nothing but its setup, unless this variable is there
    environ = {"OPENAI_BASE_URL": f"{target.url}/v1"}
    return Start(args=("--provider", NAME, "--model", target.model, *args), environ=environ)


def _hermes_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    return (_hermes_edit(target, places, is_default=False),)


def _hermes_desktop_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    return Start(args=("desktop", *args), environ={})


def _hermes_desktop_edits(target: Target, places: Places) -> tuple[Edit, ...]:
    return (_hermes_edit(target, places, is_default=True),)


def _hermes_edit(target: Target, places: Places, *, is_default: bool) -> Edit:
    address = {"base_url": f"{target.url}/v1", "api_key": target.key}
    provider = ("providers", NAME)
    model = {"context_length": target.context} if target.context else {}

    def change(text: str) -> str:
        text = yaml_edit.put(text, (*provider, "name"), NAME)
        for key, value in address.items():
            text = yaml_edit.put(text, (*provider, key), value)
        text = yaml_edit.put(text, (*provider, "models", target.model), model)
        if is_default:
            default = {"provider": NAME, "default": target.model, **address}
            for key, value in default.items():
                text = yaml_edit.put(text, ("model", key), value)
        return text

    folder = places.named("HERMES_HOME", places.home / ".hermes")
    return Edit(path=folder / "config.yaml", change=change)


# DeepSeek Harness: the READMEs of @deepseek-ai/dsh and dsh-llm-pi-ai. `--patch` sends it to
# settings of our own for one session.

_DSH_KEY = "VLLAMA_LAUNCH_KEY"


def _dsh_start(target: Target, places: Places, args: Sequence[str]) -> Start:
    patch = places.own / "dsh" / "patch.yml"
    return Start(args=("web", "--patch", str(patch), *args), environ={_DSH_KEY: target.key})


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
        "baseURL": f"{target.url}/v1",
        "models": [model],
    }
    chosen = {"provider": NAME, "model": target.model}
    patch = json.dumps([{"id": "settings", "config": {"path": str(settings)}}]) + "\n"

    def change(text: str) -> str:
        text = yaml_edit.put(text, ("agent-default-model",), chosen)
        return yaml_edit.put(text, ("llm-pi-ai", "providers", NAME), provider)

    return (
        Edit(path=settings, change=change),
        Edit(path=folder / "patch.yml", change=lambda text: patch),  # JSON is YAML
    )


YAML_AGENTS = (
    Integration(
        name="omp",
        title="Oh My Pi",
        aliases=("oh-my-pi",),
        commands=("omp",),
        folders=(".local/bin", ".bun/bin"),
        install="see omp.sh",
        start=_omp_start,
        edits=_omp_edits,
        after="choose the model there with /model",
    ),
    Integration(
        name="hermes",
        title="Hermes Agent",
        aliases=("hermes-agent",),
        commands=("hermes",),
        folders=(".local/bin",),
        install="see hermes-agent.nousresearch.com/docs",
        start=_hermes_start,
        edits=_hermes_edits,
        after=f"start it by yourself with: hermes --provider {NAME} --model NAME",
    ),
    Integration(
        name="hermes-desktop",
        title="Hermes Desktop",
        commands=("hermes",),
        folders=(".local/bin",),
        install="see hermes-agent.nousresearch.com/docs",
        start=_hermes_desktop_start,
        edits=_hermes_desktop_edits,
        shares="hermes",
        after="every hermes uses this server now, until 'vllama launch hermes-desktop --restore'",
    ),
    Integration(
        name="dsh",
        title="DeepSeek Harness",
        aliases=("deepseek-harness",),
        commands=("dsh",),
        install="npm install -g @deepseek-ai/dsh",
        start=_dsh_start,
        edits=_dsh_edits,
        after=f"only a dsh that {NAME} starts reads this",
    ),
)
