"""Weights that are in memory twice, against `CPU_REPACK` of llama.cpp's log on x86 with AVX-512."""

from dataclasses import replace

import pytest

from tests.facts import CPU, MIB
from vllama.models.headers.gguf.parser import count_tensor_bytes
from vllama.models.types import ModelInfo
from vllama.plan.fit import count_second_copy

X86 = replace(CPU, cpu_features=frozenset({"avx2", "avx512f"}))
ARM = replace(CPU, arch="aarch64", cpu_features=frozenset({"asimddp"}))
WIDTH, INNER, KV, WORDS = 2048, 5632, 512, 32_000


def llama(kind: str, *, layers: int, embedding: str = "F16", output: str | None = "Q6_K"):
    """Return a model's tensors in the order of the files that were measured."""
    tensors = [
        ("token_embd.weight", embedding, (WIDTH, WORDS)),
        ("output_norm.weight", "F32", (WIDTH,)),
    ]
    tensors += [("output.weight", output, (WIDTH, WORDS))] if output else []
    shapes = {
        "attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH, KV), "attn_v": (WIDTH, KV),
        "attn_output": (WIDTH, WIDTH), "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,),
        "ffn_gate": (WIDTH, INNER), "ffn_up": (WIDTH, INNER), "ffn_down": (INNER, WIDTH),
    }  # fmt: skip
    for layer in range(layers):
        tensors += [
            (f"blk.{layer}.{part}.weight", "F32" if len(shape) == 1 else kind, shape)
            for part, shape in shapes.items()
        ]
    size = sum(count_tensor_bytes(kind, shape) for _, kind, shape in tensors)
    return ModelInfo(architecture="llama", tensors=tuple(tensors), weights_bytes=size)


@pytest.mark.parametrize(
    ("info", "mapped_mib", "repacked_mib"),
    [
        (llama("Q4_K", layers=4, embedding="Q4_K"), 164.68, 96.75),
        (llama("Q4_0", layers=4, embedding="Q4_0"), 164.68, 96.75),
        (llama("IQ4_NL", layers=2, embedding="IQ4_NL"), 116.28, 48.38),
        (llama("Q2_K", layers=2, embedding="Q2_K"), 89.21, 28.22),
        (llama("Q4_K", layers=2, embedding="Q4_K", output=None), 65.01, 83.53),
        (llama("Q4_K", layers=2, embedding="Q4_K", output="Q4_K"), 100.16, 83.53),
    ],
)
def test_mapped_and_repacked_weights_are_those_of_the_log(info, mapped_mib, repacked_mib):
    resident = info.weights_bytes + count_second_copy(info, X86)
    assert resident / MIB == pytest.approx(mapped_mib + repacked_mib, abs=0.05)


def test_the_processor_decides_which_types_are_copied():
    eight = llama("Q8_0", layers=2)
    assert count_second_copy(eight, X86) == 0
    assert count_second_copy(eight, ARM) > eight.weights_bytes / 4
    assert count_second_copy(llama("F16", layers=2, output="F16"), ARM) == 0
    assert count_second_copy(llama("Q4_K", layers=2), CPU) == 0  # nothing is known of it


def test_without_its_tensors_nothing_is_known():
    assert count_second_copy(ModelInfo(architecture="llama", weights_bytes=10**9), X86) == 0
