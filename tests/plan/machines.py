"""Machines that people own and models that they run, as tables."""

from __future__ import annotations

from dataclasses import dataclass

from tests.facts import GIB, MIB
from vllama.machine.types import Accelerator, Platform, Vendor
from vllama.models.types import ModelInfo


@dataclass(frozen=True, kw_only=True)
class Box:
    """A machine: RAM in GiB, GPUs as (GiB, GB/s), and the bandwidth of its RAM in GB/s."""

    name: str
    ram: float
    gpus: tuple[tuple[float, float], ...] = ()
    ram_speed: float = 50
    vendor: Vendor = Vendor.NVIDIA
    shares_ram: bool = False
    used: float = 0.3  # GiB of each GPU in other programs

    @property
    def platform(self) -> Platform:
        """The machine as it is detected."""
        return Platform(
            os="darwin" if self.vendor is Vendor.APPLE else "linux",
            arch="x86_64",
            cores=8,
            ram_total_bytes=int(self.ram * GIB),
            ram_available_bytes=int(self.ram * 0.8 * GIB),
            accelerators=tuple(
                Accelerator(
                    vendor=self.vendor,
                    index=index,
                    name=f"NVIDIA GeForce {size:g} GB",
                    total_bytes=int(size * GIB),
                    free_bytes=int(max(0, size - self.used) * GIB),
                    shares_ram=self.shares_ram,
                )
                for index, (size, _) in enumerate(self.gpus)
            ),
        )


def _one(name: str, size: float, speed: float, *rams: float, **more: object) -> list[Box]:
    return [
        Box(name=f"{name}, {ram:g} GiB", ram=ram, gpus=((size, speed),), **more)  # type: ignore[arg-type]
        for ram in rams
    ]


def _shared(name: str, vendor: Vendor, ram: float, part: float, speed: float) -> Box:
    return Box(
        name=name, ram=ram, gpus=((part, speed),), ram_speed=speed, vendor=vendor, shares_ram=True,
        used=0,
    )  # fmt: skip


MACHINES: list[Box] = [
    *[Box(name=f"no GPU, {ram:g} GiB", ram=ram) for ram in (0.42, 1.3, 4, 8, 16, 32, 64, 128, 512)],
    *_one("GT 1030", 2, 48, 8, 16, ram_speed=40),
    *_one("GTX 1050 Ti", 4, 112, 8, 16),
    *_one("GTX 1650", 4, 128, 16, 32),
    *_one("GTX 1060", 6, 192, 8, 16),
    *_one("RTX 2060", 6, 336, 16, 32),
    *_one("RTX 3060 Ti", 8, 448, 16, 32, 64),
    *_one("RTX 4060 with a desktop", 8, 272, 16, 32, used=1.6),
    *_one("RTX 3080", 10, 760, 32),
    *_one("GTX 1080 Ti", 11, 484, 16, 64),
    *_one("RTX 3060", 12, 360, 16, 32, 64),
    *_one("RTX 4070 Ti Super", 16, 672, 32, 64),
    *_one("RX 6800 XT", 16, 512, 32, vendor=Vendor.AMD),
    *_one("RTX 4000 Ada", 20, 360, 64),
    *_one("RX 7900 XTX", 24, 960, 32, 64, vendor=Vendor.AMD),
    *_one("RTX 3090", 24, 936, 16, 64, 128),
    *_one("RTX 5090", 32, 1792, 64, 192),
    *_one("A6000", 48, 768, 128),
    *_one("H100", 80, 3350, 256, ram_speed=200),
    *_one("H200", 141, 4800, 512, ram_speed=300),
    *_one("B200", 180, 8000, 1024, ram_speed=400),
    *_one("MI300X", 192, 5300, 1024, vendor=Vendor.AMD, ram_speed=400),
    *_one("RTX 4090, taken by others", 24, 1008, 64, used=22),
    Box(name="2 × RTX 3090", ram=64, gpus=((24, 936), (24, 936))),
    Box(name="2 × RTX 3060", ram=32, gpus=((12, 360), (12, 360))),
    Box(name="RTX 4090 + RTX 3060", ram=64, gpus=((24, 1008), (12, 360))),
    Box(name="RTX 3090 + GTX 1660", ram=64, gpus=((6, 336), (24, 936))),
    Box(name="4090 + A6000", ram=128, gpus=((24, 1008), (48, 768))),
    Box(name="4 × P40", ram=128, gpus=((24, 346),) * 4),
    Box(name="8 × H100", ram=1024, gpus=((80, 3350),) * 8, ram_speed=300),
    Box(name="8 × RTX 3060", ram=64, gpus=((12, 360),) * 8),
    _shared("Mac, 8 GiB", Vendor.APPLE, 8, 5.3, 100),
    _shared("Mac, 16 GiB", Vendor.APPLE, 16, 10.7, 120),
    _shared("Mac, 32 GiB", Vendor.APPLE, 32, 21.3, 200),
    _shared("Mac, 64 GiB", Vendor.APPLE, 64, 48, 400),
    _shared("Mac, 192 GiB", Vendor.APPLE, 192, 144, 800),
    _shared("GB10", Vendor.NVIDIA, 121, 121, 273),
    _shared("Jetson Orin Nano", Vendor.NVIDIA, 7.4, 7.4, 68),
    _shared("Strix Halo, 64 GiB", Vendor.AMD, 62, 31, 256),
    _shared("Strix Halo, 128 GiB", Vendor.AMD, 125, 120, 256),
]


