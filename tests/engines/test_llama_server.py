"""llama-server: its command line, that of the wheel, and where it is."""

import importlib.util
from pathlib import Path

import pytest

from tests.facts import INFO, bundle
from vllama.engines.base import Installation, Missing, Mode, Origin, SearchPaths, Settings
from vllama.engines.llamacpp.llama_cpp_python import ENGINE as PYTHON_SERVER
from vllama.engines.llamacpp.llama_server import CHILD, ENGINE, _list_devices, _read_build
from vllama.machine.environments.layout import mark_complete
from vllama.models.types import Capability
from vllama.supervise.spec import Endpoint

ENDPOINT = Endpoint(port=4321, api_key="secret")
PROGRAM = Installation(engine="e", version="1", executable=Path("/opt/llama-server"))
WHEEL = Installation(engine="e", version="1", python=Path("/env/bin/python"))


def launch(installation=PROGRAM, made=None, **changes):
    values = {"mode": Mode.CHAT, "alias": "m:latest", "context_length": 4096} | changes
    environ = {"PATH": "/bin", "LLAMA_ARG_CTX_SIZE": "1", "LLAMA_API_KEY": "x"}
    return ENGINE.launch(made or bundle(), Settings(**values), installation, ENDPOINT, environ)


def test_the_command_line_of_a_chat():
    assert launch(parallel=8, threads=3, batch_threads=4, gpu_layers=-1).argv == (
        "/opt/llama-server",
        "--model", "/models/m.gguf", "--alias", "m:latest", "--host", "{scratch}/engine.sock",
        # what all slots share, and each may use its own part only
        "--ctx-size", "32768", "--parallel", "8", "--no-kv-unified",
        "--context-shift", "--n-gpu-layers", "999", "--threads", "3", "--threads-batch", "4",
        "--flash-attn", "on",
        "--cache-ram", "0", "--jinja", "--reasoning-format", "deepseek",
        "--metrics", "--no-webui", "--offline",
    )  # fmt: skip


def test_a_user_s_address_is_kept():
    argv = launch(extra_args=("--host", "0.0.0.0")).argv
    assert argv[5:9] == ("--host", "127.0.0.1", "--port", "4321")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_cache_type": "q8_0"}, ("--cache-type-k", "q8_0", "--cache-type-v", "q8_0")),
        ({"flash_attention": False}, ("--flash-attn", "off")),
        ({"gpu_layers": 0}, ("--n-gpu-layers", "0")),
        ({"parallel": 1}, ("--ctx-size", "4096", "--parallel", "1")),
        ({"mode": Mode.EMBED}, ("--batch-size", "4096", "--ubatch-size", "4096")),
        ({"mode": Mode.EMBED}, ("--embeddings", "--pooling", "mean")),
        ({"mode": Mode.EMBED, "ranks": True}, ("--reranking", "--metrics")),
        ({"mode": Mode.EMBED}, ("--no-kv-unified", "--batch-size")),  # nothing to shift
        (
            {"chat_template": "{{ 1 }}", "template_family": "gemma"},
            ("--jinja", "--chat-template", "{{ 1 }}", "--reasoning-format"),
        ),
        # the file's own is in the file
        ({"chat_template": "{{ 1 }}"}, ("--jinja", "--reasoning-format")),
        ({"extra_args": ("--draft-max", "4")}, ("--offline", "--draft-max", "4")),
    ],
)
def test_settings_on_the_command_line(changes, words):
    argv = launch(**changes).argv
    assert any(argv[start : start + len(words)] == words for start in range(len(argv))), argv


@pytest.mark.parametrize(
    ("template", "left"),
    [
        (None, False),
        ("no thinking at all", False),
        # what llama.cpp learns from: earlier turns, and a form that it knows
        ("{{ m.reasoning_content }}{% if add_generation_prompt %}<think>\n{% endif %}", False),
        ("{% set content = content.split('</think>')[-1] %}<think>\n", False),
        ("<|channel|>analysis", False),
        # what it sees nothing in: the thinking would be taken for the answer
        ("{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}", True),
        ('{% set content = content.split("</think>")[-1] %}', True),
    ],
)
def test_thinking_that_llama_cpp_would_not_see_is_left_to_the_front(template, left):
    argv = launch(chat_template=template).argv
    assert argv[argv.index("--reasoning-format") + 1] == ("none" if left else "deepseek")
    assert ("--chat-template-kwargs" in argv) is left  # without it, it would not think at all
    settings = Settings(mode=Mode.CHAT, alias="m", context_length=64, chat_template=template)
    assert ENGINE.traits(bundle(), settings).splits_reasoning is not left


