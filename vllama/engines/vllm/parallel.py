"""Distribution of a model over GPUs and machines by vLLM. Pure.

This follows vLLM's own advice: one GPU if the model fits; tensor parallelism over as few GPUs as
hold it; pipeline parallelism where its heads cannot be divided. Over several machines the user sets
the flags (tensor parallel within a machine, pipeline parallel between them), and vllama counts
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from vllama.engines.argv import flag_number, flag_value, has_flag
from vllama.engines.base import TuningRequest
from vllama.machine.types import Accelerator, Vendor
from vllama.models.types import ModelInfo

TENSOR = ("--tensor-parallel-size", "-tp")
PIPELINE = ("--pipeline-parallel-size", "-pp")
DATA = ("--data-parallel-size", "-dp")
NODES = ("--nnodes", "-n")
BACKEND = "--distributed-executor-backend"
SEQUENCES_A_REPLICA = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Processes that share the model (`tensor` × `pipeline`), and the number of copies.

    `gpus` are the GPUs of this machine that are used; it is empty without GPUs, or where the user's
    flags decide (`given`).
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    gpus: tuple[Accelerator, ...] = ()
    given: bool = False

    @property
    def shards(self) -> int:
        """Number of parts that one copy of the model is split into."""
        return self.tensor * self.pipeline

    @property
    def processes(self) -> int:
        """Number of workers on all machines."""
        return self.shards * self.data

    def args(self) -> tuple[str, ...]:
        """Return the flags, without vLLM's defaults and the user's own."""
        if self.given:
            return ()
        pairs = ((TENSOR[0], self.tensor), (PIPELINE[0], self.pipeline), (DATA[0], self.data))
        return tuple(word for name, n in pairs if n > 1 for word in (name, str(n)))

    def describe(self) -> str:
        """Describe the layout in a part of a sentence."""
        parts = [f"tensor parallel {self.tensor}"] if self.tensor > 1 else []
        parts += [f"pipeline parallel {self.pipeline}"] if self.pipeline > 1 else []
        parts += [f"{self.data} copies (data parallel)"] if self.data > 1 else []
        return ", ".join(parts) or "one GPU"


def parse_layout(args: Sequence[str]) -> Layout | None:
    """Return the layout that the user's flags ask for, None if they ask for none."""
    if not any(has_flag(args, *names) for names in (TENSOR, PIPELINE, DATA, NODES, (BACKEND,))):
        return None
    return Layout(
        tensor=flag_number(args, *TENSOR, default=1),
        pipeline=flag_number(args, *PIPELINE, default=1),
        data=flag_number(args, *DATA, default=1),
        given=True,
    )


def spans_machines(args: Sequence[str]) -> bool:
    """Tell whether the user's flags spread one server over several machines."""
    return flag_value(args, BACKEND) == "ray" or flag_number(args, *NODES, default=1) > 1


def can_divide(info: ModelInfo, tensor: int) -> bool:
    """Tell whether the model's heads can be shared among `tensor` GPUs.

    There may be fewer key/value heads than GPUs; each is then copied to the same number of GPUs.
    """
    heads = info.head_count or 1
    kv_heads = max(info.head_count_kv or (heads,))
    return heads % tensor == 0 and (kv_heads % tensor == 0 or tensor % kv_heads == 0)


def iterate_shapes(info: ModelInfo, gpus: int) -> Iterator[tuple[int, int]]:
    """Yield (tensor, pipeline) for up to `gpus` GPUs, best first.

    Tensor parallelism alone comes first, because it makes each answer faster; a pipeline does not.
    Fewer GPUs come first within each.
    """
    tensors = [count for count in range(1, gpus + 1) if can_divide(info, count)]
    yield from ((tensor, 1) for tensor in tensors)
    most = info.block_count or 1
    for count in range(2, gpus + 1):
        for tensor in reversed(tensors):
            if count % tensor == 0 and 1 < count // tensor <= most:
                yield tensor, count // tensor


def group_equal(gpus: Iterable[Accelerator]) -> list[list[Accelerator]]:
    """Return the GPUs that tell their memory, the roomiest first, as equal as vLLM takes them."""
    groups: dict[object, list[Accelerator]] = {}
    for gpu in sorted(gpus, key=lambda gpu: (-gpu.free_bytes, gpu.index)):
        if gpu.total_bytes:
            kind = gpu.compute_capability, round(gpu.total_bytes / 1024**3)
            groups.setdefault(kind, []).append(gpu)
    return list(groups.values())


def choose_layout(
    request: TuningRequest, fits: Callable[[Sequence[Accelerator], int], bool]
) -> Layout:
    """Choose the layout with the fewest equal GPUs that hold the model, the roomiest first.

    If all are asked for, the layout uses every GPU, if the model can be divided so.

    `fits(gpus, shards)` decides about memory. If nothing fits, the result is the widest layout, so
    that its numbers tell how much is missing. Copies are made only for more parallel requests than
    one copy takes, on GPUs that are left.
    """
    platform, info = request.platform, request.info
    usable = platform.of(Vendor.NVIDIA) or platform.of(Vendor.AMD)
    gpus = sorted(usable, key=lambda gpu: (-gpu.free_bytes, gpu.index))
    if request.all_gpus:
        for tensor, pipeline in iterate_shapes(info, len(gpus)):
            if tensor * pipeline == len(gpus):
                return Layout(tensor=tensor, pipeline=pipeline, gpus=tuple(gpus))
    widest = Layout()
    for equal in group_equal(usable):
        for tensor, pipeline in iterate_shapes(info, len(equal)):
            count = tensor * pipeline
            layout = Layout(tensor=tensor, pipeline=pipeline, gpus=tuple(equal[:count]))
            if fits(equal[:count], count):
                wanted = -(-(request.settings.parallel or 1) // SEQUENCES_A_REPLICA)
                able = (n for n in range(2, wanted + 1) if fits(equal[: count * n], count))
                data = max((n for n in able if count * n <= len(equal)), default=1)
                return replace(layout, data=data, gpus=tuple(equal[: count * data]))
            widest = max(widest, layout, key=lambda one: len(one.gpus))
    return widest
