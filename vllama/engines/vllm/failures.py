"""What vLLM prints when it fails, and what to tell the user. Recorded from 0.32, CPU build.

Its last lines only say that the engine core failed. The cause stands far above them, in the output
of another process, so these patterns are searched in all lines that are kept, most telling first.
"""

from __future__ import annotations

from vllama.engines.base import FailurePattern
from vllama.engines.failures import GENERAL
from vllama.supervise.spec import Fault

# what it prints and answers between the death of its core and its own end
DEAD_LINE = r"EngineDeadError: "
DEAD_WORDS = ("EngineCore encountered an issue", "EngineDeadError")
# the first line about the death of its core, by the core itself or by the server that watches it
FIRST_DEAD_LINE = (
    r"^(?:\([^)]*\) )?ERROR [^\]]*\] (?:EngineCore encountered a fatal error"
    r"|(?:Engine core|Worker) proc \S+ died unexpectedly|AsyncLLM output_handler failed)"
)
FAILURES = (
    FailurePattern(
        pattern=r"error: unrecognized arguments: (.+)",
        cause="it does not know the arguments {0}",
        hint="correct what stands after -- (or engine_args); vllm serve --help=all lists them",
    ),
    FailurePattern(
        pattern=r"error: (argument .+)",
        cause="it does not take an argument: {0}",
        hint="correct what stands after -- (or engine_args); vllm serve --help=all lists them",
    ),
    FailurePattern(
        pattern=r"invalid (tool call|reasoning) parser: ?(\S+)|"
        r"(Tool|Reasoning) parser '?([\w-]+)'? not found",
        cause="this vLLM does not know the {0}{2} parser {1}{3}",
        hint="update vLLM, or name another after --",
    ),
    FailurePattern(
        pattern=r"Model architectures? \[?'?([^'\]]+)'?\]? (?:are|is) not supported",
        cause="vLLM does not support the architecture {0}",
        hint="update vLLM, or choose --engine llama.cpp with a GGUF of the model",
        fault=Fault.ARCHITECTURE,
    ),
    FailurePattern(
        pattern=r"model type `([^`]+)` but Transformers does not recognize this architecture",
        cause="the installed transformers does not know models of the type {0}",
        hint="update vLLM, or choose --engine llama.cpp with a GGUF of the model",
        fault=Fault.ARCHITECTURE,
    ),
    FailurePattern(
        pattern=r"(?i)CUDA out of memory|HIP out of memory|torch\.(?:cuda\.)?OutOfMemoryError",
        cause="the model and its context do not fit into the GPU's memory",
        hint="use a smaller context (--ctx) or a smaller model, or free the GPU",
        fault=Fault.MEMORY,
    ),
    FailurePattern(
        pattern=r"No available memory for the cache blocks",
        cause="the memory it was given leaves no room for the context",
        hint="use a smaller context (--ctx) or a smaller model, or give it more memory",
        fault=Fault.MEMORY,
    ),
    FailurePattern(
        pattern=r"Free memory on device \S+ \(([\d.]+)/([\d.]+) GiB\) on startup is less than"
        r" desired GPU memory utilization",
        cause="only {0} of the GPU's {1} GiB are free, which is less than it was to take",
        hint="free the GPU, or give it less: -- --gpu-memory-utilization 0.5",
        fault=Fault.MEMORY,
    ),
    FailurePattern(
        pattern=r"Available memory on node \S+ \(([\d.]+)/([\d.]+) GiB\) on (?:startup|kv cache)",
        cause="only {0} of the {1} GiB of its memory node are free, which is less than it was to"
        " take",
        hint="use a smaller context (--ctx), or free memory",
        fault=Fault.MEMORY,
    ),
    FailurePattern(
        pattern=r"max seq len \((\d+)\), \(?([\d.]+ \w+) KV cache is needed, which is larger than"
        r" the available KV cache memory \(([\d.]+ \w+)\)",
        cause="a context of {0} tokens needs {1} of cache, and it has {2}",
        hint="use a smaller context (--ctx), or give it more: -- --kv-cache-memory-bytes 4G",
        fault=Fault.MEMORY,
    ),
    FailurePattern(
        pattern=r"User-specified max_model_len \((\d+)\) is greater than the derived"
        r" max_model_len \(.*?=(\d+)",
        cause="the model was made for a context of {1} tokens, not {0}",
        hint="use a smaller context (--ctx)",
    ),
    FailurePattern(
        pattern=r"(?i)Failed to infer device type|No CUDA GPUs are available|"
        r"libcuda\.so\.1: cannot open",
        cause="this build of vLLM is for GPUs, and it sees none",
        hint="check the driver (nvidia-smi), or install its CPU build: vllama engines install vllm",
        fault=Fault.MISMATCH,
    ),
    FailurePattern(
        pattern=r"No module named '?([\w.]+)'?",
        cause="its installation is incomplete: the module {0} is missing",
        hint="install it again: vllama engines install vllm",
        fault=Fault.MISMATCH,
    ),
    FailurePattern(
        pattern=r"CPU Generator does not use offset",
        cause="a request with a seed ended it: its CPU build cannot take seeds for long prompts",
        hint="leave out --enable-chunked-prefill and --max-num-batched-tokens after --",
    ),
    FailurePattern(
        pattern=r"Can't load (?:the configuration|tokenizer)|Invalid repository ID or local"
        r" directory|Repo id must be in the form|Cannot find an appropriate cached snapshot",
        cause="the model's folder is not complete",
        hint="pull the model again",
    ),
    FailurePattern(
        pattern=r"SafetensorError|Error while deserializing header|incomplete metadata",
        cause="the model's weights are cut or damaged",
        hint="remove the model and pull it again",
    ),
    FailurePattern(
        pattern=r"Unsupported quantization|Unknown quantization method: (\S+)|"
        r"quantization (?:method )?.* not supported",
        cause="this vLLM cannot read the model's quantisation",
        hint="choose another quantisation of the model, or --engine llama.cpp with a GGUF",
        fault=Fault.QUANTISATION,
    ),
    FailurePattern(
        pattern=r"Failed core proc\(s\): \{[^}]*: -9\b",
        cause="its core was killed (SIGKILL); if nobody did that, the system ran out of memory",
        hint="use a smaller context (--ctx) or a smaller model, or free memory",
        fault=Fault.MEMORY,
    ),
    *GENERAL,
    # the first error of a worker or of the core says more than the last line, whatever it is
    FailurePattern(
        pattern=r"^\((?:Vllm)?(?:Worker|EngineCore)[^)]*\) ERROR .*?\b"
        r"((?:\w+\.)*\w*(?:Error|Exception): (?!Engine core init|WorkerProc init|Worker failed"
        r"|EngineCore encountered).+)",
        cause="{0}",
        oldest=True,
    ),
    FailurePattern(
        pattern=r"EngineDeadError",
        cause="its core ended without a word: it was killed, or crashed in native code; if nobody"
        " killed it, the system may have run out of memory",
        hint="use a smaller context (--ctx) or a smaller model, or free memory",
    ),
)
