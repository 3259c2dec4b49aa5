"""What vLLM prints when it fails, and what to tell the user. Recorded from 0.32, CPU build.

Its last lines only say that the engine core failed. The cause stands far above them, in the output
of another process, so these patterns are searched in all lines that are kept, most telling first.
"""

from __future__ import annotations

from vllama.engines.base import FailurePattern
from vllama.engines.failures import GENERAL, make_patterns
from vllama.supervise.spec import Fault

# what it prints and answers between the death of its core and its own end
DEAD_LINE = r"EngineDeadError: "
DEAD_WORDS = ("EngineCore encountered an issue", "EngineDeadError")
# the first line about the death of its core, by the core itself or by the server that watches it
FIRST_DEAD_LINE = (
    r"^(?:\([^)]*\) )?ERROR [^\]]*\] (?:EngineCore encountered a fatal error"
    r"|(?:Engine core|Worker) proc \S+ died unexpectedly|AsyncLLM output_handler failed)"
)
FAILURES = make_patterns(
    (r"error: unrecognized arguments: (.+)", "it does not know the arguments {0}",
     "correct what stands after -- (or engine_args); vllm serve --help=all lists them", None),
    (r"error: (argument .+)", "it does not take an argument: {0}",
     "correct what stands after -- (or engine_args); vllm serve --help=all lists them", None),
    (r"invalid (tool call|reasoning) parser: ?(\S+)|"
     r"(Tool|Reasoning) parser '?([\w-]+)'? not found",
     "this vLLM does not know the {0}{2} parser {1}{3}", "update vLLM, or name another after --",
     None),
    (r"Model architectures? \[?'?([^'\]]+)'?\]? (?:are|is) not supported",
     "vLLM does not support the architecture {0}",
     "update vLLM, or choose --engine llama.cpp with a GGUF of the model", Fault.ARCHITECTURE),
    (r"model type `([^`]+)` but Transformers does not recognize this architecture",
     "the installed transformers does not know models of the type {0}",
     "update vLLM, or choose --engine llama.cpp with a GGUF of the model", Fault.ARCHITECTURE),
    (r"(?i)CUDA out of memory|HIP out of memory|torch\.(?:cuda\.)?OutOfMemoryError",
     "the model and its context do not fit into the GPU's memory",
     "use a smaller context (--ctx) or a smaller model, or free the GPU", Fault.MEMORY),
    (r"No available memory for the cache blocks",
     "the memory it was given leaves no room for the context",
     "use a smaller context (--ctx) or a smaller model, or give it more memory", Fault.MEMORY),
    (r"Free memory on device \S+ \(([\d.]+)/([\d.]+) GiB\) on startup is less than"
     r" desired GPU memory utilization",
     "only {0} of the GPU's {1} GiB are free, which is less than it was to take",
     "free the GPU, or give it less: -- --gpu-memory-utilization 0.5", Fault.MEMORY),
    (r"Available memory on node \S+ \(([\d.]+)/([\d.]+) GiB\) on (?:startup|kv cache)",
     "only {0} of the {1} GiB of its memory node are free, which is less than it was to take",
     "use a smaller context (--ctx), or free memory", Fault.MEMORY),
    (r"max seq len \((\d+)\), \(?([\d.]+ \w+) KV cache is needed, which is larger than"
     r" the available KV cache memory \(([\d.]+ \w+)\)",
     "a context of {0} tokens needs {1} of cache, and it has {2}",
     "use a smaller context (--ctx), or give it more: -- --kv-cache-memory-bytes 4G", Fault.MEMORY),
    (r"User-specified max_model_len \((\d+)\) is greater than the derived"
     r" max_model_len \(.*?=(\d+)",
     "the model was made for a context of {1} tokens, not {0}", "use a smaller context (--ctx)",
     None),
    (r"(?i)Failed to infer device type|No CUDA GPUs are available|"
     r"libcuda\.so\.1: cannot open",
     "this build of vLLM is for GPUs, and it sees none",
     "check the driver (nvidia-smi), or install its CPU build: vllama engines install vllm",
     Fault.MISMATCH),
    (r"No module named '?([\w.]+)'?", "its installation is incomplete: the module {0} is missing",
     "install it again: vllama engines install vllm", Fault.MISMATCH),
    (r"CPU Generator does not use offset",
     "a request with a seed ended it: its CPU build cannot take seeds for long prompts",
     "leave out --enable-chunked-prefill and --max-num-batched-tokens after --", None),
    (r"Can't load (?:the configuration|tokenizer)|Invalid repository ID or local"
     r" directory|Repo id must be in the form|Cannot find an appropriate cached snapshot",
     "the model's folder is not complete", "pull the model again", None),
    (r"SafetensorError|Error while deserializing header|incomplete metadata",
     "the model's weights are cut or damaged", "remove the model and pull it again", None),
    (r"Unsupported quantization|Unknown quantization method: (\S+)|"
     r"quantization (?:method )?.* not supported",
     "this vLLM cannot read the model's quantisation",
     "choose another quantisation of the model, or --engine llama.cpp with a GGUF",
     Fault.QUANTISATION),
    (r"Failed core proc\(s\): \{[^}]*: -9\b",
     "its core was killed (SIGKILL); if nobody did that, the system ran out of memory",
     "use a smaller context (--ctx) or a smaller model, or free memory", Fault.MEMORY),
    *GENERAL,
    # the first error of a worker or of the core says more than the last line, whatever it is
    FailurePattern(
        pattern=r"^\((?:Vllm)?(?:Worker|EngineCore)[^)]*\) ERROR .*?\b"
        r"((?:\w+\.)*\w*(?:Error|Exception): (?!Engine core init|WorkerProc init|Worker failed"
        r"|EngineCore encountered).+)",
        cause="{0}",
        oldest=True,
    ),
    (r"EngineDeadError",
     "its core ended without a word: it was killed, or crashed in native code; if nobody"
     " killed it, the system may have run out of memory",
     "use a smaller context (--ctx) or a smaller model, or free memory", None),
)  # fmt: skip
