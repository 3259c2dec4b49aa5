"""What llama.cpp prints when it fails, the same in all its servers."""

from __future__ import annotations

from vllama.engines.base import FailurePattern
from vllama.engines.failures import GENERAL
from vllama.supervise.spec import Fault


def build_failures(update: str, *more: FailurePattern) -> tuple[FailurePattern, ...]:
    """Return the patterns. `update` tells how to get a newer version; `more` are a server's own."""
    return (
        # parts of a model come first: what llama.cpp prints after these blames the model
        FailurePattern(
            pattern=r"failed to apply lora adapter: (.+)"
            r"|Failed to (?:initialize|set) LoRA adapter from lora path"
            r"|failed to load lora adapter",
            cause="it cannot use the model's adapter",
            hint="create the model again, with an adapter that was trained on it",
        ),
        FailurePattern(
            pattern=r"failed to load multimodal model|mtmd_init_from_file: error: (.+)",
            cause="it cannot use the model's projector, which shows it images",
            hint="pull the model again: projector and model have to be made for each other",
        ),
        FailurePattern(
            pattern=r"failed to load draft model, '([^']*)'",
            cause="it cannot load the draft model '{0}'",
            hint="choose a GGUF model with the same vocabulary",
        ),
        FailurePattern(
            pattern=r"unknown model architecture: '([^']*)'",
            cause="this build of llama.cpp does not know the architecture '{0}'",
            hint=f"{update}, or choose another model",
            fault=Fault.ARCHITECTURE,
        ),
        FailurePattern(
            pattern=r"data is not within the file bounds|model is corrupted or incomplete",
            cause="the model's file is cut or damaged",
            hint="remove it and pull it again",
        ),
        FailurePattern(
            pattern=r"invalid magic characters|failed to read magic",
            cause="the file is not a GGUF model",
            hint="choose a .gguf file or a model's name",
        ),
        FailurePattern(
            pattern=r"this GGUF file is version (\d+) but",
            cause="the file has GGUF version {0}, newer than this llama.cpp",
            hint=update,
            fault=Fault.ARCHITECTURE,
        ),
        FailurePattern(
            pattern=r"tensor '[^']*' has invalid ggml type (\d+)",
            cause="this build of llama.cpp does not know the weights' number format (type {0})",
            hint=f"{update}, or choose another quantisation",
            fault=Fault.QUANTISATION,
        ),
        FailurePattern(
            pattern=r"failed to open GGUF file '([^']*)' \((.+)\)",
            cause="it cannot open '{0}': {1}",
            hint="pull the model again, or correct its path",
        ),
        FailurePattern(
            pattern=r"(?i)address already in use|couldn't bind (?:HTTP server )?socket"
            r"|failed to bind|HTTP server error: bind",
            cause="its port was taken by another program",
            hint="try again: vllama chooses another one each time",
            retryable=True,
            fault=Fault.PORT,
        ),
        FailurePattern(
            pattern=r"(?i)failed to allocate|out of memory|cudaMalloc failed|std::bad_alloc"
            r"|Failed to create llama_context|MemoryError|unable to allocate"
            r"|insufficient memory|mem_buffer != NULL|failed to map segment|unable to mmap",
            cause="the model and its context do not fit into memory",
            hint="use a smaller context (--ctx), fewer requests at once (--parallel) or a smaller "
            "model",
            fault=Fault.MEMORY,
        ),
        *more,
        FailurePattern(
            pattern=r"No module named '?([\w.]+)'?",
            cause="its installation is incomplete: the module {0} is missing",
            hint="remove its environment and install it again (vllama engines install)",
            fault=Fault.MISMATCH,
        ),
        *GENERAL,
        FailurePattern(
            pattern=r"error while handling argument \"(\S+)\": (\S.*)",
            cause="it does not take the argument {0}: {1}",
            hint="correct engine_args (what stands after '--'), or update llama.cpp",
        ),
        FailurePattern(
            pattern=r"error: (?:invalid|unknown|unrecognized) arguments?:? (.+)"
            r"|error while handling argument \"(\S+)\"",
            cause="it does not know the argument {0}{1}",
            hint="correct engine_args (what stands after '--'), or update llama.cpp",
        ),
        FailurePattern(
            pattern=r"error loading model: (.*(?:wrong number of tensors|missing tensor"
            r"|key not found|wrong shape).*)",
            cause="it cannot load the model: {0}",
            hint="a file that was made for Ollama's own engine does not load here: pull the same "
            "model from the hub (vllama pull hf.co/org/repo)",
            fault=Fault.ARCHITECTURE,
        ),
        FailurePattern(
            pattern=r"failed to initialize the context: (.+)",
            cause="it cannot make its context: {0}",
            hint="change what the message names (--ctx, OLLAMA_FLASH_ATTENTION, "
            "OLLAMA_KV_CACHE_TYPE)",
        ),
        FailurePattern(pattern=r"error loading model: (.+)", cause="it cannot load the model: {0}"),
        FailurePattern(pattern=r"gguf_init_from_\w+: (.+)", cause="it cannot read the model: {0}"),
        FailurePattern(
            pattern=r"Failed to load model from file|failed to load model|Failed to init server",
            cause="it cannot load the model",
        ),
    )
