"""The settings of the places that models come from: folders, the hub, registries, other servers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from vllama.config import kinds, parse, tables
from vllama.config.folders import default_hf_home, default_models_dir
from vllama.config.setting import setting
from vllama.models.settings import UpstreamSettings, UpstreamTraits


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """The part of `Config` that says where models come from.

    `allow_registry` () allows all, `max_blob_size_bytes` None any size.
    """

    upstreams: tuple[UpstreamSettings, ...] = setting(
        (), tables.UPSTREAMS,
        "running OpenAI servers to put this API in front of: URLs, or tables [upstreams.NAME]",
        example="http://127.0.0.1:8000", flag="--upstream",
    )  # fmt: skip
    upstream_key: str | None = setting(
        None, kinds.text("KEY"), "key that the upstreams want",
        example="sk-…", flag="--upstream-key", secret=True,
    )  # fmt: skip
    upstream_traits: tuple[tuple[str, UpstreamTraits], ...] = setting(
        (), kinds.UPSTREAM_TRAITS,
        "what an upstream, or one of its models, is like where it does not tell: tool_calls "
        "(parsed, text, none), thinking (parsed, tags, none), context, embeddings, images",
        example="http://127.0.0.1:8000=tool_calls=text thinking=tags",
    )  # fmt: skip
    allow_registry: tuple[str, ...] = setting(
        (), kinds.many(kinds.text("HOST", parse.registry)),
        "hosts that models may be pulled from, and no others (the hub: huggingface.co, Ollama's "
        "registry: registry.ollama.ai)",
        example="huggingface.co", flag="--allow-registry",
    )  # fmt: skip
    max_blob_size_bytes: int | None = setting(
        None, kinds.auto(kinds.SIZE, "0"),
        "size of the largest file that may be uploaded or pulled; 0 for any",
        example="20GB", flag="--max-blob-size",
    )  # fmt: skip
    folders: tuple[Path, ...] = setting(
        (), kinds.many(kinds.FOLDER, parse.by_pathsep, os.pathsep.join),
        "folders with model files of your own",
        example="~/models",
    )  # fmt: skip
    aliases: tuple[tuple[str, str], ...] = setting(
        (), kinds.table("name=model", parse.plain),
        "names of your own for models of the hub, or other models for Ollama's names",
        example="mine=hf.co/org/repo:Q4_K_M",
    )  # fmt: skip
    models_dir: Path = setting(
        None, kinds.FOLDER, "Ollama's own store of models, read in place and pulled into",
        example="~/.ollama/models", factory=default_models_dir, foreign="OLLAMA_MODELS",
    )  # fmt: skip
    ollama_registry: str | None = setting(
        None, kinds.URL, "registry of Ollama's kind to take library names from, instead of the hub",
        example="https://registry.example",
    )  # fmt: skip
    lmstudio_dir: Path | None = setting(
        None, kinds.FOLDER, "LM Studio's folder of models, read in place",
        example="~/.lmstudio/models",
    )  # fmt: skip
    hf_cache_dir: Path = setting(
        None, kinds.FOLDER, "cache of the Hugging Face hub",
        example="~/.cache/huggingface/hub", factory=lambda: default_hf_home() / "hub",
        foreign="HF_HUB_CACHE",
    )  # fmt: skip
    hf_endpoint: str | None = setting(
        None, kinds.URL, "hub to use instead of https://huggingface.co",
        example="https://hub.example", foreign="HF_ENDPOINT",
    )  # fmt: skip
    hf_token: str | None = setting(
        None, kinds.text("TOKEN"), "token for gated and private models",
        example="hf_xxxx", foreign="HF_TOKEN", secret=True,
    )  # fmt: skip
    hf_offline: bool = setting(
        False, kinds.SWITCH, "never ask the hub",
        example="true", foreign="HF_HUB_OFFLINE",
    )  # fmt: skip
    download_connections: int = setting(
        4, kinds.number(1, 64), "connections of one download",
        example="4", foreign="OLLAMA_MAX_TRANSFER_STREAMS",
    )  # fmt: skip
