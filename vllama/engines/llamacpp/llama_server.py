"""llama.cpp through its own `llama-server`, or through xllamacpp where there is none.

xllamacpp is a wheel that contains the same server but no program, so nothing has to be compiled:
`xllamacpp_child` starts it with the same command line. It runs on any CPU and uses no AVX-512, so a
program that was built for this machine comes first: one that `vllama engines install --compile`
built, or one on PATH. The source is that of llama-cpp-python, the only package on the index that
holds all of llama.cpp; its build takes llama.cpp's own CMake options.

The measured facts are in docs/reference/engines.md#llama-server (b11434). Those that decide here:

* All slots share `-c`, so it is the context times the slots, and `--no-kv-unified` keeps one long
  conversation from taking the others' part.
* `--cache-ram` is 8 GiB by default, more than many a model, so the plan sets it.
* Chats with a `response_format` may put their JSON into a Markdown fence, which costs tokens, and
  each token of a streamed chat parses the whole answer again, which costs 7 % of the speed of a
  small model. So plain chats are rendered by vllama and sent as completions, which take a schema in
  `json_schema` and ignore `response_format`.
* More choices (`n`) than slots are refused, and each choice has a usage of its own, so vllama asks
  for one choice at a time.
* With `--context-shift` an answer goes on past the end of its context until its limit. Nothing in a
  request switches this off, so vllama sends the limit where a client does not want it. Models that
  cannot be shifted (images, recurrent ones) end the answer instead.
* Tool calls are left to vllama: it can make models call tools whose template knows none, and calls
  look the same with every engine. `tool_choice` "none" still shows the tools to the template.
* llama.cpp learns from the template how a model thinks: by the `reasoning_content` of earlier turns
  and a few known forms. Other models (b11434: LFM 2.5, Apertus) leave their thinking in the text.
  `has_unknown_thinking` recognizes their templates, and vllama splits the thinking off.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from vllama.chat.engine.traits import Slot, SlotRoutes, Traits
from vllama.chat.grammar_schema import CONVERTER
from vllama.chat.parsers.marks import PRESERVED
from vllama.chat.request import Call
from vllama.engines.base import Engine, Installation, Missing, Overhead, SearchPaths
from vllama.engines.devices import Device, parse_devices
from vllama.engines.llamacpp.driver import FAMILY_NAMES, MIB, Flag, LlamaCpp, Start, find_backend
from vllama.engines.llamacpp.llama_cpp_python import COMPILER
from vllama.engines.llamacpp.output import build_failures
from vllama.engines.llamacpp.slot_file import fit_slots
from vllama.engines.locate import PackageLocation, find_package
from vllama.engines.package_server import LLAMACPP_TOKENIZER
from vllama.engines.recipe import Archive, MachineKind, Recipe, Wheels
from vllama.engines.request_body import LLAMACPP
from vllama.machine.environments.layout import Step
from vllama.machine.probe import run_command
from vllama.models.types import Bundle, Capability
from vllama.supervise.spec import Fault, HttpProbe

DISTRIBUTION = "xllamacpp"
SOURCE_DISTRIBUTION = "llama-cpp-python"
CMAKE_ARGS = (
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_TOOLS_INSTALL=ON",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DGGML_RPC=ON",
    "-DLLAVA_BUILD=OFF",  # the tools build that library themselves
    # program and libraries into the package's folder, where they find each other
    "-DCMAKE_INSTALL_BINDIR=llama_cpp/lib",
    "-DCMAKE_INSTALL_LIBDIR=llama_cpp/lib",
    "-DCMAKE_INSTALL_RPATH=$ORIGIN",
)
PROGRAM = "llama-server"
UNIFIED = "llama"
"""All that llama.cpp's installer brings (app/llama.cpp): `llama serve` is its llama-server."""
CHILD = Path(__file__).with_name("xllamacpp_child.py")
NO_TEMPLATE = "{{ messages[0].content }}"
DRAFT_TOKENS = 4
LOOK_S = 5.0
ALL_LAYERS = 999
"""More layers than any model has; older versions have no word for all of them."""
TERSE_SINCE, TRACE_LEVEL = 9300, 4
"""Since about b9180 (llama.cpp PR 23021) the load's figures are printed at level 4 ("trace") only;
b9209 (PR 23282) ended a flood of them there."""
BY_HAND = (
    "install llama.cpp (macOS: brew install llama.cpp) or put its llama-server or llama on PATH"
)