def test_a_model_that_knows_how_its_vectors_are_made():
    known = frozenset({Capability.EMBEDDING})
    assert "--pooling" not in launch(mode=Mode.EMBED, capabilities=known).argv


def test_adapters_and_projector():
    made = bundle(
        adapters=(Path("/a.gguf"), Path("/b.gguf")), projector=Path("/models/mmproj.gguf")
    )
    argv = launch(made=made).argv
    assert [argv[at + 1] for at, word in enumerate(argv) if word == "--lora"] == [
        "/a.gguf",
        "/b.gguf",
    ]
    assert argv[argv.index("--mmproj") + 1] == "/models/mmproj.gguf"
    assert "--mmproj" not in launch(made=made, mode=Mode.EMBED).argv
    settings = Settings(mode=Mode.CHAT, alias="m", context_length=512)
    assert ENGINE.traits(made, settings).takes_images
    assert not ENGINE.traits(bundle(), settings).takes_images


def test_a_draft_model():
    made = bundle(draft=Path("/small.gguf"), parameters={"draft_num_predict": 7})
    argv = launch(made=made, draft_kind="simple").argv
    at = argv.index("--model-draft")
    assert argv[at : at + 6] == (
        "--model-draft", "/small.gguf", "--spec-type", "draft-simple", "--spec-draft-n-max", "7",
    )  # fmt: skip
    plain = bundle(draft=Path("/small.gguf"))
    assert "4" in launch(made=plain, draft_kind="simple").argv[at:]
    assert "draft-mtp" in launch(made=made, draft_kind="mtp").argv
    for argv in (launch().argv, launch(made=made).argv):  # the plan leaves it out
        assert not {"--model-draft", "--spec-type", "--spec-draft-n-max"} & set(argv)


@pytest.mark.parametrize(
    ("changes", "mode", "drafts"),
    [
        ({"draft": Path("/small.gguf")}, Mode.CHAT, True),
        ({"draft": Path("/small.gguf")}, Mode.EMBED, False),
        ({"draft": Path("/small.gguf"), "parameters": {"draft_num_predict": 0}}, Mode.CHAT, False),
        ({}, Mode.CHAT, False),
    ],
)
def test_when_a_draft_model_can_be_used(changes, mode, drafts):
    assert ENGINE.drafts(bundle(**changes), mode) is drafts


def test_the_key_goes_by_the_environment_and_nothing_of_the_users_does():
    spec = launch()
    assert "secret" not in spec.argv
    assert spec.env == {
        "PATH": "/bin",
        "GOMP_SPINCOUNT": "1000",
        "GGML_NO_BACKTRACE": "1",
        "LLAMA_ARG_SSE_PING_INTERVAL": "-1",
        "LLAMA_ARG_FIT": "off",
        "LLAMA_API_KEY": "secret",
    }
    assert not spec.endpoint.keeps_connections


def test_each_slot_has_the_context_of_one_request():
    settings = Settings(mode=Mode.CHAT, alias="m", context_length=2048, parallel=8)
    traits = ENGINE.traits(bundle(), settings)
    assert (traits.context_length, traits.max_concurrency) == (2048, 8)
    assert PYTHON_SERVER.traits(bundle(), settings).max_concurrency == 1


@pytest.mark.parametrize(
    ("engine", "made", "info", "parallel", "lack"),
    [
        (ENGINE, None, None, 64, None),
        (ENGINE, bundle(projector=Path("/p")), INFO, None, None),
        (PYTHON_SERVER, None, None, None, None),
        (PYTHON_SERVER, None, None, 1, None),
        (PYTHON_SERVER, None, None, 2, "runs one request at a time"),
        (PYTHON_SERVER, bundle(projector=Path("/p")), None, None, "does not support images"),
        (PYTHON_SERVER, bundle(adapters=(Path("/a"), Path("/b"))), None, None, "1 adapter"),
    ],
)
def test_what_each_lacks(engine, made, info, parallel, lack):
    told = engine.lacks(made, info, parallel)
    assert told == lack if lack is None else lack in told


# -- where it is ------------------------------------------------------------------------------


OLD, NEW = "11434 (5a3d2f1)", "0.5.0-dev (build 11434, commit 5a3d2f1)"


