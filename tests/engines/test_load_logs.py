"""What engines print while they load, as recorded: devices, layers and buffers."""

import pytest

from vllama.engines.base import Mode, Settings
from vllama.engines.llamacpp.output import read_load
from vllama.engines.vllm.adapter import ENGINE as VLLM

MIB = 1024**2
# 9 of 17 layers on lavapipe, split; the source of llama-cpp-python 0.3.36
VULKAN = """\
0.00.2 I llama_prepare_model_devices: using device Vulkan1 (llvmpipe (LLVM 15.0.6, 256 bits)) \
(unknown id) - 2048 MiB free
0.00.2 I llama_prepare_model_devices: using device Vulkan0 (AMD Radeon RX 7900 (RADV NAVI31)) \
(0000:03:00.0) - 2048 MiB free
0.00.3 I load_tensors: offloading 8 repeating layers to GPU
0.00.3 I load_tensors: offloaded 9/17 layers to GPU
0.00.3 I load_tensors:   CPU_Mapped model buffer size =   164.20 MiB
0.00.3 I load_tensors:      Vulkan0 model buffer size =    45.00 MiB
0.00.3 I load_tensors:      Vulkan1 model buffer size =    85.00 MiB
0.00.4 I llama_context: Vulkan_Host  output buffer size =     0.12 MiB
0.00.4 I llama_kv_cache:        CPU KV buffer size =    32.00 MiB
0.00.4 I llama_kv_cache:    Vulkan0 KV buffer size =     4.00 MiB
0.00.4 I llama_kv_cache:    Vulkan1 KV buffer size =    28.00 MiB
0.00.5 I sched_reserve:    Vulkan1 compute buffer size =    31.00 MiB
0.00.5 I sched_reserve:    Vulkan0 compute buffer size =    11.00 MiB
0.00.5 I sched_reserve: Vulkan_Host compute buffer size =     8.00 MiB
"""
CUDA_2024 = """\
llm_load_tensors: offloading 61 repeating layers to GPU
llm_load_tensors: offloaded 62/62 layers to GPU
llm_load_tensors:        CPU buffer size =  1190.00 MiB
llm_load_tensors:      CUDA0 buffer size = 18870.00 MiB
llama_kv_cache_init:      CUDA0 KV buffer size =   256.00 MiB
llama_new_context_with_model:  CUDA_Host  output buffer size =     0.50 MiB
llama_new_context_with_model:      CUDA0 compute buffer size =   304.00 MiB
llama_new_context_with_model:  CUDA_Host compute buffer size =    24.00 MiB
"""
CUDA_2025 = """\
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3090) - 23806 MiB free
llama_model_load_from_file_impl: using device CUDA1 (NVIDIA RTX A6000) - 48000 MiB free
load_tensors: offloaded 31/31 layers to GPU
load_tensors:   CPU_Mapped model buffer size =    28.00 MiB
load_tensors:        CUDA0 model buffer size =    92.00 MiB
llama_kv_cache_unified:      CUDA0 KV buffer size =    90.00 MiB
"""
METAL = """\
load_tensors: offloaded 31/31 layers to GPU
load_tensors:   CPU_Mapped model buffer size =    28.00 MiB
load_tensors:  MTL0_Mapped model buffer size =    92.00 MiB
llama_memory_recurrent:       MTL0 RS buffer size =    10.00 MiB
sched_reserve:       MTL0 compute buffer size =    15.00 MiB
"""
ROCM = """\
using device ROCm0 (AMD Radeon RX 7900 XTX) (0000:03:00.0) - 24000 MiB free
load_tensors: offloaded 10/31 layers to GPU
load_tensors:          CPU model buffer size =    60.00 MiB
load_tensors:   CPU_REPACK model buffer size =    30.00 MiB
load_tensors:        ROCm0 model buffer size =    40.00 MiB
load_tensors: offloaded 5/5 layers to GPU
"""
CPU = """\
load_tensors:   CPU_Mapped model buffer size =    92.10 MiB
llama_context:        CPU  output buffer size =     0.19 MiB
llama_kv_cache:        CPU KV buffer size =    90.00 MiB
"""
# two ggml-rpc-server on loopback; the source of llama-cpp-python 0.3.36
RPC = """\
0.01.0 I llama_prepare_model_devices: using device RPC0 (127.0.0.1:50152) (unknown id) - 24105 MiB \
free
0.01.0 I llama_prepare_model_devices: using device RPC1 (127.0.0.1:50153) (unknown id) - 24105 MiB \
free
0.01.4 I load_tensors: offloaded 31/31 layers to GPU
0.01.4 I load_tensors:   CPU_Mapped model buffer size =    28.69 MiB
0.01.4 I load_tensors: RPC0[127.0.0.1:50152] model buffer size =    35.93 MiB
0.01.4 I load_tensors: RPC0[127.0.0.1:50153] model buffer size =    56.17 MiB
0.02.3 I llama_context:        CPU  output buffer size =     0.19 MiB
0.02.4 I llama_kv_cache: RPC0[127.0.0.1:50152] KV buffer size =   102.00 MiB
0.02.5 I llama_kv_cache: RPC0[127.0.0.1:50153] KV buffer size =    78.00 MiB
"""
LOST = f"""\
ggml_cuda_init: failed to initialize CUDA: unknown error
warning: no usable GPU found, --gpu-layers option will be ignored
{CPU}"""


