"""Which form of a model is fetched, by memory: pure values in, the choice and its words out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import CPU, GIB, H100, INFO, LLAMA_CPP_HERE, VLLM_HERE, facts, with_reserve
from vllama.base.errors import BadModelFile, Offline, SourceError, VllamaError
from vllama.models.resolve.candidates import Candidate
from vllama.models.resolve.search import Resolution
from vllama.models.types import Format, ModelInfo, Repository, SourceFile, Variant
from vllama.plan.form_choice import FitsHere

# Llama 3.1 8B: a cache of 512 MiB and buffers of some 340 MiB with 4096 tokens
LLAMA = replace(
    INFO,
    parameter_count=8_030_261_248,
    block_count=32,
    head_count=32,
    head_count_kv=(8,),
    key_length=128,
    value_length=128,
    vocab_size=128_256,
    context_length=131_072,
)
SIZES = {  # GiB
    "Q8_0": 8.0, "Q5_K_M": 5.3, "Q4_K_M": 4.6, "Q4_K_S": 4.4, "Q4_0_4_4": 4.3,
    "Q3_K_M": 3.7, "Q2_K": 3.0, "IQ1_S": 1.9,
}  # fmt: skip


def repository(name: str, sizes: dict[str, float], stem: str = "Llama-8B") -> Repository:
    def variant(quant: str, size: float) -> Variant:
        file = SourceFile(path=f"{stem}-{quant}.gguf", size_bytes=int(size * GIB))
        return Variant(format=Format.GGUF, quant=quant, files=(file,), label=quant)

    variants = tuple(variant(quant, size) for quant, size in sizes.items())
    return Repository(hub_id=name, commit="c", variants=variants)


def resolution(repo: Repository, quant: str = "Q4_K_M") -> Resolution:
    taken = next(v for v in repo.variants if v.quant == quant)
    candidates = tuple(
        Candidate(
            hub_id=repo.hub_id,
            found="named",
            reason="it is the usual one" if v == taken else f"{quant} was taken",
            taken=v == taken,
            variant=v,
            repository=repo,
        )
        for v in repo.variants
    )
    return Resolution(repository=repo, variant=taken, candidates=candidates)


def header(found: Resolution) -> ModelInfo:
    return replace(LLAMA, weights_bytes=found.variant.files[0].size_bytes)


def choose(
    usable_gib: float,
    *found: Resolution,
    named: bool = False,
    family: Sequence[tuple[str, float]] = (),
    read=header,
    platform=CPU,
    installed=(LLAMA_CPP_HERE,),
    **preferences,
) -> Resolution:
    machine = replace(platform, ram_total_bytes=with_reserve(usable_gib * GIB))
    here = facts(machine, installed, **preferences)
    search = iter(found or (resolution(repository("o/Llama-8B-GGUF", SIZES)),))
    return FitsHere(here).choose(search, read, lambda: family, named=named)


def unread(_: Resolution) -> ModelInfo:
    raise AssertionError("its header was read")


@pytest.mark.parametrize(
    ("usable", "quant"),
    [
        (8, "Q4_K_M"),
        (5.6, "Q4_K_M"),
        (5.3, "Q4_K_S"),
        (5.1, "Q3_K_M"),  # not Q4_0_4_4, which llama.cpp does not load any more
        (4.0, "Q2_K"),
        (3.7, "Q2_K"),  # with 2048 tokens, rather than one bit a weight
        (3.0, "IQ1_S"),
    ],
)
def test_the_largest_up_to_the_usual_one_that_fits(usable: float, quant: str) -> None:
    found = choose(usable)
    assert (found.variant.quant, found.shortage) == (quant, None)
    taken = [c for c in found.candidates if c.taken]
    assert [(c.quant, c.variant) for c in taken] == [(quant, found.variant)]
    if quant == "Q4_K_M":
        assert found.notes == ()
        return
    (note,) = found.notes
    assert note == f"chose {quant}: Q4_K_M needs 5.4 GiB, {usable:.1f} GiB usable"
    reasons = {c.quant: c.reason for c in found.candidates}
    small = usable == 5.3
    assert reasons["Q4_K_M"] == (
        "it fits only with a small context"
        if small
        else f"it needs 5.4 GiB, {usable:.1f} GiB usable"
    )
    assert reasons["Q8_0"] == (f"chosen only on request: it needs 8.8 GiB, {usable:.1f} GiB usable")


@pytest.mark.parametrize(
    ("gpu_gib", "quant", "in_ram"),
    [(8, "Q4_K_M", 16), (5, "Q3_K_M", 52), (4.5, "Q2_K", 55), (2.2, "Q4_K_M", 79)],
)
def test_one_that_lies_on_the_gpu_as_a_whole_comes_first(
    gpu_gib: float, quant: str, in_ram: int
) -> None:
    """One bit a weight is no reason to have it there."""
    gpu = replace(
        H100.accelerators[0], total_bytes=int(gpu_gib * GIB), free_bytes=int(gpu_gib * GIB)
    )
    machine = replace(H100, accelerators=(gpu,))
    here = replace(LLAMA_CPP_HERE, offloads=True)
    found = choose(32, platform=machine, installed=(here,))
    assert (found.variant.quant, found.shortage) == (quant, None)
    reasons = {c.quant: c.reason for c in found.candidates}
    told = f"chosen only on request: it would have {in_ram} % in RAM"
    assert reasons["Q8_0"] == told
    if quant != "Q4_K_M":
        assert "Q4_K_M would have" in found.notes[0]


def test_what_fits_anyway_is_not_looked_into() -> None:
    assert choose(24, read=unread).variant.quant == "Q4_K_M"
    with pytest.raises(AssertionError):
        choose(24, read=unread, context_length=32_768)


@pytest.mark.parametrize(("usable", "fits"), [(9.5, True), (6, False)])
def test_a_quantization_that_was_named_is_never_replaced(usable: float, fits: bool) -> None:
    repo = repository("o/Llama-8B-GGUF", SIZES)
    found = choose(usable, resolution(repo, "Q8_0"), named=True)
    assert found.variant.quant == "Q8_0" and (found.shortage is None) is fits
    if found.shortage:
        assert "Q8_0 needs 8.8 GiB" in found.shortage.message
        assert found.shortage.hint == "use Q5_K_M, which fits"


def test_nothing_fits() -> None:
    found = choose(1.5, family=(("llama3:70b", 70), ("llama3:8b", 8), ("llama3:1b", 1)))
    assert found.variant.quant == "Q4_K_M" and found.shortage is not None
    assert found.shortage.message == (
        "model requires more memory (Q4_K_M needs 5.4 GiB: weights 4.6 GiB, context of 4096 tokens "
        "512 MiB, buffers 343 MiB; IQ1_S, the smallest available, needs 2.7 GiB) "
        "than is usable (1.5 GiB)"
    )
    assert found.shortage.hint == "use a smaller model of the family: llama3:1b"


def test_where_nothing_fits_nothing_is_taken_and_something_helps() -> None:
    for found in (choose(1.5), choose(2, resolution(repository("o/One-GGUF", {"Q4_K_M": 4.6})))):
        assert found.shortage is not None
        assert found.shortage.hint == (
            "use a smaller model, or a repository with smaller quantizations of this one"
        )
        assert not any(one.taken for one in found.candidates)
        assert all("was taken" not in one.reason for one in found.candidates)
        (usual,) = [one for one in found.candidates if one.quant == "Q4_K_M"]
        assert usual.reason.startswith("it needs 5.4 GiB, ")
    named = choose(6, resolution(repository("o/Llama-8B-GGUF", SIZES), "Q8_0"), named=True)
    reasons = {one.quant: (one.taken, one.reason) for one in named.candidates}
    assert reasons["Q8_0"] == (False, "it needs 8.8 GiB, 6.0 GiB usable")
    assert not any(taken for taken, _ in reasons.values())


def test_a_context_that_was_asked_for_is_kept_and_a_smaller_one_named() -> None:
    found = choose(5.6, context_length=131_072)
    assert found.shortage is not None
    assert "context of 131072 tokens 16.0 GiB" in found.shortage.message
    assert "--context-length 4096 with Q4_K_M" in str(found.shortage.hint)


def test_another_repository_has_a_smaller_one() -> None:
    few = resolution(repository("org/Llama-8B-GGUF", {"Q4_K_M": 4.6, "Q8_0": 8.0}))
    more = resolution(repository("others/Llama-8B-GGUF", SIZES))
    found = choose(4.7, few, more)
    assert (found.repository.hub_id, found.variant.quant) == ("others/Llama-8B-GGUF", "Q3_K_M")
    assert choose(8, few, more).repository.hub_id == "org/Llama-8B-GGUF"


def test_another_model_in_the_same_repository_is_no_smaller_form() -> None:
    repo = repository("o/Llama-GGUF", {"Q4_K_M": 4.6})
    other = repository("o/Llama-GGUF", {"Q3_K_M": 0.7}, stem="Llama-1B").variants
    both = replace(repo, variants=(*repo.variants, *other))
    assert choose(4.0, resolution(both)).shortage is not None


def test_the_end_of_the_search_is_no_error_of_its_own() -> None:
    few = resolution(repository("org/Llama-8B-GGUF", {"Q4_K_M": 4.6}))

    def search() -> Iterator[Resolution]:
        yield few
        raise SourceError("cannot ask the hub")

    machine = facts(replace(CPU, ram_total_bytes=with_reserve(4 * GIB)))
    found = FitsHere(machine).choose(search(), header, lambda: (), named=False)
    assert found.shortage is not None


def test_a_header_that_cannot_be_read_leaves_the_size() -> None:
    def broken(_: Resolution) -> ModelInfo:
        raise SourceError("no ranges")

    assert choose(4.0, read=broken).variant.quant == "Q3_K_M"


@pytest.mark.parametrize("error", [Offline("no hub"), BadModelFile("no GGUF")])
def test_a_file_that_is_no_model_is_not_chosen(error: VllamaError) -> None:
    def read(_: Resolution) -> ModelInfo:
        raise error

    with pytest.raises(type(error)):
        choose(4.0, read=read)


def test_without_an_engine_memory_decides_nothing() -> None:
    assert choose(1, installed=()).variant.quant == "Q4_K_M"


def test_quantized_safetensors_only_where_only_they_fit() -> None:
    def whole(name: str, gib: float, quant: str | None = None) -> Resolution:
        file = SourceFile(path="model.safetensors", size_bytes=int(gib * GIB))
        tokenizer = SourceFile(path="tokenizer.json", size_bytes=0)
        variant = Variant(format=Format.SAFETENSORS, quant=quant, files=(file, tokenizer))
        repo = Repository(hub_id=name, commit="c", variants=(variant,))
        one = Candidate(hub_id=name, found="", reason="", variant=variant, repository=repo)
        return Resolution(repository=repo, variant=variant, candidates=(one,))

    gpu = replace(H100.accelerators[0], total_bytes=24 * GIB)
    small = {"platform": replace(H100, accelerators=(gpu,)), "installed": (VLLM_HERE,)}
    found = (whole("o/M", 30), whole("o/M-FP8", 15, "FP8"), whole("o/M-AWQ", 8, "AWQ"))
    taken = choose(128, *found, **small)
    assert taken.repository.hub_id == "o/M-FP8"
    assert taken.notes[0].startswith("chose FP8: o/M needs")
    wide = {**small, "platform": H100}
    assert choose(128, *found, **wide).repository.hub_id == "o/M"


@given(st.floats(0.5, 40), st.floats(0, 10))
def test_more_memory_never_means_less_of_a_model(usable: float, more: float) -> None:
    first, second = choose(usable), choose(usable + more)
    assert first.variant.size_bytes <= int(4.6 * GIB)
    if first.shortage is None:
        assert second.shortage is None
        assert second.variant.size_bytes >= first.variant.size_bytes