def program(folder: Path, devices: str = "  (none)", version: str = OLD) -> Path:
    """Write a program that answers as llama-server does to the two questions that it is asked."""
    path = folder / "llama-server"
    path.write_text(
        "#!/bin/sh\ncase $1 in\n"
        f'--version) echo "version: {version}" >&2; echo "built with GNU" >&2;;\n'
        f'--list-devices) printf "Available devices:\\n{devices}\\n";;\nesac\n'
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("devices", "backend"),
    [
        ("  (none)", ""),
        ("  CUDA0: NVIDIA GeForce RTX 4090 (24210 MiB, 23800 MiB free)", "CUDA"),
        ("  Vulkan0: AMD Radeon (RADV) (8192 MiB, 8000 MiB free)", "Vulkan"),
        ("  BLAS: OpenBLAS (0 MiB, 0 MiB free)", ""),
        ("  MTL0: Apple M3 (12124 MiB, 12123 MiB free)", "Metal"),
    ],
)
def test_a_program_on_path(tmp_path, devices, backend):
    path = program(tmp_path, devices)
    found = ENGINE.find(SearchPaths(search=str(tmp_path)))
    assert isinstance(found, Installation)
    assert (found.executable, found.version, found.backend) == (path, "b11434", backend)
    assert found.offloads is bool(backend)


@pytest.mark.parametrize(
    ("said", "version"), [(OLD, "b11434"), (NEW, "b11434"), ("0.5.0", "0.5.0")]
)
def test_the_build_of_a_program(tmp_path, said, version):
    program(tmp_path, version=said)
    found = ENGINE.find(SearchPaths(search=str(tmp_path)))
    assert isinstance(found, Installation) and found.version == version


def test_a_program_that_was_compiled_here_comes_before_the_wheel_and_path(tmp_path):
    program(tmp_path, "  (none)")
    environment = tmp_path / "environments" / "llama-server"
    site = environment / "lib" / "python3.11" / "site-packages"
    for name, version in (("llama_cpp_python", "0.3.36"), ("xllamacpp", "2026.10.1")):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {name.replace('_', '-')}\nVersion: {version}\n")
    (site / "llama_cpp" / "lib").mkdir(parents=True)
    (site / "llama_cpp" / "__init__.py").touch()
    (environment / "bin").mkdir()
    (environment / "bin" / "python").touch()
    mark_complete(environment, [])
    search_paths = SearchPaths(environments=environment.parent, search=str(tmp_path))
    assert ENGINE.find(search_paths).version == "b11434"  # that package alone is no server
    compiled = program(site / "llama_cpp" / "lib", "  (none)")
    found = ENGINE.find(search_paths)
    assert (found.executable, found.version) == (compiled, "llama-cpp-python 0.3.36")


def test_a_program_that_says_nothing_is_still_there(tmp_path):
    path = tmp_path / "llama-server"
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    assert _read_build(str(path)) == ""
    assert not _list_devices(str(path))
    assert isinstance(ENGINE.find(SearchPaths(search=str(tmp_path))), Installation)


BUILT = f'echo "version: {NEW}"; echo "built with GNU 14.2.0 for Linux x86_64"'
COMMANDS = 'echo "Available commands:"; echo "  serve           HTTP API server"'
# what `llama` answers: llama.cpp's own (app/llama.cpp), a link to llama-server, other projects
DEVICES = 'printf "Available devices:\\n  CUDA0: RTX\\n"'
OWN = f"""case "$*" in
--version|"serve --version") {BUILT};; --help) {COMMANDS};; "serve --list-devices") {DEVICES};;
esac"""
LINK = f"""case $1 in
--version) {{ {BUILT}; }} >&2;; --help) echo "-m,    --model FNAME";; *) exit 1;;
esac"""
STRANGERS = (
    "exit 2",
    'echo "version: 1.0"',
    'echo "llama 0.2.1 (built with love)"',
    f'[ "$1" = --help ] && {{ {COMMANDS}; }}',
    'echo "usage: llama [-h] {stack,model,download}" >&2; exit 2',
)


def other(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("name", "given"), [("llama", 0), ("llama", 1), ("of-mine", 1)])
@pytest.mark.parametrize(("script", "command"), [(OWN, ("serve",)), (LINK, ())])
def test_the_program_with_commands(tmp_path, name, given, script, command):
    path = other(tmp_path / name, script)
    search_paths = SearchPaths(
        search="" if given else str(tmp_path), paths={"llama-server": path} if given else {}
    )
    found = ENGINE.find(search_paths)
    assert (found.executable, found.command, found.version) == (path, command, "b11434")
    assert found.backend == ("CUDA" if command else "")
    argv = launch(found).argv
    assert argv[: 2 + len(command)] == (str(path), *command, "--model")