ARCHS = ("x86_64", "amd64", "aarch64", "arm64")
X64, ARM64 = ("x86_64", "amd64"), ("aarch64", "arm64")
VARIANTS = "the project's own build, for any processor; nothing is compiled"
# the release that was tested, and the SHA-256 of its archives: renewed by scripts/renew_build.py
TAG = "b11434"
DIGESTS: Mapping[str, str] = {}
# what the builders of the releases run (their workflow `release.yml`), so the least that they need
GLIBC_X64, GLIBC_ARM64 = (2, 35), (2, 39)


_VULKAN = "the project's own build, with Vulkan for the GPU"
_GPUS = (MachineKind.NVIDIA, MachineKind.AMD, MachineKind.INTEL)
_CPUS = (MachineKind.CPU,)
_METAL = "the project's own build, with Metal"
# the end of the archive's name, the glibc that it needs, machines, systems, processors, what it
# takes to download and on the disk in MiB, and what to say of it
_ARCHIVES = (
    ("ubuntu-x64", GLIBC_X64, _CPUS, "linux", X64, 16, 60, VARIANTS),
    ("ubuntu-arm64", GLIBC_ARM64, _CPUS, "linux", ARM64, 14, 50, VARIANTS),
    ("ubuntu-vulkan-x64", GLIBC_X64, _GPUS, "linux", X64, 32, 110, _VULKAN),
    ("ubuntu-vulkan-arm64", GLIBC_ARM64, _GPUS, "linux", ARM64, 30, 100, _VULKAN),
    ("macos-arm64", None, (MachineKind.APPLE,), "darwin", ARM64, 12, 40, _METAL),
    ("macos-x64", None, _CPUS, "darwin", X64, 12, 40, VARIANTS),
)
BUILDS = tuple(
    Wheels(
        archive=Archive(
            project="llama.cpp",
            releases="https://api.github.com/repos/ggml-org/llama.cpp/releases",
            name=f"llama-{{tag}}-bin-{kind}.tar.gz",
            tag=TAG,
            program=PROGRAM,
            glibc=glibc,
            digests=DIGESTS,
        ),
        on=on,
        systems=(system,),
        archs=archs,
        check=(PROGRAM, "--version"),
        download_bytes=download * MIB,
        disk_bytes=disk * MIB,
        note=note,
    )
    for kind, glibc, on, system, archs, download, disk, note in _ARCHIVES
)
# the index has wheels for CPUs and Metal; those for other GPUs are elsewhere
WHEEL = Wheels(
    steps=(Step(requirements=("xllamacpp>=2026.10",), extra_args=("--only-binary=:all:",)),),
    on=(MachineKind.CPU, MachineKind.APPLE),
    archs=ARCHS,
    unused_features=("avx512f",),
    check=("python", "-I", str(CHILD), "--version"),
    download_bytes=34 * MIB,
    disk_bytes=110 * MIB,
    note="nothing is compiled",
)
SOURCE = Wheels(
    steps=(
        Step(
            requirements=(f"{SOURCE_DISTRIBUTION}>=0.3.36",),
            extra_args=(
                "--no-deps",
                f"--no-binary={SOURCE_DISTRIBUTION}",
                "--no-cache",  # it may hold a build with other options
            ),
        ),
    ),
    on=(MachineKind.CPU,),
    systems=("linux",),
    archs=ARCHS,
    programs=(COMPILER,),
    env=(("CMAKE_ARGS", " ".join(CMAKE_ARGS)),),
    compiled=True,
    download_bytes=80 * MIB,
    disk_bytes=300 * MIB,
    note="the fastest option: compiled for this processor, about 5 minutes on 2 cores",
)
RECIPE = Recipe(
    wheels=(
        *BUILDS,
        WHEEL,
        # with an NVIDIA GPU the build with CUDA is better
        replace(
            WHEEL,
            on=(MachineKind.AMD, MachineKind.INTEL),
            note="nothing is compiled; it does not use the GPU",
        ),
        SOURCE,
        replace(
            SOURCE,
            on=(MachineKind.NVIDIA,),
            programs=("nvcc", COMPILER),
            env=(("CMAKE_ARGS", " ".join((*CMAKE_ARGS, "-DGGML_CUDA=on"))),),
            disk_bytes=900 * MIB,
            note="the fastest option: compiled with CUDA for this GPU, 10 minutes or more",
        ),
    ),
    by_hand=BY_HAND,
)