def make_model(
    name: str, layers: int, width: int, heads: int, kv: int, inner: int, vocab: int,
    *, experts: int = 0, used: int = 0, kind: str = "Q4_K", context: int = 131_072,
    window: int | None = None, tied: bool = False, beside: int = 0, head: int = 128,
) -> ModelInfo:  # fmt: skip
    """Return a model of this shape, all of its matrices in one quantization."""
    tensors = [("token_embd.weight", kind, (width, vocab))]
    if not tied:
        tensors.append(("output.weight", kind, (width, vocab)))
    for n in range(layers):
        rows = {"attn_q": heads * head, "attn_k": kv * head, "attn_v": kv * head}
        tensors += [(f"blk.{n}.{part}.weight", kind, (width, size)) for part, size in rows.items()]
        tensors.append((f"blk.{n}.attn_output.weight", kind, (heads * head, width)))
        tail, more = ("_exps", (experts,)) if experts else ("", ())
        tensors += [
            (f"blk.{n}.ffn_{part}{tail}.weight", kind, (width, inner, *more))
            for part in ("up", "gate", "down")
        ]
    from vllama.models.headers.gguf.parser import count_tensor_bytes

    size = sum(count_tensor_bytes(kind, shape) for _, kind, shape in tensors)
    metadata: dict[str, object] = {f"{name}.feed_forward_length": inner}
    if experts:
        metadata |= {f"{name}.expert_used_count": used, f"{name}.expert_count": experts}
    return ModelInfo(
        architecture=name,
        quant=kind,
        context_length=context,
        embedding_length=width,
        block_count=layers,
        head_count=heads,
        head_count_kv=(kv,),
        key_length=head,
        value_length=head,
        sliding_window=window,
        vocab_size=vocab,
        weights_bytes=size + beside,
        beside_bytes=beside,
        metadata=metadata,
        tensors=tuple(tensors),
    )


MODELS: dict[str, ModelInfo] = {
    "0.5B": make_model("qwen2", 24, 896, 14, 2, 4864, 151_936, head=64, tied=True),
    "1B": make_model("llama", 16, 2048, 32, 8, 8192, 128_256, head=64, tied=True),
    "4B with sight": make_model(
        "gemma3", 34, 2560, 8, 4, 10_240, 262_144, head=256, window=1024, tied=True,
        beside=850 * MIB,
    ),
    "8B": make_model("llama", 32, 4096, 32, 8, 14_336, 128_256),
    "8B Q8_0": make_model("llama", 32, 4096, 32, 8, 14_336, 128_256, kind="Q8_0"),
    "14B, many heads": make_model("qwen", 40, 5120, 40, 40, 13_696, 152_064),
    "20B-A4B": make_model(
        "gpt-oss", 24, 2880, 64, 8, 2880, 201_088, experts=32, used=4, head=64, window=128
    ),
    "27B": make_model("gemma3", 62, 5376, 32, 16, 21_504, 262_144, window=1024, tied=True),
    "30B-A3B": make_model("qwen3moe", 48, 2048, 32, 4, 768, 151_936, experts=128, used=8),
    "32B": make_model("qwen3", 64, 5120, 64, 8, 25_600, 151_936),
    "70B": make_model("llama", 80, 8192, 64, 8, 28_672, 128_256),
    "235B-A22B": make_model("qwen3moe", 94, 4096, 64, 4, 1536, 151_936, experts=128, used=8),
}  # fmt: skip