@pytest.mark.parametrize("script", STRANGERS)
def test_the_llama_of_another_project(tmp_path, script):
    path = other(tmp_path / "first" / "llama", script)
    given = ENGINE.find(SearchPaths(paths={"llama-server": path}))
    assert isinstance(given, Missing) and "engine_paths" in given.hint
    if not importlib.util.find_spec("xllamacpp"):
        assert isinstance(ENGINE.find(SearchPaths(search=str(path.parent))), Missing)
    ours = other(tmp_path / "second" / "llama", OWN)
    found = ENGINE.find(SearchPaths(search=f"{path.parent}:{ours.parent}"))
    assert (found.executable, found.command) == (ours, ("serve",))


def test_which_of_several_wins(tmp_path):
    first = other(tmp_path / "1" / "llama", OWN)
    second = other(tmp_path / "2" / "llama", OWN)
    search = f"{first.parent}:{second.parent}"
    assert ENGINE.find(SearchPaths(search=search)).executable == first
    server = program(second.parent)
    found = ENGINE.find(SearchPaths(search=search))
    assert (found.executable, found.command, found.origin) == (server, (), Origin.PATH)


def test_nothing_is_there(tmp_path):
    if importlib.util.find_spec("xllamacpp"):
        pytest.skip("xllamacpp is in this environment")
    found = ENGINE.find(SearchPaths(search=str(tmp_path)))
    assert isinstance(found, Missing)
    assert "vllama engines" in found.hint


def test_the_server_that_is_compiled_wants_a_compiler(tmp_path, monkeypatch):
    missing = {"engine": "llama-cpp-python", "reason": "it is not installed", "hint": "h"}
    monkeypatch.setattr(
        "vllama.engines.llamacpp.llama_cpp_python.find_package", lambda *_, **__: Missing(**missing)
    )
    bare = PYTHON_SERVER.find(SearchPaths(search=str(tmp_path)))
    assert not bare.installable
    assert "no C++ compiler" in bare.reason
    (tmp_path / "c++").write_text("#!/bin/sh\n")
    (tmp_path / "c++").chmod(0o755)
    assert PYTHON_SERVER.find(SearchPaths(search=str(tmp_path))).installable


# -- the wheel's command line -----------------------------------------------------------------


def child():
    """Return the program that starts the wheel's server, as a module."""
    spec = importlib.util.spec_from_file_location("xllamacpp_child", CHILD)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel": 8, "kv_cache_type": "q8_0"},
        {"mode": Mode.EMBED},
        {"mode": Mode.EMBED, "ranks": True},
        {"made": bundle(adapters=(Path("/a"),), projector=Path("/p"))},
    ],
)
def test_the_wheel_knows_every_flag_that_it_is_given(changes):
    argv = launch(WHEEL, **changes).argv
    assert argv[:3] == ("/env/bin/python", "-I", str(CHILD))
    given = vars(child().build_parser().parse_args(argv[3:]))
    assert given["model.path"] == "/models/m.gguf"
    assert given["hostnames"] == ["{scratch}/engine.sock"]
    assert given["model_alias"] == {"m:latest"}
    assert given["kv_unified"] is False


class Params:
    """A tree of parameters as the wheel has it."""

    def __init__(self):
        self.n_ctx, self.warmup, self.name = 0, True, ""
        self.rope = self if not hasattr(self, "rope") else None


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [("n_ctx", "7", 7), ("warmup", "off", False), ("warmup", "on", True), ("rope.name", "x", "x")],
)
def test_a_parameter_by_its_name(path, value, expected):
    params = Params()
    child().set_parameter(params, path, value)
    assert getattr(params, path.rpartition(".")[2]) == expected


def test_a_turns_end_ends_the_answer():
    end = {"turn_end": ("<|eot|>", 7)}
    values = {"mode": Mode.CHAT, "alias": "m", "context_length": 4096}
    by_request = {"preserved_tokens": ["<|eot|>"], "stop": ["<|eot|>"]}
    assert ENGINE.traits(bundle(), Settings(**values, **end)).finish_body({}) == by_request
    assert ENGINE.traits(bundle(), Settings(**values)).finish_body is None
    embeds = Settings(**values | {"mode": Mode.EMBED}, **end)
    assert ENGINE.traits(bundle(), embeds).finish_body is None
    at_start = PYTHON_SERVER.launch(bundle(), Settings(**values, **end), WHEEL, ENDPOINT, {}).argv
    place = at_start.index("--kv_overrides")
    assert at_start[place + 1] == "tokenizer.ggml.eot_token_id=int:7"
    plain = PYTHON_SERVER.launch(bundle(), Settings(**values), WHEEL, ENDPOINT, {}).argv
    assert "--kv_overrides" not in plain
