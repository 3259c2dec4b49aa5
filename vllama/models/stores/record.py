"""The JSON of a created model: its shape only (`local` reads and writes it)."""

from __future__ import annotations

from typing import Any

import msgspec

from vllama.models.types import Format


class Base(msgspec.Struct, omit_defaults=True):
    """The files behind a model; `name` is None for files that have none."""

    format: Format
    path: str
    files: list[str] = []
    name: str | None = None
    projector: str | None = None
    quant: str | None = None
    hub_id: str | None = None


class Record(msgspec.Struct, omit_defaults=True):
    """The content of one file; `adapters` are paths. `digest` is that of what it is a copy of."""

    name: str
    base: Base
    parameters: dict[str, Any] = {}
    system: str | None = None
    template: str | None = None
    messages: list[dict[str, Any]] = []
    license: str | None = None
    adapters: list[str] = []
    digest: str | None = None
