"""llama.cpp through `python -m llama_cpp.server`, the server of llama-cpp-python.

The measured facts are in docs/reference/engines.md#llama-cpp-python (0.3.36). Those that decide
here:

* It answers one request at a time, under a lock; without `--interrupt_requests false` a second
  request cuts the first.
* `/v1/models` waits for that lock, so the probe asks for `/health`, which does not exist: its 404
  means that the model is loaded, because the port is bound only after that.
* Its defaults (context 2048, no GPU layers, logits of all tokens) are all replaced. The context has
  to be a multiple of 256.
* Completions take no schema, so vllama refuses a format there.
* Its streams have no token counts: prompts are counted with its tokenizer, answers by their events.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from vllama.chat.engine.traits import SchemaStyle, Tokenizer, Traits, VectorStyle
from vllama.chat.grammar_schema import FRAGILE
from vllama.engines.base import Engine, Installation, Missing, Overhead, SearchPaths
from vllama.engines.llamacpp.driver import MIB, Flag, LlamaCpp, Start, find_backend
from vllama.engines.llamacpp.output import build_failures
from vllama.engines.locate import find_package
from vllama.engines.recipe import MachineKind, Recipe, Wheels
from vllama.engines.request_body import LLAMACPP
from vllama.machine.environments.layout import Step
from vllama.supervise.spec import HttpProbe

DISTRIBUTION = "llama-cpp-python"
SERVER_NEEDS = ("fastapi", "uvicorn", "sse_starlette", "starlette_context", "pydantic_settings")

COMPILER = "c++|g++|clang++|cl"
CHECK = ("python", "-I", "-m", "llama_cpp.server", "--help")
SOURCE = Step(requirements=("llama-cpp-python[server]>=0.3.16",))
# the index has only its source (75 MB), which takes minutes to compile
RECIPE = Recipe(
    wheels=(
        Wheels(
            # the installer's cache may hold a build for the CPU under the same name
            steps=(replace(SOURCE, extra_args=("--no-cache-dir",)),),
            on=(MachineKind.NVIDIA,),
            programs=("nvcc", COMPILER),
            env=(("CMAKE_ARGS", "-DGGML_CUDA=on"),),
            compiled=True,
            check=CHECK,
            download_bytes=100 * MIB,
            disk_bytes=900 * MIB,
            note="it is compiled with CUDA, which takes 10 minutes or more",
        ),
        Wheels(
            steps=(SOURCE,),
            programs=(COMPILER,),
            compiled=True,
            check=CHECK,
            download_bytes=100 * MIB,
            disk_bytes=300 * MIB,
            note="it is compiled, which takes about 4 minutes on 2 cores",
        ),
    ),
)

# numbers of ggml's types (enum ggml_type in ggml.h)
KV_TYPES = {"f16": 1, "q4_0": 2, "q8_0": 8}


def locate(search_paths: SearchPaths, engine: str) -> Installation | Missing:
    """Look for the package with its server, and for an accelerator's libraries in it."""
    found = find_package(
        search_paths, engine, distributions=(DISTRIBUTION,), needs=("llama_cpp", *SERVER_NEEDS)
    )
    if isinstance(found, Missing):
        return explain_missing_compiler(found, search_paths)
    libraries = (found.module_folder("llama_cpp") or Path()) / "lib"
    return found.installation(backend=find_backend(libraries))


def explain_missing_compiler(absent: Missing, search_paths: SearchPaths) -> Missing:
    """Return why it is missing: it comes as source only, so a compiler is needed too."""
    if any(shutil.which(name, path=search_paths.search) for name in COMPILER.split("|")):
        return absent
    reason = f"{absent.reason}, and there is no C++ compiler to build it"
    return replace(absent, reason=reason, installable=False)


def get_program(installation: Installation) -> tuple[str, ...]:
    """Return the first words of the command line; -P keeps the current folder's modules out."""
    return (str(installation.python), "-P", "-m", "llama_cpp.server")


def _format_bool(value: bool) -> str:
    return "true" if value else "false"


def _turn_end(start: Start) -> str | None:
    """Return the setting that ends an answer at a token; llama.cpp knows most by their text."""
    end = start.settings.turn_end
    return f"tokenizer.ggml.eot_token_id=int:{end[1]}" if end else None


def _kv_type(start: Start) -> int | None:
    return KV_TYPES.get(start.settings.kv_cache_type or "")


FLAGS: tuple[Flag, ...] = (
    ("--model", lambda start: start.bundle.path),
    ("--model_alias", lambda start: start.settings.alias),
    ("--host", lambda start: start.endpoint.host),
    ("--port", lambda start: start.endpoint.port),
    ("--n_ctx", lambda start: start.settings.context_length),
    ("--n_batch", lambda start: start.batch or 512),
    ("--n_ubatch", lambda start: start.batch or 512),
    ("--n_gpu_layers", lambda start: start.settings.gpu_layers),
    ("--n_threads", lambda start: start.settings.threads),
    ("--n_threads_batch", lambda start: start.settings.batch_threads),
    ("--embedding", lambda start: _format_bool(start.embeds)),
    ("--flash_attn", lambda start: _format_bool(start.settings.flash_attention)),
    ("--logits_all", lambda start: _format_bool(start.settings.logprobs)),
    ("--use_mmap", lambda start: _format_bool(True)),
    ("--use_mlock", lambda start: _format_bool(False)),
    ("--interrupt_requests", lambda start: _format_bool(False)),
    ("--verbose", lambda start: _format_bool(True)),
    ("--type_k", _kv_type),
    ("--type_v", _kv_type),
    ("--kv_overrides", _turn_end),
    ("--lora_path", lambda start: start.bundle.adapters[:1] or None),
)

TRAITS = Traits(
    context_length=0,
    parameters={
        name: name
        for name in (
            "temperature", "top_p", "top_k", "min_p", "repeat_penalty", "presence_penalty",
            "frequency_penalty", "seed", "stop", "max_tokens",
        )
    },
    usage_in_stream=False,
    takes_calls=False,  # templates that want the arguments as objects get strings
    parses_tools=False,
    splits_reasoning=False,
    takes_content_parts=False,
    takes_nulls=False,
    roles=frozenset({"system", "user", "assistant", "tool"}),
    schema_style=SchemaStyle.JSON_OBJECT,
    schema_compiler=FRAGILE,
    vector_style=VectorStyle.PER_TOKEN,
    tokenizer=Tokenizer(
        tokenize_path="/extras/tokenize", detokenize_path="/extras/detokenize", drops_control=True
    ),
    seed_bits=32,
    replays=True,
    formats_completions=False,
    passed_fields=LLAMACPP,
)  # fmt: skip

ENGINE: Engine = LlamaCpp(
    name="llama-cpp-python",
    title="llama.cpp (llama-cpp-python)",
    aliases=("llama_cpp",),
    locate=locate,
    program=get_program,
    flags=FLAGS,
    base_traits=TRAITS,
    probe=HttpProbe(path="/health", ready_statuses=frozenset({404}), verify_path="/v1/models"),
    key_variable="API_KEY",
    by_platform=(
        (85, "Apple silicon, with Metal"),
        (75, "macOS"),
        (45, "runs on any CPU"),
    ),
    failures=build_failures("update it with: vllama engines install llama-cpp-python --upgrade"),
    install=RECIPE,
    max_adapters=1,
    overhead=Overhead(
        fixed_bytes=90 * MIB, logits_rows=512, batch_rows=512, context_multiple=256, repacks=True
    ),
    most_slots=1,
    logprobs_at_start=True,
)
