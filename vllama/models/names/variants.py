"""Groups the files of a folder or repository into servable models.

Pure: lists of relative paths in, groups out. Used for hub listings, the hub's cache and plain
folders alike. The rules are those of llama.cpp's `-hf` (common/download.cpp), which users know.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath

from vllama.base.left_out import show_path
from vllama.models.names.mistral_format import (
    PARAMS,
    TOKENIZER_PATTERNS,
    choose_consolidated_weights,
)
from vllama.models.names.quant import (
    PREFERRED,
    find_quant,
    get_bit_width,
    is_same_quant,
    parse_quant_tag,
    strip_quant,
)

DEFAULT_LABEL = "latest"
_MOST_MISSING = 100
_SHARD = re.compile(r"(?P<stem>.*)-(?P<index>\d{5})-of-(?P<count>00\d{3})(?P<suffix>\.[A-Za-z]+)")
_NO_MODEL = ("mmproj", "-vocab")
_NO_NAME = frozenset({"mmproj", "model", "ggml", "gguf"})  # words that name no model
_DRAFTS = ("mtp-", "eagle3-", "dflash-", "dspark-")  # draft models for speculative decoding
_PROJECTOR_QUANTS = ("F16", "BF16", "F32")
_PIECE = re.compile(r"\.gguf[.-](?:part[-_]?\d|split-[a-z])", re.IGNORECASE)
_LORA = re.compile(r"(?:^|[-_.])lora(?:[-_.]|$)")

# what vLLM and transformers read besides the weights
_WANTED = ("*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken", "*.py")
_UNWANTED = ("original/*", "onnx/*", "openvino/*", "checkpoint-*/*")
CONFIG = "config.json"
CONFIG_FILES = (CONFIG, PARAMS)
"""The files that make a folder a model's."""
INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
_NUMBERED = re.compile(r"(?P<stem>.*)-(?P<index>\d{1,6})-of-(?P<count>\d{1,6})\.safetensors")
_OTHER_WEIGHTS = re.compile(r"(?:consolidated|adapter_model|optimizer|training_args)\b.*")
_MODULE = re.compile(r"\d+_\w+/model\.safetensors")  # of sentence-transformers: `2_Dense`
_TOKENIZER = re.compile(
    r"(?!tokenizer_config\.json$)(?:.*tokeni[sz]er.*|tokenization_.*\.py|tekken\.json|vocab\..*"
    r"|merges\.txt|.*\.(?:tiktoken|model|vocab|spm))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufGroup:
    """One GGUF model: its shards in order, first first; `label` is its tag.

    That is the quantization, or the file's stem where two share one; `latest` for the first file
    whose name carries no quantization.
    """

    label: str = DEFAULT_LABEL
    quant: str | None = None
    paths: tuple[str, ...]
    projector: str | None = None
    unfit: str | None = None  # a projector beside it that is another model's

    @property
    def all_paths(self) -> tuple[str, ...]:
        """Its shards, and its projector at the end."""
        return (*self.paths, self.projector) if self.projector else self.paths


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFacts:
    """The facts in a GGUF's header that its name may contradict.

    `width` is a model's embedding length; `widths` are the sides of a projector's matrices, of
    which one leads to that.
    """

    is_model: bool = True
    is_part: bool = False
    width: int | None = None
    widths: frozenset[int] = frozenset()


Look = Callable[[str], GgufFacts | None]  # reads the header at a path; None: only its name is known
NAMES_ONLY: Look = dict[str, GgufFacts]().get


def parse_shard(path: str) -> tuple[str, int, int] | None:
    """Return (path without the number, index, count) of a shard's name, or None."""
    match = _SHARD.fullmatch(path)
    if match is None:
        return None
    stem = match.group("stem") + match.group("suffix")
    return stem, int(match.group("index")), int(match.group("count"))


def _find_shard(path: str, look: Look) -> tuple[str, int, int] | None:
    """Return `parse_shard`, None for a file that is only called like a shard."""
    shard = parse_shard(path)
    return shard if shard and ((facts := look(path)) is None or facts.is_part) else None


def iterate_shard_paths(path: str) -> Iterator[str]:
    """Yield the names of all shards that belong to `path` (itself where it is no shard)."""
    match = _SHARD.fullmatch(path)
    if match is None:
        yield path
        return
    stem, count, suffix = match.group("stem"), int(match.group("count")), match.group("suffix")
    for number in range(1, count + 1):
        yield f"{stem}-{number:05d}-of-{count:05d}{suffix}"


def is_projector(path: str) -> bool:
    """Tell whether a GGUF is a multimodal projector."""
    name = PurePosixPath(path).name.lower()
    return name.endswith(".gguf") and "mmproj" in name


def is_gguf_model(path: str, look: Look = NAMES_ONLY) -> bool:
    """Tell whether a path names a GGUF that can be served (no projector, draft, adapter …).

    Of those called `imatrix`, the models made with one have a quantization in their names, too.
    """
    name = PurePosixPath(path).name.lower()
    if not name.endswith(".gguf") or name.startswith(_DRAFTS):
        return False
    if "imatrix" in name and not (facts.is_model if (facts := look(path)) else find_quant(name)):
        return False
    return not any(word in name for word in _NO_MODEL) and _LORA.search(name[:-5]) is None


def group_ggufs(
    paths: Iterable[str], look: Look = NAMES_ONLY, *, published: bool = True
) -> tuple[GgufGroup, ...]:
    """Group GGUF files into complete models, in the order of their paths.

    At one quantization a single file comes before a split one. Shards with a part missing are
    left out. Each group gets the projector that belongs to it, if there is any. `published`: the
    files are one repository, and not somebody's collection.
    """
    present = sorted(set(paths))
    known = set(present)
    projectors = [path for path in present if is_projector(path) and show_path(path) == path]
    sets: list[tuple[str, ...]] = []
    for path in present:
        if not is_gguf_model(path, look):
            continue
        shard = _find_shard(path, look)
        if shard is None:
            sets.append((path,))
        elif shard[1] == 1 and all(part in known for part in iterate_shard_paths(path)):
            # none is made after one that is missing
            sets.append(tuple(iterate_shard_paths(path)))
    is_only_one = published and len({_list_words(files[0]) for files in sets}) == 1
    groups: list[GgufGroup] = []
    labels: set[str] = set()
    for files in sorted(sets, key=lambda files: len(files) > 1):
        quant = find_quant(files[0])
        label = quant or DEFAULT_LABEL
        if label in labels:  # as a tag may be written
            label = re.sub(r"[^A-Za-z0-9_.-]+", "-", get_stem(files[0])).lstrip("-.")
        labels.add(label)
        own = choose_projector(files[0], projectors, look, is_only_one=is_only_one)
        folder = PurePosixPath(files[0]).parent
        unfit = next((p for p in projectors if not own and PurePosixPath(p).parent == folder), None)
        group = GgufGroup(label=label, quant=quant, paths=files, projector=own, unfit=unfit)
        groups.append(group)
    return tuple(sorted(groups, key=lambda group: group.paths[0]))


def explain_left_out(paths: Iterable[str], look: Look = NAMES_ONLY) -> dict[str, str]:
    """Return the GGUF files that cannot be served although their names look like it, with why.

    One entry for each set of shards that is not complete, and for each file cut in pieces that
    would have to be joined (`….gguf.part1of2`, `….gguf-split-a`).
    """
    present = sorted(set(paths))
    known = set(present)
    reasons: dict[str, str] = {}
    seen: set[str] = set()
    for path in present:
        if match := _PIECE.search(path):
            whole = path[: match.start()] + ".gguf"
            reasons.setdefault(whole, "its parts must be joined first")
            continue
        shard = _find_shard(path, look)
        if shard is None or not is_gguf_model(path, look) or shard[0] in seen:
            continue
        seen.add(shard[0])
        missing = [part for part in iterate_shard_paths(path) if part not in known]
        if missing:
            count = f"{len(missing)} of {shard[2]}"
            reasons[shard[0]] = (
                f"{count} parts are missing, such as {PurePosixPath(missing[0]).name}"
            )
    return reasons


def get_stem(path: str) -> str:
    """Return a file's name without folder, shard number and suffix."""
    name = PurePosixPath(path).name
    shard = parse_shard(name)
    return (shard[0] if shard else name)[: -len(".gguf")]


def choose_group(groups: Sequence[GgufGroup], tag: str | None) -> GgufGroup | None:
    """Choose as llama.cpp does: by tag, or without one Q4_K_M, then Q8_0, then the first.

    A tag is a quantization, a file's name, or a piece of a path followed by `-` or `.`; case
    does not matter. With a tag there is no second choice: None.
    """
    if tag is None:
        for quant in PREFERRED:
            for group in groups:
                if group.quant == quant:
                    return group
            for group in groups:
                if is_same_quant(group.quant, quant):
                    return group
            found = _by_piece(groups, quant)
            if found is not None:
                return found
        return groups[0] if groups else None
    wanted = tag.lower()
    quant_wanted = parse_quant_tag(tag)
    for group in groups:
        names = {group.label.lower(), get_stem(group.paths[0]).lower()}
        names |= {PurePosixPath(path).name.lower() for path in group.paths}
        if wanted in names or is_same_quant(group.label, quant_wanted):
            return group
    return _by_piece(groups, tag)


def _by_piece(groups: Sequence[GgufGroup], piece: str) -> GgufGroup | None:
    # anchored on the left too: F16 must not find BF16
    pattern = re.compile(rf"(?<![a-z0-9]){re.escape(piece.lower())}[.-]")
    return next((g for g in groups if pattern.search(g.paths[0].lower())), None)


def _list_words(path: str) -> frozenset[str]:
    """Return the words of a file's name that name the model."""
    words = re.findall(r"[a-z0-9]+(?:\.\d+)*", strip_quant(get_stem(path)).replace("mmproj", " "))
    return frozenset(words) - _NO_NAME


def _belongs(model: str, projector: str, look: Look, *, is_only_one: bool) -> bool:
    """Tell whether a projector is a model's own: by its name and by the width of its output.

    A name that says less (`mmproj-F16.gguf`) belongs to models in its folder and below; in a
    repository with one model, its projector may have another name (ggml-org's ultravox).
    """
    ours, theirs = _list_words(model), _list_words(projector)
    is_near = PurePosixPath(model).is_relative_to(PurePosixPath(projector).parent)
    is_named = bool(theirs) and theirs == ours
    if not (is_named or is_only_one or (is_near and theirs <= ours)):
        return False
    facts, wanted = look(projector), look(model)
    if facts and facts.widths and wanted and wanted.width:
        return wanted.width in facts.widths
    return True


def choose_projector(
    model: str, projectors: Sequence[str], look: Look = NAMES_ONLY, *, is_only_one: bool = False
) -> str | None:
    """Choose the projector that belongs to a model: by its name, then in the deepest folder.

    Of several there, that in F16, BF16 or F32 (projectors are small, and lose most by rounding),
    else that of the nearest bit width.
    """
    bits = get_bit_width(find_quant(model))
    own = [p for p in projectors if _belongs(model, p, look, is_only_one=is_only_one)]

    def rank(projector: str) -> tuple[int, int, int, int, str]:
        known_by = len(_list_words(projector) & _list_words(model))
        folder = PurePosixPath(projector).parent
        depth = len(folder.parts) if PurePosixPath(model).is_relative_to(folder) else -1
        quant = find_quant(projector)
        known = [n for n, q in enumerate(_PROJECTOR_QUANTS) if is_same_quant(quant, q)]
        order = known[0] if known else len(_PROJECTOR_QUANTS)
        return -known_by, -depth, order, abs(get_bit_width(quant) - bits), projector

    return min(own, key=rank, default=None)


def choose_safetensors_files(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the files to fetch for a safetensors model; empty where there is none.

    Its weights (`choose_weights`) and everything small that a server may read.
    """
    present = sorted(paths)
    weights = choose_weights(present)
    is_mistral = is_mistral_format(present)
    patterns = (*_WANTED, *TOKENIZER_PATTERNS) if is_mistral else _WANTED
    wanted = [
        path
        for path in present
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
        and not any(fnmatch.fnmatchcase(path, pattern) for pattern in _UNWANTED)
    ]
    config = PARAMS if is_mistral else CONFIG
    return tuple(sorted({*weights, *wanted})) if weights and config in wanted else ()


def is_mistral_format(paths: Iterable[str]) -> bool:
    """Tell whether files are a model in Mistral's own format (`mistral_format`).

    A repository that also has the model in transformers' format, complete, counts as one of that
    format, because all engines read it.
    """
    present = sorted(paths)
    if PARAMS not in present or not choose_consolidated_weights(present):
        return False
    usual = _choose_usual_weights(present)
    return CONFIG not in present or not usual or bool(find_missing_shards(usual))


def choose_weights(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the weights of a safetensors model among a repository's files, in its format."""
    present = sorted(paths)
    if is_mistral_format(present):
        return choose_consolidated_weights(present)
    return _choose_usual_weights(present)


def _choose_usual_weights(present: Sequence[str]) -> tuple[str, ...]:
    """Return the weights in transformers' format.

    Those that transformers loads: `model.safetensors`, or its shards where there is an index of
    them (both together would be loaded twice). Other number formats (`model.fp32.safetensors`),
    other formats (`consolidated…`), adapters, and copies in folders, such as checkpoints of a
    training, are not the model's; the modules of sentence-transformers are. A repository that
    names its weights in a way of its own is taken at its word: all in the root folder.
    """
    root = [path for path in present if "/" not in path and path.endswith(".safetensors")]
    usual = [path for path in root if _WEIGHTS.fullmatch(path)]
    shards = [path for path in usual if path != _WHOLE]
    if shards and _WHOLE in usual:
        usual = shards if INDEX in present else [_WHOLE]
    chosen = usual or [path for path in root if not _OTHER_WEIGHTS.match(path)]
    modules = [path for path in present if _MODULE.fullmatch(path)]
    return (*chosen, *modules) if chosen else ()


def find_missing_shards(weights: Iterable[str]) -> tuple[str, ...]:
    """Return the shards that a model's weights lack, by the numbers in the names of the others.

    Most publishers count from 1, some from 0, and of those some up to the count itself.
    """
    groups: dict[tuple[str, str], set[int]] = {}
    for path in weights:
        if match := _NUMBERED.fullmatch(path):
            groups.setdefault((match["stem"], match["count"]), set()).add(int(match["index"]))
    missing = (
        f"{stem}-{number:05d}-of-{count}.safetensors"
        for (stem, count), numbers in groups.items()
        for number in range(0 if 0 in numbers else 1, int(count) + (0 not in numbers))
        if number not in numbers
    )
    return tuple(islice(missing, _MOST_MISSING))  # the count is only what a name says


def has_tokenizer(names: Iterable[str]) -> bool:
    """Tell whether one of the files in a model's folder may be its tokenizer."""
    return any(_TOKENIZER.fullmatch(name) for name in names)