@pytest.mark.parametrize(
    ("log", "gpus", "ram", "layers", "buses", "problem"),
    [
        (VULKAN, {"Vulkan1": 144, "Vulkan0": 60}, 204.32, (9, 17),
         {"Vulkan1": "", "Vulkan0": "0000:03:00.0"}, ""),
        (CUDA_2024, {"CUDA0": 19430}, 1214.5, (62, 62), {}, ""),
        (CUDA_2025, {"CUDA0": 182}, 28, (31, 31), {"CUDA0": "", "CUDA1": ""}, ""),
        (METAL, {"MTL0": 117}, 28, (31, 31), {}, ""),
        (ROCM, {"ROCm0": 40}, 90, (10, 31), {"ROCm0": "0000:03:00.0"}, ""),
        (RPC, {"RPC0[127.0.0.1:50152]": 137.93, "RPC0[127.0.0.1:50153]": 134.17}, 28.88, (31, 31),
         {"RPC0": "", "RPC1": ""}, ""),
        (CPU, {}, 182.29, (None, 0), {}, ""),
        (LOST, {}, 182.29, (None, 0), {}, "failed to initialize CUDA: unknown error"),
        ("ggml_vulkan: No devices found.", {}, 0, (None, 0), {}, "ggml_vulkan: No devices found"),
        ("ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA "
         "runtime version", {}, 0, (None, 0), {},
         "failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version"),
    ],
)  # fmt: skip
def test_llama_cpp(log, gpus, ram, layers, buses, problem):
    report = read_load(log.splitlines())
    assert list(report.gpu_bytes) == list(gpus)
    assert list(report.gpu_bytes.values()) == pytest.approx([x * MIB for x in gpus.values()], abs=2)
    assert report.ram_bytes == pytest.approx(ram * MIB, abs=2)
    assert ((report.layers, report.of_layers), report.buses) == (layers, buses)
    assert report.problem == problem


def test_a_quiet_log_tells_nothing():
    assert read_load(["srv load_model: loading model", "main: model loaded"]) is None
    assert VLLM.read_load(["INFO Starting to load model m..."], set_for(-1)) is None


def set_for(layers, *gpus):
    values = {"mode": Mode.CHAT, "alias": "m", "context_length": 1}
    return Settings(**values, gpu_layers=layers, gpus=gpus)


V1 = [
    "(Worker_TP0 pid=7) INFO 11-29 [gpu_model_runner.py:4] Model loading took 7.5 GiB memory and "
    "3.2 seconds",
    "(Worker_TP1 pid=8) INFO 11-29 [gpu_model_runner.py:4] Model loading took 7.5 GiB memory and "
    "3.4 seconds",
    "(Worker_TP0 pid=7) INFO 11-29 [gpu_worker.py:7] Available KV cache memory: 10.5 GiB",
    "(EngineCore pid=6) INFO 11-29 [kv_cache_utils.py:24] GPU KV cache size: 86,000 tokens",
]
V0 = [
    "INFO 01-10 model_runner.py:1115] Loading model weights took 14.0 GB",
    "INFO 01-10 worker.py:241] model weights take 14.00GiB; non_torch_memory takes 0.10GiB; the "
    "rest of the memory reserved for KV Cache is 4.00GiB.",
]


@pytest.mark.parametrize(
    ("lines", "settings", "on_gpus", "in_ram"),
    [
        (V1, set_for(-1, 2, 3), {"GPU 2": 18, "GPU 3": 18}, 0),
        (V0, set_for(-1), {"GPU 0": 18}, 0),
        (V0, set_for(0), {}, 18),
    ],
)
def test_vllm(lines, settings, on_gpus, in_ram):
    report = VLLM.read_load(lines, settings)
    assert {name: size / 1024**3 for name, size in report.gpu_bytes.items()} == on_gpus
    assert report.ram_bytes / 1024**3 == in_ram
