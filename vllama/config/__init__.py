"""All settings of vllama: each declared once, read by one loader into one immutable `Config`.

The only reader of `os.environ`. Rooms above this one are given the `Config`, or the group of it
that they need (`EngineSettings` in plans); `models_settings` is for the room below.
Ollama's variables keep Ollama's manners (a boolean that cannot be read counts as true, another
wrong value is noted and left out); flags, `VLLAMA_*` and the config file are strict.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from vllama.base.folders import (
    OLLAMA_SERVICE_DIR,
    default_lmstudio_dirs,
    default_models_dir,
    keys_file,
)
from vllama.base.setting import Setting
from vllama.config.load import default_file, find_config_file, load
from vllama.config.settings import BY_FIELD, SETTINGS, Config

if TYPE_CHECKING:
    from vllama.models.settings import ModelsSettings, UpstreamSettings

ANSWERING = (
    "engine", "context_length", "max_tokens", "gpu_layers", "threads", "num_parallel", "replicas",
    "go_template", "flash_attention", "kv_cache_type", "inspect", "engine_args",
)  # fmt: skip
"""Settings that may change what a model answers; none of them is a secret."""

__all__ = [
    "SETTINGS",
    "Config",
    "Setting",
    "choose_collector",
    "default_file",
    "describe_answering",
    "environ",
    "find_config_file",
    "keys_file",
    "list_upstreams",
    "load",
    "models_settings",
    "prepare_environment",
    "read_node_key",
]


def environ() -> dict[str, str]:
    """Return a copy of this process's environment, with a HOME: a uid without a name gets /."""
    if not os.environ.get("HOME"):
        os.environ.pop("HOME", None)
        found = os.path.expanduser("~")  # noqa: PTH111 - Path.home raises
        os.environ["HOME"] = "/" if found == "~" else found  # as in Docker
    return dict(os.environ)


def prepare_environment() -> None:
    """Silence the hub library's telemetry and bars; to be called before its first import."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"


def models_settings(config: Config) -> ModelsSettings:
    """Build the slice of `models`."""
    from vllama.models.settings import ModelsSettings, ModelTables

    usual, lmstudio = config.models_dir == default_models_dir(), config.lmstudio_dir
    same = [each.name for each in fields(ModelsSettings) if each.name in BY_FIELD]
    return ModelsSettings(
        **{name: getattr(config, name) for name in same}
        | {
            "upstreams": list_upstreams(config),
            "aliases": dict(config.aliases),
            "tables": ModelTables(config.models),
            "ollama_dirs": (config.models_dir, *((OLLAMA_SERVICE_DIR,) if usual else ())),
            "lmstudio_dirs": (lmstudio,) if lmstudio else default_lmstudio_dirs(),
        }
    )


def read_node_key(config: Config) -> str | None:
    """Return the key between the servers of a cluster. Raises ConfigError."""
    from vllama.config.secrets import read_keys

    return read_keys(config.node_key_file)[0] if config.node_key_file else None


def list_upstreams(config: Config) -> tuple[UpstreamSettings, ...]:
    """Return the servers that somebody else runs: those in the settings, and those in fallbacks."""
    from vllama.models.settings import ModelTables, UpstreamSettings, find_root

    given = tuple(
        each if each.name or each.key else replace(each, key=config.upstream_key)
        for each in config.upstreams
    )
    known = {each.root for each in given}
    links = ModelTables(config.models).list_links()
    roots = dict.fromkeys(find_root(link.partition("#")[0]) for link in links if "://" in link)
    spare = (UpstreamSettings(url=root, is_listed=False) for root in roots if root not in known)
    return tuple(
        replace(each, linked=frozenset(model for link in links if (model := each.match(link))))
        for each in (*given, *spare)
    )


def describe_answering(config: Config) -> dict[str, str]:
    """Return those settings that were given and may change answers, by key, as text."""
    return {
        setting.key: setting.kind.text(getattr(config, setting.field))
        for setting in SETTINGS
        if setting.field in ANSWERING and setting.field in config.sources
    }


def choose_collector(config: Config, environ: Mapping[str, str]) -> str | None:
    """Return where traces are sent; None if none are wanted.

    OpenTelemetry's variables hold as its specification has them (OTLP exporter configuration):
    where they name the collector (""), the library reads them itself.
    """
    given = environ.get
    exporters = [name.strip() for name in given("OTEL_TRACES_EXPORTER", "otlp").split(",")]
    off = given("OTEL_SDK_DISABLED", "").lower() == "true" or "otlp" not in exporters
    ours = config.sources.get("otlp_endpoint") != "OTEL_EXPORTER_OTLP_ENDPOINT"
    if config.otlp_endpoint and ours:
        url = f"{config.otlp_endpoint.rstrip('/')}/v1/traces"
        return None if off else url
    if off or not (config.otlp_endpoint or given("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")):
        return None
    return ""
