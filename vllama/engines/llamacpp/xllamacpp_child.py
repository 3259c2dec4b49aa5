"""Start xllamacpp's server, which is llama.cpp's own, with a command line of `llama-server`.

This is a program that the Python with xllamacpp runs; nothing imports it. The package has the
server only as a class, whose parameters are llama.cpp's `common_params`. Any of them can be set by
its name there: `--set speculative.draft.n_max=8`.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

KEY_VARIABLE = "LLAMA_API_KEY"
# llama-server's flags → the parameter that takes the value
TEXTS = {
    "-m --model": "model.path",
    "-mm --mmproj": "mmproj.path",
    "-md --model-draft --spec-draft-model": "speculative.draft.mparams.path",
    "--chat-template": "chat_template",
    "--slot-save-path": "slot_save_path",
}
NUMBERS = {
    "--port": "port",
    "-c --ctx-size": "n_ctx",
    "-np --parallel": "n_parallel",
    "-b --batch-size": "n_batch",
    "-ub --ubatch-size": "n_ubatch",
    "-ngl --gpu-layers --n-gpu-layers": "n_gpu_layers",
    "-t --threads": "cpuparams.n_threads",
    "-tb --threads-batch": "cpuparams_batch.n_threads",
    "-cram --cache-ram": "cache_ram_mib",
    "--cache-reuse": "n_cache_reuse",
    "-mg --main-gpu": "main_gpu",
    "-ngld --n-gpu-layers-draft": "speculative.draft.n_gpu_layers",
    "--draft-max --spec-draft-n-max": "speculative.draft.n_max",
    "--draft-min --spec-draft-n-min": "speculative.draft.n_min",
    "-lv --verbosity": "verbosity",
}
SWITCHES = {
    "-kvu --kv-unified": ("kv_unified", True),
    "-no-kvu --no-kv-unified": ("kv_unified", False),
    "--jinja": ("use_jinja", True),
    "--no-jinja": ("use_jinja", False),
    "--embedding --embeddings": ("embedding", True),
    "--metrics": ("endpoint_metrics", True),
    "--no-webui --no-ui": ("ui", False),
    "--offline": ("offline", True),
    "--swa-full": ("swa_full", True),
    "--context-shift": ("ctx_shift", True),
    "--no-warmup": ("warmup", False),
}
MAX_DEVICES = 128
FLASH = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}


def build_parser() -> argparse.ArgumentParser:
    """Return a parser of the part of llama-server's command line that is supported here."""
    known = argparse.ArgumentParser(
        prog="xllamacpp", usage="%(prog)s [options]", allow_abbrev=False
    )
    known.add_argument("--version", action="store_true")
    for names, target in TEXTS.items():
        known.add_argument(*names.split(), dest=target)
    for names, target in NUMBERS.items():
        known.add_argument(*names.split(), dest=target, type=int)
    for names, (target, value) in SWITCHES.items():
        known.add_argument(*names.split(), dest=target, action="store_const", const=value)
    known.add_argument("--host", dest="hostnames", type=lambda host: [host])
    known.add_argument("-a", "--alias", dest="model_alias", type=lambda name: {name})
    known.add_argument("-ts", "--tensor-split", dest="tensor_split", type=parse_split)
    known.add_argument("-dev", "--device", choices=("none",))
    known.add_argument("-fa", "--flash-attn", choices=FLASH)
    known.add_argument("-ctk", "--cache-type-k")
    known.add_argument("-ctv", "--cache-type-v")
    known.add_argument("--reasoning-format", type=str.upper)
    known.add_argument("--pooling", type=str.upper)
    known.add_argument("--chat-template-kwargs", type=json.loads)
    known.add_argument("--rerank", "--reranking", action="store_true")
    known.add_argument("--spec-type", type=str.upper)
    known.add_argument("--lora", action="append", default=[])
    known.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    return known