def locate(search_paths: SearchPaths, engine: str) -> Installation | Missing:
    """Look for the program that was compiled here, then for one elsewhere, then for the wheel."""
    found = find_package(search_paths, engine, distributions=(SOURCE_DISTRIBUTION,))
    if not isinstance(found, Missing) and (compiled := find_compiled(found)):
        return replace(found, executable=compiled).installation(
            version=f"{SOURCE_DISTRIBUTION} {found.version}", devices=_list_devices(str(compiled))
        )
    find = partial(find_package, search_paths, engine, accepts=find_words)
    for name in (PROGRAM, UNIFIED):
        found = find(executable=name)
        if not isinstance(found, Missing) and found.executable:
            words = find_words(found.executable) or (str(found.executable),)
            one = found.installation(version=_read_build(words[0]), devices=_list_devices(*words))
            return replace(one, command=words[1:])
    found = find(distributions=(DISTRIBUTION,), executable=PROGRAM)
    if isinstance(found, Missing):
        return found
    package = found.module_folder(DISTRIBUTION) or Path()
    libraries = (package, package.with_name(f"{DISTRIBUTION}.libs"))
    backend = find_backend(*libraries)
    return found.installation(version=f"{DISTRIBUTION} {found.version}", backend=backend)


def find_words(program: Path) -> tuple[str, ...] | None:
    """Return how a server's command line begins; None for another project's `llama`."""
    if program.name == PROGRAM:
        return (str(program),)
    # llama.cpp's own says what it was built with, and lists its commands (app/llama.cpp: `help`)
    about = run_command([str(program), "--version"], timeout_s=LOOK_S / 2).text
    if not re.search(r"(?m)^version: .+\nbuilt with .+ for ", about):
        return None if program.name == UNIFIED else (str(program),)
    usage = run_command([str(program), "--help"], timeout_s=LOOK_S / 2).text
    has_commands = re.search(r"(?m)^ +serve ", usage)
    return (str(program), "serve") if has_commands else (str(program),)


def find_compiled(found: PackageLocation) -> Path | None:
    """Return the program in the package that was compiled with `CMAKE_ARGS`, if it has one."""
    folder = found.module_folder("llama_cpp")
    program = folder / "lib" / PROGRAM if folder else None
    return program if program and program.is_file() else None


def _read_build(program: str) -> str:
    """Return the build, such as "b11434", from `--version`; empty if it does not tell."""
    text = run_command([program, "--version"], timeout_s=LOOK_S).text
    # "version: 11434 (5a3d2f1)", or later "version: 0.5.0-dev (build 11434, commit 5a3d2f1)"
    found = re.search(r"version: (?:\S+ \(build )?(\S+?)(?:,| |$)", text, re.MULTILINE)
    return f"b{found[1]}" if found and found[1].isdigit() else (found[1] if found else "")


def _list_devices(*program: str) -> tuple[Device, ...]:
    return parse_devices(run_command([*program, "--list-devices"], timeout_s=LOOK_S).text)


def get_program(installation: Installation) -> tuple[str, ...]:
    """Return the first words of the command line; -I keeps the current folder's modules out."""
    if installation.executable is not None:
        return (str(installation.executable), *installation.command)
    return (str(installation.python), "-I", str(CHILD))


def _pooling(start: Start) -> str | None:
    """Return how to pool where the model does not say: the mean of all tokens."""
    known = Capability.EMBEDDING in start.settings.capabilities
    return "mean" if start.embeds and not known and not start.settings.ranks else None


def has_unknown_thinking(template: str | None) -> bool:
    """Tell whether llama.cpp might miss the thinking that a template marks with `<think>`."""
    learned = ("reasoning_content", "content.split('</think>')")
    return bool(re.search("</?think>", template or "")) and not any(
        sign in (template or "") for sign in learned
    )


def _leaves_thinking(start: Start) -> bool:
    return has_unknown_thinking(start.settings.chat_template)


def _template(start: Start) -> str | None:
    """Return the template that the file lacks; images reach the model through it."""
    if start.embeds:  # it would render the file's as it starts
        return NO_TEMPLATE
    return start.settings.chat_template if start.settings.template_family else None


