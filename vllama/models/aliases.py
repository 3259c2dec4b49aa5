"""Ollama's library names, the hub repositories that hold the same models, and their families.

The table is `aliases.toml`: one table for each name, one key for each tag. A user's own aliases
come first. Ollama's tags are `size[-flavor][-quantization]` (`3b-instruct-q8_0`); a tag that is
not in the table is taken apart here. Pure except for the data file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from vllama.base.errors import ConfigError, InvalidModelRef
from vllama.models.names.quant import parse_quant_tag
from vllama.models.names.ref import DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_TAG, Kind, ModelRef
from vllama.models.resolve.matching import explain_name_mismatch

NONE: Mapping[str, str] = MappingProxyType({})
_TUNED = ("instruct", "chat", "it")  # what most of Ollama's models are anyway


def find_hub_alias(ref: ModelRef, own: Mapping[str, str] = NONE) -> ModelRef | None:
    """Return the hub reference that a name stands for, or None.

    `own` are the user's aliases: a name, with or without a tag, to a hub model or library name.
    The result's tag is the quantization that the name asks for, or `latest`.
    """
    mine = find_own_alias(ref, own)
    if mine is not None:
        return mine if mine.kind is Kind.HUB else find_hub_alias(mine)
    home = [part.lower() for part in ref.parts[:2]]
    if ref.kind is not Kind.LIBRARY or home != [DEFAULT_HOST, DEFAULT_NAMESPACE]:
        return None
    tags = _table().get(ref.model.lower())
    if tags is None:
        return None
    found = _look_up(tags, ref.tag.lower())
    if found is None:
        return None
    hub_id, quant = found
    return ModelRef.of_hub(hub_id, quant or DEFAULT_TAG)


def check_aliases(own: Mapping[str, str]) -> None:
    """Raise ConfigError for a user's alias that cannot be understood."""
    for name, target in own.items():
        try:
            ref, model = ModelRef.parse(name), ModelRef.parse(target)
        except InvalidModelRef as error:
            raise ConfigError(
                f'cannot use the alias "{name}" for "{target}": {error.message}', hint=error.hint
            ) from None
        known = model.kind is Kind.HUB or find_hub_alias(model) is not None
        if ref.kind is Kind.PATH or not known:
            raise ConfigError(
                f'cannot use the alias "{name}" for "{target}": it must refer to a hub model',
                hint='use the full name: name = "hf.co/org/repo:Q4_K_M"',
            )


def list_families() -> tuple[str, ...]:
    """Return the library names that the table knows, without tags."""
    return tuple(_table())


def list_tags(model: str) -> tuple[str, ...]:
    """Return the tags that the table knows of a library name; empty for an unknown one."""
    return tuple(_table().get(model.lower(), ()))


def find_own_alias(ref: ModelRef, own: Mapping[str, str]) -> ModelRef | None:
    """Return the target of a user's alias: a hub model, or a library name; else None."""
    if not own or ref.kind is Kind.PATH:
        return None
    names = {ModelRef.parse(name).canonical: ModelRef.parse(target) for name, target in own.items()}
    for name in ref.candidates:
        if name in names:
            return names[name]
    quant = parse_quant_tag(ref.tag)
    plain = names.get(ref.with_tag(DEFAULT_TAG).canonical)
    if quant is None or plain is None or plain.kind is not Kind.HUB:
        return None
    return plain.with_tag(quant)


def _look_up(tags: Mapping[str, str], tag: str) -> tuple[str, str | None] | None:
    """Return (repository, quantization asked for); None for a tag that is not known."""
    quant = None
    size = _resolve(tags, tag)
    if size is None:
        rest, _, last = tag.rpartition("-")
        quant = parse_quant_tag(last)
        if quant is not None:
            tag = rest or DEFAULT_TAG
        size = _resolve(tags, tag)
    while size is None:
        tag, _, last = tag.rpartition("-")
        if not tag or last not in _TUNED:
            return None
        size = _resolve(tags, tag)
    return size, quant


def _resolve(tags: Mapping[str, str], tag: str) -> str | None:
    while tag in tags:
        tag = tags[tag]
        if "/" in tag:
            return tag
    return None


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Mapping[str, str]]:
    import tomllib  # only where a name is not found otherwise

    text = Path(__file__).with_name("aliases.toml").read_text(encoding="utf-8")
    return MappingProxyType(tomllib.loads(text))


_SIZE = re.compile(r"(\d+(?:\.\d+)?)([bm])")


def list_family_sizes(ref: ModelRef) -> tuple[tuple[str, float], ...]:
    """Return (library name, billions of parameters) of a model's family, the largest first.

    `ref` is a library name, or a hub model that one stands for or that is a form of such a one;
    empty for others. Sizes with words of their own (`8x7b`, `4b-thinking`) are left out.
    """
    family = ref.model.lower() if ref.kind is Kind.LIBRARY else _family_of(ref)
    found = []
    for tag in list_tags(family) if family else ():
        if match := _SIZE.fullmatch(tag):
            billions = float(match.group(1)) / (1000 if match.group(2) == "m" else 1)
            found.append((f"{family}:{tag}", billions))
    return tuple(sorted(found, key=lambda pair: -pair[1]))


def _family_of(ref: ModelRef) -> str | None:
    wanted = ref.hub_id
    if wanted is None:
        return None
    for family in list_families():
        for tag in list_tags(family):
            alias = find_hub_alias(ModelRef.parse(f"{family}:{tag}"))
            if alias is None or alias.hub_id is None:
                continue
            if (
                alias.hub_id.lower() == wanted.lower()
                or explain_name_mismatch(alias.hub_id, wanted) is None
            ):
                return family
    return None
