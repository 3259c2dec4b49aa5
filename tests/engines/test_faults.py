"""What engines print when they do not start, and the kind of failure that it is."""

from __future__ import annotations

import signal

import pytest

from vllama.engines.failures import compile_failures
from vllama.engines.registry import load_engines
from vllama.supervise.spec import Exit, Fault

ENGINES = load_engines()
LLAMA = ("llama-cpp-python", "llama-server")
STARTED = sorted(name for name, engine in ENGINES.items() if hasattr(engine, "launch"))
MEMORY, ARCHITECTURE = Fault.MEMORY, Fault.ARCHITECTURE
QUANTISATION, MISMATCH, PORT = Fault.QUANTISATION, Fault.MISMATCH, Fault.PORT

SAID = [
    *((name, line, fault) for name in LLAMA for line, fault in (
        ("load_model: unknown model architecture: 'zzama'", ARCHITECTURE),
        ("gguf_init_from_file: this GGUF file is version 4 but this software", ARCHITECTURE),
        ("gguf_init_from_file_impl: tensor 'blk.0.ffn_up.weight' has invalid ggml type 99. "
         "should be in [0, 40)", QUANTISATION),
        ("ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 9", MEMORY),
        ("cudaMalloc failed: out of memory", MEMORY),
        ("ValueError: Failed to create llama_context", MEMORY),
        ("E ggml_aligned_malloc: insufficient memory (attempted to allocate  41.96 MB)", MEMORY),
        ("llama_model_load: error loading model: missing tensor 'output.weight'", ARCHITECTURE),
        ("failed to read magic", None),
        ("gguf_init_from_reader: tensor data is not within the file bounds", None),
        ("error: invalid argument: --nope", None),
    )),
    *(("vllm", line, fault) for line, fault in (
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", MEMORY),
        ("ValueError: No available memory for the cache blocks. Try increasing", MEMORY),
        ("ValueError: Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than desired "
         "GPU memory utilization (0.9, 71.2 GiB).", MEMORY),
        ("To serve at least one request with the model's max seq len (40960), (4.38 GiB KV cache "
         "is needed, which is larger than the available KV cache memory (1.0 GiB)", MEMORY),
        ("Failed core proc(s): {'EngineCore_DP0': -9}", MEMORY),
        ("Model architectures ['FooForCausalLM'] are not supported for now.", ARCHITECTURE),
        ("The checkpoint has model type `foo` but Transformers does not recognize this "
         "architecture.", ARCHITECTURE),
        ("ValueError: Unknown quantization method: exl2. Must be one of", QUANTISATION),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
         MISMATCH),
        ("RuntimeError: Failed to infer device type", MISMATCH),
        ("(EngineCore pid=1) ERROR 01-01 [core.py:1] torch.AcceleratorError: CUDA error: no kernel "
         "image is available for execution on the device", MISMATCH),
        ("vllm: error: unrecognized arguments: --nope", None),
        ("(EngineCore pid=1) ERROR 01-01 [core.py:1] ValueError: something else", None),
    )),
    ("transformers", "but Transformers does not recognize this architecture", ARCHITECTURE),
    ("transformers", "ImportError: Loading an AWQ model requires autoawq", QUANTISATION),
    ("mlx-lm", "ValueError: Model type foo not supported.", ARCHITECTURE),
    ("mlx-lm", "[metal::malloc] Attempting to allocate 9 bytes", MEMORY),
    ("max", "The encoding 'bfloat16' is not compatible with the selected device type 'cpu'",
     QUANTISATION),
    ("max", "ValueError: architecture 'Foo' is not supported", ARCHITECTURE),
    ("max", "model requires more memory than there is", MEMORY),
    ("sglang", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
     MEMORY),
    ("sglang", "ValueError: Model architectures ['Foo'] are not supported for now.", ARCHITECTURE),
    ("sglang", "ModuleNotFoundError: No module named 'sgl_kernel'", MISMATCH),
    ("tinygrad", "KeyError: 'general.foo'", ARCHITECTURE),
    ("tinygrad", "FileNotFoundError: [Errno 2] No such file or directory: 'clang'", MISMATCH),
]  # fmt: skip
BY_ANY = [
    ("OSError: [Errno 98] Address already in use", PORT),
    ("ImportError: libcudart.so.12: cannot open shared object file: No such file", MISMATCH),
    ("/lib/libc.so.6: version `GLIBC_2.38' not found (required by x)", MISMATCH),
    ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", MISMATCH),
    ("x: undefined symbol: _ZN3c104cuda", MISMATCH),
    ("terminate called after throwing an instance of 'std::bad_alloc'", MEMORY),
    ("torch.OutOfMemoryError: CUDA out of memory.", MEMORY),
    ("OSError: [Errno 12] Cannot allocate memory", MEMORY),
    ("RuntimeError: DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes", MEMORY),
    ("  what():  Resource temporarily unavailable", MEMORY),
    ("RuntimeError: can't start new thread", MEMORY),
]


def fault_of(name: str, *lines: str, code: int = 1) -> Fault | None:
    return compile_failures(ENGINES[name].failures)(Exit(code=code, output=lines)).fault


@pytest.mark.parametrize(("name", "line", "fault"), SAID)
def test_an_engine_s_own_words(name: str, line: str, fault: Fault | None) -> None:
    assert fault_of(name, "before", line, "after") is fault


@pytest.mark.parametrize("name", STARTED)
@pytest.mark.parametrize(("line", "fault"), BY_ANY)
def test_what_any_of_them_may_print(name: str, line: str, fault: Fault) -> None:
    assert fault_of(name, "before", line, "after") is fault


def test_a_trace_may_follow_the_line_that_tells() -> None:
    told = Exit(code=-6, output=("#9 0x1 in foo ()",) * 200, first_error=SAID[0][1])
    assert compile_failures(ENGINES[SAID[0][0]].failures)(told).fault is SAID[0][2]


@pytest.mark.parametrize("name", STARTED)
@pytest.mark.parametrize(
    ("number", "fault"),
    [(signal.SIGKILL, MEMORY), (signal.SIGILL, MISMATCH), (signal.SIGSEGV, None)],
)
def test_signals(name: str, number: int, fault: Fault | None) -> None:
    assert fault_of(name, "nothing telling", code=-number) is fault


@pytest.mark.parametrize("name", STARTED)
def test_only_a_port_is_tried_again_as_it_was(name: str) -> None:
    for pattern in ENGINES[name].failures:
        assert pattern.retryable is (pattern.fault is PORT), pattern


def test_a_stall_is_no_kind_of_failure_that_another_plan_would_avoid() -> None:
    for name in STARTED:
        explain = compile_failures(ENGINES[name].failures)
        assert explain(Exit(code=None, stalled=True, output=("loading",))).fault is None
