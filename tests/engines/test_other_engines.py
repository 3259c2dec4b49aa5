"""How the engines besides the defaults are started, found and chosen."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines.others import ALL, MAX, MLX, SGLANG, SGLANG_JAX, TINYGRAD, TRANSFORMERS, launch
from tests.facts import CPU, H100, INFO, MAC
from vllama.engines.base import Installation, Missing, Mode, Origin, SearchPaths
from vllama.engines.locate import PackageLocation
from vllama.engines.package_server import PackageServer, has_gpu_torch
from vllama.engines.registry import find_engine, load_engines
from vllama.engines.tinygrad import ON_LOOPBACK

# -- the command lines ------------------------------------------------------------------------

PROGRAM = "/env/bin/program"
PYTHON = ("/env/bin/python", "-P")
LISTEN = ("--host", "127.0.0.1", "--port", "4321")
SGL = (
    "--model-path", "/models/m", "--served-model-name", "m:latest", *LISTEN,
    "--context-length", "4096", "--enable-cache-report",
)  # fmt: skip
ON_CPU = (
    "--device", "cpu", "--attention-backend", "native", "--disable-jax-precompile",
    "--max-total-tokens",
)  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "changes", "argv"),
    [
        (
            TRANSFORMERS,
            {},
            (PROGRAM, "serve", "/models/m", *LISTEN, "--device", "cpu", "--log-level", "info"),
        ),
        (
            TRANSFORMERS,
            {"gpu_layers": -1, "extra_args": ("--compile",)},
            (
                PROGRAM, "serve", "/models/m", *LISTEN, "--device", "auto", "--log-level", "info",
                "--compile",
            ),
        ),
        (
            MLX,
            {},
            (
                PROGRAM, "--model", "/models/m", *LISTEN, "--max-tokens", "4096",
                "--decode-concurrency", "1", "--prompt-concurrency", "1",
                "--prompt-cache-size", "1", "--allowed-origins=",
            ),
        ),
        (
            MLX,
            {"parallel": 4},
            (
                PROGRAM, "--model", "/models/m", *LISTEN, "--max-tokens", "4096",
                "--decode-concurrency", "4", "--prompt-concurrency", "4",
                "--prompt-cache-size", "4", "--allowed-origins=",
            ),
        ),
        (
            MAX,
            {},
            (
                PROGRAM, "serve", "--model", "/models/m", "--served-model-name", "m:latest",
                *LISTEN, "--max-length", "4096", "--devices", "cpu",
                "--quantization-encoding", "float32",
            ),
        ),
        (
            MAX,
            {"gpu_layers": -1, "parallel": 8},
            (
                PROGRAM, "serve", "--model", "/models/m", "--served-model-name", "m:latest",
                *LISTEN, "--max-length", "4096", "--max-batch-size", "8",
            ),
        ),
        (
            MAX,
            {"extra_args": ("--devices", "gpu:0")},
            (
                PROGRAM, "serve", "--model", "/models/m", "--served-model-name", "m:latest",
                *LISTEN, "--max-length", "4096", "--devices", "gpu:0",
            ),
        ),
        (
            TINYGRAD,
            {},
            (
                *PYTHON, "-c", ON_LOOPBACK.format(host="127.0.0.1"), "--model", "/models/m.gguf",
                "--max_context", "4096", "--serve", "4321",
            ),
        ),
        (SGLANG, {}, (*PYTHON, "-m", "sglang.launch_server", *SGL)),
        (
            SGLANG,
            {"parallel": 8, "extra_args": ("--tp-size", "2")},
            (
                *PYTHON, "-m", "sglang.launch_server", *SGL, "--max-running-requests", "8",
                "--tp-size", "2",
            ),
        ),
        (
            SGLANG,
            {"mode": Mode.EMBED},
            (*PYTHON, "-m", "sglang.launch_server", *SGL, "--is-embedding"),
        ),
        (
            SGLANG_JAX,
            {"parallel": 2},
            (
                *PYTHON, "-m", "sgl_jax.launch_server", *SGL, "--max-running-requests", "2",
                *ON_CPU, "8192",
            ),
        ),
        (SGLANG_JAX, {"gpu_layers": -1}, (*PYTHON, "-m", "sgl_jax.launch_server", *SGL)),
    ],
)  # fmt: skip
def test_the_command_line(engine, changes, argv):
    assert launch(engine, **changes).argv == argv


@pytest.mark.parametrize(
    ("engine", "changes", "added"),
    [
        (TRANSFORMERS, {}, {"OMP_NUM_THREADS": "3"}),
        (MLX, {}, {}),
        (MAX, {}, {"MAX_SERVE_DISABLE_TELEMETRY": "1"}),
        (SGLANG, {}, {}),
        (SGLANG_JAX, {}, {"JAX_PLATFORMS": "cpu"}),
        (SGLANG_JAX, {"gpu_layers": -1}, {}),
    ],
)
def test_the_environment_keeps_it_off_the_network(engine, changes, added):
    shell = {"PATH": "/bin", "HF_TOKEN": "secret", "PORT": "1", "PYTHONPATH": "/x"}
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    assert launch(engine, environ=shell, **changes).env == {"PATH": "/bin"} | offline | added


def test_tinygrad_is_told_where_to_compute():
    assert launch(TINYGRAD).env == {"CC": "clang", "DEV": "CPU"}
    assert launch(TINYGRAD, gpu_layers=-1).env == {"CC": "clang"}


def test_tinygrads_server_listens_on_loopback_only():
    """Its own server is given '' as its address: all interfaces, without a key."""
    import sys
    import types

    asked = []

    class LLMServer:
        def __init__(self, address, *rest):
            asked.append((address, *rest))

    cli = types.ModuleType("tinygrad.llm.cli")
    cli.LLMServer = LLMServer
    cli.main = lambda: cli.LLMServer(("", 4321), "model", "name", "tokenizer")
    llm, package = types.ModuleType("tinygrad.llm"), types.ModuleType("tinygrad")
    package.llm, llm.cli = llm, cli
    names = {"tinygrad": package, "tinygrad.llm": llm, "tinygrad.llm.cli": cli}
    with pytest.MonkeyPatch.context() as patch:
        for name, module in names.items():
            patch.setitem(sys.modules, name, module)
        exec(ON_LOOPBACK.format(host="127.0.0.1"), {})
    assert asked == [(("127.0.0.1", 4321), "model", "name", "tokenizer")]


@pytest.mark.parametrize(
    ("engine", "model"), [(MLX, "default_model"), (SGLANG, "m:latest"), (SGLANG_JAX, "m:latest")]
)
def test_what_listens_too_early_is_ready_after_a_first_answer(engine, model):
    work = launch(engine).probe.first_work
    assert work.path == "/v1/chat/completions"
    body = json.loads(work.body)
    assert (body["model"], body["max_tokens"], len(body["messages"])) == (model, 1, 1)


def test_what_embeds_is_not_asked_to_chat_first():
    assert launch(SGLANG, mode=Mode.EMBED).probe.first_work is None


@pytest.mark.parametrize("engine", [TRANSFORMERS, MAX, TINYGRAD])
def test_what_listens_when_it_is_ready_is_not_asked_for_more(engine):
    assert launch(engine).probe.first_work is None


# -- where it is chosen -----------------------------------------------------------------------


def test_none_is_chosen_before_the_defaults():
    from vllama.engines.llamacpp.llama_cpp_python import ENGINE as LLAMA_CPP
    from vllama.engines.vllm.adapter import ENGINE as VLLM

    for platform in (CPU, H100, MAC):
        best = max(LLAMA_CPP.preference(platform)[0], VLLM.preference(platform)[0])
        for engine in ALL:
            score, why = engine.preference(platform)
            assert 0 <= score < best
            assert why


def test_mlx_is_first_for_safetensors_on_apple_silicon_and_by_name_elsewhere():
    others = [engine for engine in ALL if engine is not MLX]
    mine = MLX.preference(MAC)[0]
    assert mine > max(engine.preference(MAC)[0] for engine in others)
    assert [MLX.preference(platform)[0] for platform in (CPU, H100)] == [0, 0]


@pytest.mark.parametrize(
    ("engine", "platform", "changes", "reason"),
    [
        (TRANSFORMERS, CPU, {"quant": "BF16"}, None),
        (TRANSFORMERS, CPU, {"quant": "MLX4"}, "Apple's MLX"),
        (SGLANG, H100, {"quant": "MLX4"}, "Apple's MLX"),
        (MLX, MAC, {"quant": "MLX4"}, None),
        (MAX, CPU, {"quant": "BF16"}, "only float32 weights, not BF16"),
        (MAX, CPU, {"quant": "F32"}, None),
        (MAX, H100, {"quant": "BF16"}, None),
        (TINYGRAD, CPU, {"metadata": {"tokenizer.ggml.pre": "smollm"}}, "tokenizer (smollm)"),
        (TINYGRAD, CPU, {"metadata": {"tokenizer.ggml.pre": "qwen2"}}, None),
        (TINYGRAD, CPU, {}, None),
    ],
)
def test_which_models_it_takes(engine, platform, changes, reason):
    got = engine.refuses(platform, replace(INFO, **changes))
    assert (got is None) if reason is None else (reason in got)


@pytest.mark.parametrize(
    ("typed", "engine"),
    [
        ("mlx", MLX),
        ("MLX_LM", MLX),
        ("hf", TRANSFORMERS),
        ("max-serve", MAX),
        ("sgl-jax", SGLANG_JAX),
    ],
)
def test_the_names_that_people_type(typed, engine):
    assert find_engine(load_engines().values(), typed) == engine


@pytest.mark.parametrize("engine", ALL, ids=lambda engine: engine.name)
def test_it_is_found_by_entry_point_and_says_how_to_get_it(engine):
    assert load_engines()[engine.name] == engine
    found = engine.find(SearchPaths(paths={engine.name: Path("/nowhere")}))
    assert isinstance(found, Missing)
    assert "/nowhere" in found.reason
    assert engine.install.by_hand.startswith("pip install ")


def installed(folder: Path, distribution: str, *modules: str, program: str = "") -> Path:
    """Make an environment that looks as if a package were installed there."""
    site = folder / "lib" / "python3.11" / "site-packages"
    about = site / f"{distribution.replace('-', '_')}-9.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 9.1\n")
    for module in modules:
        (site / module).mkdir()
        (site / module / "__init__.py").touch()
    (folder / "bin").mkdir()
    for name in ("python", program):
        if name:
            (folder / "bin" / name).touch(mode=0o755)
    (folder / "pyvenv.cfg").touch()
    return folder


def test_an_installation_without_its_server_is_none(tmp_path):
    folder = installed(tmp_path / "e", "transformers", "transformers", program="transformers")
    places = SearchPaths(paths={"transformers": folder})
    assert isinstance(TRANSFORMERS.find(places), Missing)
    for module in ("torch", "fastapi", "uvicorn", "openai"):
        (folder / "lib/python3.11/site-packages" / module).mkdir()
        (folder / "lib/python3.11/site-packages" / module / "__init__.py").touch()
    found = TRANSFORMERS.find(places)
    assert isinstance(found, Installation)
    assert (found.version, found.executable) == ("9.1", folder / "bin" / "transformers")


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", False),
        ("cuda: Optional[str] = '13.0'\n", True),
        ("hip: Optional[str] = '7.1'\n", True),
        ("hip = '7.1'\n", True),
        ("", False),
    ],
)
def test_whether_torch_was_built_for_gpus(tmp_path, text, gpus):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text(text)
    located = PackageLocation(engine="e", origin=Origin.GIVEN, sites=(tmp_path,))
    assert has_gpu_torch(located) is gpus


def test_no_torch_no_gpus(tmp_path):
    assert not has_gpu_torch(PackageLocation(engine="e", origin=Origin.GIVEN, sites=(tmp_path,)))


def test_an_adapter_must_say_what_is_its_own():
    with pytest.raises(TypeError, match="build_arguments"):
        PackageServer(name="n", title="t", distributions=("d",))
