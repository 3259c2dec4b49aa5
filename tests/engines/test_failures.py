"""What engines print when they do not start: the cause that users are told, and its kind."""

from __future__ import annotations

import signal

import pytest

from vllama.engines.failures import compile_failures, explain_exit
from vllama.engines.registry import load_engines
from vllama.supervise.spec import Diagnosis, Exit, Fault

ENGINES = load_engines()
LLAMA = ("llama-cpp-python", "llama-server")
STARTED = sorted(ENGINES)
MEMORY, ARCHITECTURE = Fault.MEMORY, Fault.ARCHITECTURE
QUANTIZATION, MISMATCH, PORT = Fault.QUANTIZATION, Fault.MISMATCH, Fault.PORT

SAID = [
    *((name, line, fault) for name in LLAMA for line, fault in (
        ("load_model: unknown model architecture: 'zzama'", ARCHITECTURE),
        ("gguf_init_from_file: this GGUF file is version 4 but this software", ARCHITECTURE),
        ("gguf_init_from_file_impl: tensor 'blk.0.ffn_up.weight' has invalid ggml type 99. "
         "should be in [0, 40)", QUANTIZATION),
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
        ("ValueError: Unknown quantization method: exl2. Must be one of", QUANTIZATION),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
         MISMATCH),
        ("RuntimeError: Failed to infer device type", MISMATCH),
        ("(EngineCore pid=1) ERROR 01-01 [core.py:1] torch.AcceleratorError: CUDA error: no kernel "
         "image is available for execution on the device", MISMATCH),
        ("vllm: error: unrecognized arguments: --nope", None),
        ("(EngineCore pid=1) ERROR 01-01 [core.py:1] ValueError: something else", None),
    )),
    ("transformers", "ImportError: Loading an AWQ model requires autoawq", QUANTIZATION),
    ("mlx-lm", "[metal::malloc] Attempting to allocate 9 bytes", MEMORY),
    ("max", "ValueError: architecture 'Foo' is not supported", ARCHITECTURE),
    ("max", "model requires more memory than there is", MEMORY),
    ("sglang", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
     MEMORY),
    ("sglang", "ValueError: Model architectures ['Foo'] are not supported for now.", ARCHITECTURE),
    ("sglang", "ModuleNotFoundError: No module named 'sgl_kernel'", MISMATCH),
    ("tinygrad", "KeyError: 'general.foo'", ARCHITECTURE),
]  # fmt: skip
BOUND = (
    "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 4): "
    "address already in use"
)
MAGIC = "E gguf_init_from_reader: invalid magic characters: 'hell', expected 'GGUF'"
GIVES_UP = "E srv  llama_server: exiting due to model loading error"
RECORDED = [
    ("llama-cpp-python", ["llama_model_load: error loading model: unknown model architecture: 'z'"],
     1, "does not support the architecture 'z'", ARCHITECTURE),
    # the most telling pattern wins over the newest line
    ("llama-cpp-python", ["llama_model_load: error loading model: unknown model architecture: 'z'",
      "ValueError: Failed to load model from file: x.gguf"], 1, "architecture 'z'", ARCHITECTURE),
    ("llama-cpp-python", ["llama_model_load: error loading model: tensor 'blk.9.ffn_up.weight' "
      "data is not within the file bounds, model is corrupted or incomplete",
      "ValueError: Failed to load model from file: /models/a.gguf"], 1, "truncated or", None),
    ("llama-cpp-python",
     ["gguf_init_from_reader: invalid magic characters: 'hell', expected 'GGUF'"],
     1, "not a GGUF", None),
    ("llama-cpp-python", [BOUND], 3, "port was taken", PORT),
    ("llama-cpp-python", ["ValueError: Failed to create llama_context"],
     1, "do not fit into memory", MEMORY),
    ("llama-cpp-python", ["llama_adapter_lora_init_from_file_ptr: failed to apply lora adapter: "
      "tensor 'blk.0.attn_q.weight' has incorrect shape (hint: maybe wrong base model?)",
      "set_adapters_lora: adapters = 0x7fd20447e260"],
     -11, "cannot use the model's adapter", None),
    ("llama-cpp-python", ["ModuleNotFoundError: No module named 'sse_starlette'"],
     1, "sse_starlette", MISMATCH),
    ("llama-cpp-python", ["something else"], 7, "exited with code 7: something else", None),
    ("llama-cpp-python", [], -9, "out of memory", MEMORY),
    ("llama-cpp-python", [], -11, "SIGSEGV", None),
    ("llama-cpp-python", [], -4, "another CPU", MISMATCH),
    ("llama-cpp-python", [], -40, "signal", None),
    # llama-server b10434 and xllamacpp 2026.10.11549
    ("llama-server", ["E gguf_init_from_file: failed to open GGUF file '/nope.gguf' (No such file "
      "or directory)", "E llama_model_load: error loading model: llama_model_loader: failed to "
      "load model from /nope.gguf", "E llama_model_load_from_file_impl: failed to load model",
      "E srv    load_model: failed to load model, '/nope.gguf'", GIVES_UP],
     1, "cannot open '/nope.gguf': No such file or directory", None),
    ("llama-server", [MAGIC, "E llama_model_load: error loading model: llama_model_loader: failed "
      "to load model from /t.gguf", GIVES_UP], 1, "not a GGUF", None),
    ("llama-server", ["E llama_model_load: error loading model: tensor 'blk.16.ffn_down.weight' "
      "data is not within the file bounds, model is corrupted or incomplete",
      "E srv    load_model: failed to load model, '/cut.gguf'",
      "error: Failed to init server, please check the input params."], 1, "truncated or", None),
    ("llama-server", ["E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, "
      "port: 45131", "E srv  llama_server: exiting due to HTTP server error"],
     1, "port was taken", PORT),
    ("llama-server",
     ["E ggml_aligned_malloc: insufficient memory (attempted to allocate 10991.25 MB)",
      "E ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 11525160960",
      "E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv "
      "cache", "E cmn  common_init_: failed to create context with model '/m.gguf'",
      "E srv    load_model: failed to create_context with model '/m.gguf'",
      "E srv          init: exiting due to model loading error"],
     1, "do not fit into memory", MEMORY),
    ("llama-server", ["0.00.644.154 E llama_init_from_model: quantized V cache requires flash_attn "
      "to be enabled", "0.00.718.499 E common_fit_params: encountered an error while trying to fit "
      "params to free device memory: failed to create llama_context from model",
      "0.01.284.424 E cmn  common_init_: failed to create context with model '/m.gguf'",
      "0.01.300.212 E srv          init: exiting due to model loading error",
      "error: Failed to init server, please check the input params."],
     1, "it cannot create its context: quantized V cache requires flash_attn", None),
    ("llama-cpp-python", ["llama_init_from_model: quantized V cache requires flash_attn to be "
      "enabled", "ValueError: Failed to create llama_context"],
     1, "quantized V cache requires flash_attn", None),
    ("llama-server", ["E llama_init_from_model: SPLIT_MODE_TENSOR requires flash_attn",
      "E srv    load_model: failed to create_context with model '/m.gguf'"],
     1, "SPLIT_MODE_TENSOR requires flash_attn", None),
    # no words for these: they are shown themselves
    ("llama-server", ["0.00.1 W cmn: a warning", "0.00.2 E srv  load_model: something never seen",
      "0.00.3 E srv  init: exiting due to model loading error",
      "error: Failed to init server, please check the input params."],
     1, "srv  load_model: something never seen", None),
    ("llama-server", ["/src/ggml/src/ggml.c:1729: GGML_ASSERT(n_dims >= 1) failed"],
     -6, "it aborted: GGML_ASSERT(n_dims >= 1) failed", None),
    ("llama-server", ["CUDA error: an illegal memory access was encountered"],
     -6, "it aborted: CUDA error: an illegal memory access", None),
    ("llama-server", ["terminate called after throwing an instance of 'std::runtime_error'",
      "  what():  invalid vector subscript"], -6, "it aborted: invalid vector subscript", None),
    ("llama-server", ["terminate called after throwing an instance of 'std::bad_alloc'",
      "  what():  std::bad_alloc"], -6, "do not fit into memory", MEMORY),
    ("llama-server", [MAGIC, "E llama_adapter_lora_init_from_file_ptr: failed to apply lora "
      "adapter: failed to load lora adapter from file",
      "E cmn  common_init_: failed to load lora adapter '/t.gguf'",
      "E srv    load_model: failed to create_context with model '/m.gguf'"],
     1, "cannot use the model's adapter", None),
    ("llama-server", ["E clip_init: failed to load model '/t.gguf': clip_model_loader: failed to "
      "load CLIP model from /t.gguf. Does this file exist?",
      "E mtmd_init_from_file: error: Failed to load CLIP model from /t.gguf",
      "E srv    load_model: failed to load multimodal model, '/t.gguf'"], 1, "projector", None),
    ("llama-server", [MAGIC, "E common_speculative_init_result: failed to load draft model, "
      "'/t.gguf'", "E srv    load_model: failed to load draft model, '/t.gguf'"],
     1, "draft model '/t.gguf'", None),
    ("llama-server", ["error: invalid argument: --nonsense"],
     1, "does not support the argument --nonsense", None),
    ("llama-server", ['error while handling argument "--draft-max": the argument has been removed. '
      "use --spec"],
     1, "does not accept the argument --draft-max: the argument has been removed. use", None),
    ("llama-server", ["xllamacpp: error: unrecognized arguments: --nonsense 1"],
     1, "does not support the argument --nonsense 1", None),
    ("llama-server", ["error: invalid argument: 'GGML_TYPE_ZZ'"], 1, "GGML_TYPE_ZZ", None),
    ("llama-server", ["llama-server: error while loading shared libraries: libllama.so.0: cannot "
      "open shared object file: No such file or directory"],
     1, "its library libllama.so.0 is missing", MISMATCH),
    ("transformers", ["ValueError: Unrecognized processing class in /m. Can't instantiate a "
      "processor, a tokenizer, an image processor, a video processor or a feature extractor"],
     1, "no tokenizer that Transformers can read", None),
    ("transformers", ["MemoryError: Cannot allocate memory"], 1, "do not fit into memory", MEMORY),
    ("transformers", ["RuntimeError: unable to mmap 269060552 bytes from file "
      "</m/model.safetensors>: Cannot allocate memory (12)"], 1, "do not fit into memory", MEMORY),
    ("transformers", [BOUND], 3, "port was taken", PORT),
    ("transformers", ["ValueError: The checkpoint you are trying to load has model type `zzama` "
      "but Transformers does not recognize this architecture. This could be because of an issue"],
     1, "does not support the model's architecture", ARCHITECTURE),
    ("transformers", ["safetensors_rust.SafetensorError: Error while deserializing header: header "
      "too large"], 1, "truncated or damaged", None),
    ("mlx-lm", ["2026-11-21 - ERROR - mlx_lm.server generation thread died: Model type zzama not "
      "supported.", "ValueError: Model type zzama not supported."],
     None, "does not support the architecture zzama", ARCHITECTURE),
    ("mlx-lm", ["2026-11-21 - ERROR - mlx_lm.server generation thread died: [load_safetensors] "
      "Invalid json header length /m/model.safetensors"],
     None, "could not load the model ([load_safetensors] Invalid json header", None),
    ("mlx-lm", ["2026-11-21 - ERROR - mlx_lm.server generation thread died: Resource temporarily "
      "unavailable", "RuntimeError: Resource temporarily unavailable"],
     None, "could not start a thread: too little memory", MEMORY),
    ("max", ["ValueError: The encoding 'bfloat16' is not compatible with the selected device type "
      "'cpu'."], 1, "cannot use weights in bfloat16 on a device of type cpu", QUANTIZATION),
    ("max", ["The network port 8000 is already in use"], 1, "port was taken", PORT),
    ("max", ["Error: No such option: --fast"], 2, "does not support the argument --fast", None),
    ("tinygrad", ["ValueError: Invalid tokenizer preset 'smollm'"],
     1, "does not support the tokenizer 'smollm'", ARCHITECTURE),
    ("tinygrad", ["FileNotFoundError: [Errno 2] No such file or directory: 'clang'"],
     1, "compiles for the CPU with clang", MISMATCH),
    ("tinygrad", ["ModuleNotFoundError: No module named 'tinygrad.llm.kernels'"],
     1, "release of tinygrad is incomplete", MISMATCH),
    ("sglang", ["    from sgl_kernel import copy_all_layer_kv_cache_cpu",
      "ImportError: cannot import name 'copy_all_layer_kv_cache_cpu' from 'sgl_kernel'"],
     1, "kernels are not built for this machine", MISMATCH),
    ("sglang-jax", ["TypeError: LogitsProcessor.__call__() missing 1 required positional argument: "
      "'mesh'"], -9, "because of a bug", ARCHITECTURE),
]  # fmt: skip
# vLLM 0.32: pydantic's reports, and who watches a worker
LINK = "    For further information visit https://errors.pydantic.dev/2.14/v/value_error"
REPORT = "pydantic_core._pydantic_core.ValidationError: {} for CacheConfig"
IN_CORE = "(EngineCore pid=7) ERROR 11-29 10:00:00 [core.py:9] "
WATCHED = IN_CORE + "Worker proc VllmWorker-0 died unexpectedly (exit code: {}), shutting down it."
CANCELLED = IN_CORE + "RuntimeError: cancelled"
FIRST_CAUSES = [
    ([REPORT.format("1 validation error"), "  Value error, a (4) is less than b (8). [type=value_er"
      "ror, input_value=ArgsKwargs((), {'c...: 1}), input_type=ArgsKwargs]", LINK],
     "a (4) is less than b (8).", None),
    ([f"(APIServer pid=3) {REPORT.format('2 validation errors')}", "(APIServer pid=3) share",
      "(APIServer pid=3)   Input should be less than or equal to 1 [type=less_than_equal, input_val"
      "ue=3.0, input_type=float]", f"(APIServer pid=3) {LINK}", "(APIServer pid=3) size.0",
      "(APIServer pid=3)   Value error, too [small]", "(APIServer pid=3) by far [type=value_error]",
      "(APIServer pid=3) goodbye"],
     "share: Input should be less than or equal to 1; size.0: too [small] by far", None),
    ([IN_CORE + REPORT.format("1 validation error"), f"{IN_CORE}  Value error, no sym [type=value]",
      IN_CORE + LINK, "RuntimeError: Engine core initialization failed. See root cause above."],
     "ValidationError: no sym", None),
    ([REPORT.format("1 validation error"), "  Value error, Model architectures ['Foo'] are not "
      "supported for now. [type=value_error]", LINK], "the architecture Foo", ARCHITECTURE),
    ([WATCHED.format(-9), CANCELLED, "EngineDeadError"], "a worker was killed (SIGKILL)", MEMORY),
    ([WATCHED.format(-11), CANCELLED], "VllmWorker-0 died unexpectedly (exit code: -11", None),
    ([IN_CORE + "ValueError: bad shape", WATCHED.format(1), CANCELLED], "ValueError: bad shape",
     None),
    (["RuntimeError: Process ApiServer_1 (PID: 9) died with exit code -9"], "SIGKILL", MEMORY),
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


def explain(name: str, *lines: str, code: int | None = 1) -> Diagnosis:
    return compile_failures(ENGINES[name].failures)(Exit(code=code, output=lines))


@pytest.mark.parametrize(("name", "lines", "code", "cause", "fault"), RECORDED)
def test_a_recorded_exit_has_its_cause(
    name: str, lines: list[str], code: int | None, cause: str, fault: Fault | None
) -> None:
    told = explain(name, *lines, code=code)
    assert cause in told.cause
    assert (told.fault, told.retryable) == (fault, fault is PORT)
    assert told.hint or name != "llama-server"


@pytest.mark.parametrize(("lines", "cause", "fault"), FIRST_CAUSES)
def test_vllm_s_first_cause_and_not_its_last_line(
    lines: list[str], cause: str, fault: Fault | None
) -> None:
    told = explain("vllm", *lines)
    assert cause in told.cause and "pydantic" not in told.cause
    assert told.fault is fault


@pytest.mark.parametrize(("name", "line", "fault"), SAID)
def test_an_engine_s_own_words(name: str, line: str, fault: Fault | None) -> None:
    assert explain(name, "before", line, "after").fault is fault


@pytest.mark.parametrize("name", STARTED)
@pytest.mark.parametrize(("line", "fault"), BY_ANY)
def test_what_any_of_them_may_print(name: str, line: str, fault: Fault) -> None:
    assert explain(name, "before", line, "after").fault is fault


def test_a_trace_may_follow_the_line_that_tells() -> None:
    told = Exit(code=-6, output=("#9 0x1 in foo ()",) * 200, first_error=SAID[0][1])
    assert compile_failures(ENGINES[SAID[0][0]].failures)(told).fault is SAID[0][2]


@pytest.mark.parametrize("name", STARTED)
@pytest.mark.parametrize(
    ("number", "fault"),
    [(signal.SIGKILL, MEMORY), (signal.SIGILL, MISMATCH), (signal.SIGSEGV, None)],
)
def test_signals(name: str, number: int, fault: Fault | None) -> None:
    assert explain(name, "nothing telling", code=-number).fault is fault


@pytest.mark.parametrize("name", STARTED)
def test_only_a_port_is_tried_again_as_it_was(name: str) -> None:
    for pattern in ENGINES[name].failures:
        assert pattern.retryable is (pattern.fault is PORT), pattern


def test_a_stall_is_no_kind_of_failure_that_another_plan_would_avoid() -> None:
    for name in STARTED:
        explain = compile_failures(ENGINES[name].failures)
        assert explain(Exit(code=None, stalled=True, output=("loading",))).fault is None


def test_stall_names_the_last_line() -> None:
    exit_ = Exit(code=None, stalled=True, output=("loading tensors", ""))
    assert "loading tensors" in compile_failures(())(exit_).cause


def test_a_very_long_line_is_cut() -> None:
    assert len(compile_failures(())(Exit(code=1, output=("x" * 5000,))).cause) < 400


def test_who_kills_without_need_is_not_taken_for_want_of_memory() -> None:
    assert explain_exit(Exit(code=-9, oom=True)).fault is Fault.MEMORY
    assert explain_exit(Exit(code=-9)).fault is Fault.MEMORY  # nobody knows
    by_hand = explain_exit(Exit(code=-9, oom=False))
    assert by_hand.fault is None and "enough memory was free" in by_hand.cause
