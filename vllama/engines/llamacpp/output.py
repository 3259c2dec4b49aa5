"""Patterns of llama.cpp's output on loads and failures: the same in all its servers.

On devices, layers and buffers, from src/llama.cpp ("using device"), llama-model.cpp ("offloaded"),
llama-kv-cache.cpp and llama-context.cpp. Older releases name other functions and no bus address.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from vllama.engines.base import FailurePattern
from vllama.engines.devices import MIB, REMEDY, LoadReport
from vllama.engines.failures import GENERAL, Row, make_patterns
from vllama.supervise.spec import Fault

DEVICE = re.compile(r"using device (\w+) .*?(?:\(([0-9a-f]{4}:[0-9a-f:.]+)\) )?- \d+ MiB free")
LAYERS = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
BUFFER = re.compile(r":\s+(\S+)\s+(?:\w+\s+)*buffer size = +([\d.]+) MiB")
HOST = re.compile(r"CPU|BLAS|AMX|Host|\w+_Host$")
"""Buffers in RAM; the names of others begin with that of a GPU ("CUDA0", "MTL0_Mapped")."""
PROBLEM = re.compile(
    r"(?i)failed to initialize (?:CUDA|ROCm|HIP|MUSA)\b.*|driver version is insufficient.*"
    r"|no usable GPU found|ggml_vulkan: No devices found|no (?:CUDA|ROCm)-capable device.*"
)


def build_failures(update: str, *more: Row) -> tuple[FailurePattern, ...]:
    """Return the patterns. `update` tells how to get a newer version; `more` are a server's own."""
    return make_patterns(
        # parts of a model come first: what llama.cpp prints after these blames the model
        (r"failed to apply lora adapter: (.+)"
         r"|Failed to (?:initialize|set) LoRA adapter from lora path"
         r"|failed to load lora adapter",
         "it cannot use the model's adapter",
         "create the model again, with an adapter that was trained on it", None),
        (r"failed to load multimodal model|mtmd_init_from_file: error: (.+)",
         "it cannot use the model's projector, which shows it images",
         "pull the model again: projector and model have to be made for each other", None),
        (r"failed to load draft model, '([^']*)'", "it cannot load the draft model '{0}'",
         "choose a GGUF model with the same vocabulary", None),
        (r"unknown model architecture: '([^']*)'",
         "this build of llama.cpp does not know the architecture '{0}'",
         f"{update}, or choose another model", Fault.ARCHITECTURE),
        (r"data is not within the file bounds|model is corrupted or incomplete",
         "the model's file is cut or damaged", "remove it and pull it again", None),
        (r"invalid magic characters|failed to read magic", "the file is not a GGUF model",
         "choose a .gguf file or a model's name", None),
        (r"this GGUF file is version (\d+) but",
         "the file has GGUF version {0}, newer than this llama.cpp", update, Fault.ARCHITECTURE),
        (r"tensor '[^']*' has invalid ggml type (\d+)",
         "this build of llama.cpp does not know the weights' number format (type {0})",
         f"{update}, or choose another quantization", Fault.QUANTIZATION),
        (r"failed to open GGUF file '([^']*)' \((.+)\)", "it cannot open '{0}': {1}",
         "pull the model again, or correct its path", None),
        (r"(?i)address already in use|couldn't bind (?:HTTP server )?socket"
         r"|failed to bind|HTTP server error: bind",
         "its port was taken by another program", "try again: vllama chooses another one each time",
         Fault.PORT),
        # what follows it blames the memory, whatever the reason is
        (r"llama_init_from_model: (?!.*(?:allocate|memory))"
         r"(?:failed to initialize the context: )?(.+)", "it cannot make its context: {0}",
         "change what the message names (--context-length, OLLAMA_FLASH_ATTENTION, "
         "OLLAMA_KV_CACHE_TYPE)",
         None),
        (r"(?i)failed to allocate|out of memory|cudaMalloc failed|std::bad_alloc"
         r"|Failed to create llama_context|MemoryError|unable to allocate"
         r"|insufficient memory|mem_buffer != NULL|failed to map segment|unable to mmap",
         "the model and its context do not fit into memory",
         "use a smaller --context-length, fewer requests at once (--num-parallel) or a smaller "
         "model", Fault.MEMORY),
        *more,
        (r": No module named '?([\w.]+)'?",
         "its installation is incomplete: the module {0} is missing",
         "remove its environment and install it again (vllama engines install)", Fault.MISMATCH),
        (r"Failed to connect to (\S+)|RPC handshake failed for (\S+)",
         "RPC server {0}{1} does not respond", "start ggml-rpc-server there", Fault.REMOTE),
        (r"RPC not supported in this build|arguments?: --rpc", "this build of llama.cpp has no RPC",
         "use a build with GGML_RPC=ON: llama.cpp's releases, or engines install --compile",
         Fault.MISMATCH),
        *GENERAL,
        (r"error while handling argument \"--device\": invalid device: (\S+)",
         "it finds no GPU {0}", REMEDY, Fault.DEVICE),
        (r"error while handling argument \"(\S+)\": (\S.*)",
         "it does not take the argument {0}: {1}",
         "correct engine_args (what stands after '--'), or update llama.cpp", None),
        (r"error: (?:invalid|unknown|unrecognized) arguments?:? (.+)"
         r"|error while handling argument \"(\S+)\"",
         "it does not know the argument {0}{1}",
         "correct engine_args (what stands after '--'), or update llama.cpp", None),
        (r"error loading model: (.*(?:wrong number of tensors|missing tensor"
         r"|key not found|wrong shape).*)",
         "it cannot load the model: {0}",
         "a file that was made for Ollama's own engine does not load here: pull the same "
         "model from the hub (vllama pull hf.co/org/repo)", Fault.ARCHITECTURE),
        (r"error loading model: (.+)", "it cannot load the model: {0}", None, None),
        (r"gguf_init_from_\w+: (.+)", "it cannot read the model: {0}", None, None),
        (r"(GGML_ASSERT\(.+\) failed.*|(?:CUDA|ROCm|MUSA) error: .+)|what\(\): +(.+)",
         "it aborted: {0}{1}", update, None),
        # the first error is the cause of the others
        FailurePattern(pattern=r"^(?:[\d.]+ )?E (.+)", cause="{0}", hint=update, oldest=True),
        (r"Failed to load model from file|failed to load model|Failed to init server",
         "it cannot load the model", None, None),
    )  # fmt: skip


def read_load(lines: Sequence[str]) -> LoadReport | None:
    """Return the report in the log of a load; None if nothing, as at a low verbosity."""
    sizes: Counter[str] = Counter()
    buses, counts, problems = {}, [], []
    for line in lines:
        if found := BUFFER.search(line):
            kind = found[1] if "[" in found[1] else found[1].partition("_")[0]
            name = "" if HOST.match(found[1]) else kind
            sizes[name] += round(float(found[2]) * MIB)
        elif found := DEVICE.search(line):
            sizes[found[1]], buses[found[1]] = 0, found[2] or ""
        elif found := LAYERS.search(line):
            counts.append((int(found[1]), int(found[2])))
        elif found := PROBLEM.search(line):
            problems.append(found[0])
    if not sizes.total() and not problems:
        return None
    layers, of_layers = counts[0] if counts else (None, 0)  # those of a draft model follow
    return LoadReport(
        ram_bytes=sizes.pop("", 0),
        gpu_bytes={name: size for name, size in sizes.items() if size},
        layers=layers,
        of_layers=of_layers,
        buses=buses,
        problem=problems[0] if problems else "",
    )