def parse_split(text: str) -> list[float]:
    """Return the shares of all the devices that llama.cpp has room for."""
    shares = [float(share) for share in text.replace("/", ",").split(",")]
    return shares + [0.0] * (MAX_DEVICES - len(shares))


def set_parameter(params: Any, path: str, value: object) -> None:
    """Set a parameter by its dotted name; a text is converted to the type of the old value."""
    *parents, name = path.split(".")
    for parent in parents:
        params = getattr(params, parent)
    old = getattr(params, name)
    if isinstance(value, str) and isinstance(old, bool):
        value = value.lower() in ("1", "true", "on", "yes")
    elif isinstance(value, str) and isinstance(old, int | float):
        value = type(old)(value)
    setattr(params, name, value)


def build_parameters(given: dict[str, Any]) -> Any:
    """Return llama.cpp's parameters for a parsed command line."""
    import xllamacpp as cpp

    params = cpp.CommonParams()
    params.fit_params = False  # as the variable LLAMA_ARG_FIT
    special: dict[str, Callable[[Any], dict[str, object]]] = {
        "flash_attn": lambda word: {
            "flash_attn_type": cpp.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{FLASH[word]}"]
        },
        "cache_type_k": lambda word: {"cache_type_k": get_kv_type(cpp, word)},
        "cache_type_v": lambda word: {"cache_type_v": get_kv_type(cpp, word)},
        "reasoning_format": lambda word: {
            "reasoning_format": cpp.common_reasoning_format[
                f"COMMON_REASONING_FORMAT_{word.replace('-', '_')}"
            ]
        },
        "pooling": lambda word: {
            "pooling_type": cpp.llama_pooling_type[f"LLAMA_POOLING_TYPE_{word}"]
        },
        "rerank": lambda on: (
            {"embedding": True, "pooling_type": cpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK}
            if on
            else {}
        ),
        "chat_template_kwargs": lambda switches: {
            "default_template_kwargs": {name: json.dumps(value) for name, value in switches.items()}
        },
        "lora": lambda paths: {"lora_adapters": [load_adapter(cpp, path) for path in paths]},
        "speculative.draft.mparams.path": lambda path: {
            "speculative.draft.mparams.path": path,
            "speculative.types": [cpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE],
        },
        "spec_type": lambda word: {
            "speculative.types": [
                cpp.common_speculative_type[f"COMMON_SPECULATIVE_TYPE_{word.replace('-', '_')}"]
            ]
        },
        "device": lambda word: {"n_gpu_layers": 0},
        "set": lambda pairs: dict(pair.split("=", 1) for pair in pairs),
    }
    for target, value in given.items():
        if value is None:
            continue
        values = special[target](value) if target in special else {target: value}
        for path, item in values.items():
            set_parameter(params, path, item)
    params.sse_ping_interval = -1  # a ping would be a sign of life of a hung engine
    if key := os.environ.get(KEY_VARIABLE):
        params.api_keys = [key]
    return params


def get_kv_type(cpp: Any, word: str) -> Any:
    """Return a number format by its name, such as "q8_0"."""
    return cpp.ggml_type[f"GGML_TYPE_{word.upper()}"]


def load_adapter(cpp: Any, path: str) -> Any:
    """Return a LoRA adapter at full strength."""
    return cpp.CommonAdapterLoraInfo(path, 1.0)


def main() -> None:
    """Serve until a signal ends the process; it listens at once and loads the model after that."""
    given = vars(build_parser().parse_args())
    if given.pop("version"):
        import xllamacpp  # which has to be importable too

        sys.stdout.write(f"{xllamacpp.__version__}\n")
        return
    try:
        params = build_parameters(given)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        sys.exit(f"error: invalid argument: {error}")
    import xllamacpp

    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:  # the lines that it printed say why
        sys.exit(f"error: {error}")
    assert server is not None  # it stops when no reference is left
    signal.pause()


if __name__ == "__main__":
    main()
