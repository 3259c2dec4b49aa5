"""Decides by name whether a repository holds another form of a model, and ranks such repositories.

Pure text. Uploaders set the hub's tag `base_model:quantized:X` themselves, and some fine-tunes and
merges carry it too. So a name must be the base's own plus words that only describe the form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from vllama.models.names.quant import strip_quant

# trusted quantizers, after the maker of the model; others follow by downloads
QUANTIZERS = (
    *("ggml-org", "unsloth", "bartowski", "lmstudio-community", "MaziyarPanahi"),
    *("QuantFactory", "mradermacher", "TheBloke"),
)
# publishers of quantized safetensors
PACKERS = ("RedHatAI", "nvidia", "unsloth", "cpatonn", "QuantTrio")

_WORD = re.compile(r"[^a-z0-9]+")
# words that describe the form, not the model
_FORM = frozenset({
    "gguf", "ggml", "safetensors", "hf", "llamacpp", "marlin", "autoround", "unsloth",
    "quant", "quants", "quantized", "i1", "imat", "imatrix", "ud", "dynamic", "qat", "block",
    "fp8", "awq", "gptq", "int4", "int8", "4bit", "8bit", "bnb", "nvfp4", "mxfp4",
    "w4a16", "w8a8", "w8a16", "compressed", "tensors", "g32", "g128",
})  # fmt: skip
_TOLERANCE = 0.05
_TOWERS = 0.3  # a GGUF may lack the encoder for images or sound, which is a file of its own
_SEES = ("image", "video", "audio", "any-to-any")


def explain_name_mismatch(base: str, child: str) -> str | None:
    """Return why `child` (`org/name`) is not a form of `base`; None if its name says that it is.

    The child's name must contain the base's words in one piece; other words may only name a format,
    a quantization or one of the two organizations.
    """
    base_org, _, base_name = base.rpartition("/")
    child_org, _, child_name = child.rpartition("/")
    org_words = set(_words(base_org)) | set(_words(child_org))
    ours, theirs = _stem(base_name), _words(strip_quant(child_name))
    at = _find(ours, theirs)
    if at is None and ours[:1] and ours[0] in _words(base_org):  # Meta-Llama-3 → Llama-3
        ours = ours[1:]
        at = _find(ours, theirs)
    if at is None:
        return f"its name does not match {base_name}"
    others = theirs[:at] + theirs[at + len(ours) :]
    # after the name, an organization's word may be part of another model's name
    allowed = [w for w in theirs[:at] if w in org_words]
    extra = [w for w in others if w not in _FORM and w not in allowed]
    if extra:
        return f"it is a different model: '{' '.join(extra)}' in its name"
    return None


def explain_size_mismatch(
    base: int | None, child: int | None, pipeline: str | None, *, named: str
) -> str | None:
    """Return why a child's number of parameters does not match its base's; None if it does.

    An unknown count matches. `pipeline` is the base's task on the hub.
    """
    if not base or not child:
        return None
    sees = any(word in (pipeline or "") for word in _SEES)
    least = base * (1 - (_TOWERS if sees else _TOLERANCE))
    if least <= child <= base * (1 + _TOLERANCE):
        return None
    return f"it has {child / 1e9:.2f} B parameters, but {named} has {base / 1e9:.2f} B"


def rank_publisher(base: str, child: str, order: Iterable[str] = QUANTIZERS) -> int:
    """Return a child's rank: 0 for the base's own organization, then the known quantizers."""
    org = child.rpartition("/")[0].lower()
    if org == base.rpartition("/")[0].lower():
        return 0
    known = [name.lower() for name in order]
    return 1 + (known.index(org) if org in known else len(known))


def guess_gguf_names(base: str) -> tuple[str, ...]:
    """Return the ids that a GGUF version of `base` usually has, the maker's own first."""
    org, _, name = base.rpartition("/")
    stem = re.sub(r"-hf$", "", name)
    names = [f"{org}/{name}-GGUF" if org else f"{name}-GGUF"]
    for who in QUANTIZERS:
        if who == "bartowski" and org:
            names.append(f"{who}/{org}_{stem}-GGUF")  # so since 2025
        names.append(f"{who}/{stem}-GGUF")
    return tuple(names)


def guess_quantized_names(base: str) -> tuple[str, ...]:
    """Return the ids that quantized safetensors of `base` usually have, the maker's own first."""
    name = base.rpartition("/")[2]
    own = (f"{base}{suffix}" for suffix in ("-FP8", "-AWQ", "-GPTQ-Int4"))
    others = (f"RedHatAI/{name}{suffix}" for suffix in ("-FP8-dynamic", "-quantized.w4a16"))
    return (*own, *others)


def get_scheme(child: str) -> str | None:
    """Return how a repository of safetensors is quantized, by its name: `FP8`, `AWQ` …"""
    words = _words(child.rpartition("/")[2])
    for name, marks in _SCHEMES:
        if any(mark in words for mark in marks):
            return name
    return None


# best quality first; FP8 halves the size, most others quarter it
_SCHEMES = (
    ("FP8", ("fp8",)),
    ("INT8", ("w8a8", "int8", "w8a16")),
    ("AWQ", ("awq",)),
    ("GPTQ", ("gptq", "w4a16")),
    ("NVFP4", ("nvfp4",)),
    ("MXFP4", ("mxfp4",)),
    ("BNB", ("bnb", "4bit")),
)
SCHEMES = tuple(name for name, _ in _SCHEMES)


def _stem(name: str) -> list[str]:
    words = _words(strip_quant(name))
    while len(words) > 1 and words[-1] in ("gguf", "hf"):
        words.pop()
    return words


def _words(text: str) -> list[str]:
    return [word for word in _WORD.split(text.lower()) if word]


def _find(part: list[str], whole: list[str]) -> int | None:
    starts = range(len(whole) - len(part) + 1)
    return next((i for i in starts if whole[i : i + len(part)] == part), None)