def end_turn_at(token: str, number: int) -> Mapping[str, object]:
    """Return the fields that end a completion at a token.

    A control token has text only if it is to be preserved; then it can be a stop sequence.
    xllamacpp cannot override the file's own end of a turn.
    """
    return {"preserved_tokens": [token], "stop": [token]}


def _draft(start: Start) -> Path | None:
    return start.bundle.draft if start.settings.draft_kind else None


def _draft_tokens(bundle: Bundle) -> int:
    """Return how many tokens are drafted at once: Ollama's default if the model does not say."""
    value = bundle.parameters.get("draft_num_predict")
    return value if isinstance(value, int) else DRAFT_TOKENS


def _split(start: Start) -> str | None:
    """Return the layers of each GPU, in the order in which the process sees them."""
    shares = start.settings.gpu_shares
    return ",".join(map(str, shares)) if len(shares) > 1 else None


def _verbosity(start: Start) -> int | None:
    """Return the level at which a load prints its devices and buffers, where they matter.

    Builds before `TERSE_SINCE` print them by themselves, and far more at this level. It costs
    another 14 lines (1.5 KB) a request (docs/reference/engines.md#what-a-load-prints).
    """
    version = start.installation.version
    build = re.search(r"(?:^b|\.)(\d{4,})$", version)
    terse = int(build[1]) >= TERSE_SINCE if build else version.startswith(SOURCE_DISTRIBUTION)
    return TRACE_LEVEL if (terse or start.settings.rpc) and start.settings.gpu_layers else None


def _kv_type(start: Start) -> str | None:
    kind = start.settings.kv_cache_type
    return kind if kind != "fp8" else None


def _slot_dir(start: Start) -> str | None:
    """Return the folder with the slash at its end, which names of files are appended to."""
    return f"{start.settings.slot_dir}/" if start.settings.slot_dir is not None else None


class _Params(msgspec.Struct):
    dry_allowed_length: int = -1


class _Slot(msgspec.Struct):
    id: int
    is_processing: bool
    id_task: int = -1
    n_prompt_tokens: int = 0
    params: _Params = msgspec.field(default_factory=_Params)


def read_slots(answer: bytes) -> list[Slot]:
    """Read `GET /slots`; a slot that has not been used says little."""
    try:
        slots = msgspec.json.decode(answer, type=list[_Slot])
    except ValueError:
        return []
    return [
        Slot(
            number=each.id,
            mark=each.params.dry_allowed_length,
            tokens=each.n_prompt_tokens,
            is_idle=not each.is_processing,
            last_task=each.id_task,
        )
        for each in slots
    ]


