"""The sizes of a model's family, by the table of library names: what could be taken instead."""

from __future__ import annotations

import re

from vllama.models.aliases import families, hub_alias, tags_of
from vllama.models.ref import Kind, ModelRef
from vllama.models.resolve_match import no_form_of

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([bm])")


def sizes_of(ref: ModelRef) -> tuple[tuple[str, float], ...]:
    """Return (library name, billions of parameters) of a model's family, the largest first.

    `ref` is a library name, or a hub model that one stands for or that is a form of such a one;
    empty for others. Sizes with words of their own (`8x7b`, `4b-thinking`) are left out.
    """
    family = ref.model.lower() if ref.kind is Kind.LIBRARY else _family_of(ref)
    found = []
    for tag in tags_of(family) if family else ():
        if match := _SIZE.fullmatch(tag):
            billions = float(match.group(1)) / (1000 if match.group(2) == "m" else 1)
            found.append((f"{family}:{tag}", billions))
    return tuple(sorted(found, key=lambda pair: -pair[1]))


def _family_of(ref: ModelRef) -> str | None:
    wanted = ref.hub_id
    if wanted is None:
        return None
    for family in families():
        for tag in tags_of(family):
            alias = hub_alias(ModelRef.parse(f"{family}:{tag}"))
            if alias is None or alias.hub_id is None:
                continue
            if alias.hub_id.lower() == wanted.lower() or no_form_of(alias.hub_id, wanted) is None:
                return family
    return None