SLOTS = SlotRoutes(
    list_path="/slots",
    act_path="/slots/{slot}?action={action}",
    slot_field="id_slot",
    mark_field="dry_allowed_length",  # without effect as long as `dry_multiplier` is 0
    read=read_slots,
    fit=fit_slots,
    make_room=Call(path="/completion", fields={"prompt": "-", "n_predict": 0}),
)
FLAGS: tuple[Flag, ...] = (
    ("--model", lambda start: start.bundle.path),
    ("--alias", lambda start: start.settings.alias),
    # what ends with .sock is a Unix socket (`tools/server/server-http.cpp`)
    ("--host", lambda start: start.endpoint.socket or start.endpoint.host),
    ("--port", lambda start: None if start.endpoint.socket else start.endpoint.port),
    ("--ctx-size", lambda start: start.settings.context_length * start.slots),
    ("--parallel", lambda start: start.slots),
    ("--no-kv-unified", lambda start: True),
    ("--context-shift", lambda start: not start.embeds or None),
    ("--batch-size", lambda start: start.batch),
    ("--ubatch-size", lambda start: start.batch),
    (
        "--n-gpu-layers",
        lambda start: ALL_LAYERS if start.settings.gpu_layers < 0 else start.settings.gpu_layers,
    ),
    ("--n-cpu-moe", lambda start: start.settings.cpu_moe or None),
    ("--tensor-split", _split),
    ("--rpc", lambda start: ",".join(start.settings.rpc) or None),  # before it is in --device
    ("--device", lambda start: ",".join(start.settings.devices) or None),
    ("--verbosity", _verbosity),
    ("--threads", lambda start: start.settings.threads),
    ("--threads-batch", lambda start: start.settings.batch_threads),
    ("--flash-attn", lambda start: "on" if start.settings.flash_attention else "off"),
    ("--cache-type-k", _kv_type),
    ("--cache-type-v", _kv_type),
    ("--cache-ram", lambda start: start.settings.prompt_cache_bytes // MIB),
    ("--slot-save-path", _slot_dir),
    ("--lora", lambda start: start.bundle.adapters),
    ("--model-draft", _draft),
    # a draft model is loaded without it, but not used
    ("--spec-type", lambda start: f"draft-{start.settings.draft_kind}" if _draft(start) else None),
    ("--spec-draft-n-max", lambda start: _draft_tokens(start.bundle) if _draft(start) else None),
    ("--mmproj", lambda start: start.bundle.projector if not start.embeds else None),
    ("--jinja", lambda start: True),
    ("--chat-template", _template),
    # thinking goes into a field of its own, or stays in the text as it was written
    ("--reasoning-format", lambda start: "none" if _leaves_thinking(start) else "deepseek"),
    (
        "--chat-template-kwargs",
        lambda start: '{"enable_thinking":true}' if _leaves_thinking(start) else None,
    ),
    ("--embeddings", lambda start: (start.embeds and not start.settings.ranks) or None),
    ("--reranking", lambda start: (start.embeds and start.settings.ranks) or None),
    ("--pooling", _pooling),
    ("--metrics", lambda start: True),
    ("--no-webui", lambda start: True),
    ("--offline", lambda start: True),
)

TRAITS = Traits(
    context_length=0,
    metrics_path="/metrics",
    shifts_context=True,
    parameters={
        name: name
        for name in (
            "temperature", "top_p", "top_k", "min_p", "typical_p", "repeat_penalty",
            "repeat_last_n", "presence_penalty", "frequency_penalty", "seed", "stop", "max_tokens",
        )
    }
    | {"num_keep": "n_keep"},
    fields_for_marks={"preserved_tokens": PRESERVED},  # a control token has no text otherwise
    parses_tools=False,
    silent_tool_choice="none",
    takes_prompt_lists=True,
    takes_template_kwargs=True,
    completion_schema="json_schema",
    schema_compiler=CONVERTER,
    free_line=r"llg error: (.+)",
    chats_by_completion=True,
    reasoning_field="reasoning_content",
    seed_bits=32,
    replays=True,
    tokenizer=LLAMACPP_TOKENIZER,
    refused_fields=frozenset(),
    passed_fields=LLAMACPP | {"grammar"},
    slots=SLOTS,
    lists_slots=SLOTS,
)  # fmt: skip

ENGINE: Engine = LlamaCpp(
    name="llama-server",
    title="llama.cpp (llama-server)",
    aliases=("llama_server", "xllamacpp", "llama.cpp-server", *FAMILY_NAMES),
    locate=locate,
    program=get_program,
    flags=FLAGS,
    base_traits=TRAITS,
    probe=HttpProbe(path="/health", verify_path="/props"),
    key_variable="LLAMA_API_KEY",
    by_platform=(
        (90, "Apple silicon, with Metal, parallel requests"),
        (80, "macOS, parallel requests"),
        (50, "runs on CPUs and GPUs, parallel requests"),
    ),
    failures=build_failures(
        "update llama.cpp: vllama engines install llama-server --upgrade, or your own llama-server",
        (
            r"error while loading shared libraries: (\S+):",
            "its library {0} is missing",
            "reinstall llama.cpp",
            Fault.MISMATCH,
        ),
    ),
    install=RECIPE,
    max_adapters=16,
    overhead=Overhead(
        fixed_bytes=60 * MIB,
        logits_rows=4,  # since build 10488 only the last token of each slot gets logits
        batch_rows=512,
        context_multiple=256,
        whole_windows=False,
        logprobs_take_memory=False,
        repacks=True,
    ),
    splits_experts=True,
    caches_prompts=True,
    spare_bytes=4 * 1024 * MIB,  # checkpoints of contexts, pictures, the drivers of GPUs
    saves_slots=True,
    default_slots=4,
    reads_projectors=True,
    takes_draft=True,
    keeps_connections=False,
    takes_sockets=True,
    rerank_path="/v1/rerank",
    leaves_thinking=has_unknown_thinking,
    end_turn_at=end_turn_at,
)
