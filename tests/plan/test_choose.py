"""Which engine, which context, and the reasons, from recorded platforms."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import (
    CPU,
    GIB,
    H100,
    INFO,
    LLAMA_CPP_GPU,
    LLAMA_CPP_HERE,
    LLAMA_SERVER_HERE,
    MAC,
    VLLM_HERE,
    bundle,
    facts,
    make_need,
    missing,
)
from vllama.base.errors import BadModelFile, ConfigError, EngineMissing, NoPlan, NotEnoughMemory
from vllama.config.engine_settings import EngineSettings
from vllama.engines.base import DiscoveredEngines, Installation, Mode, SearchPaths
from vllama.engines.external import ENGINE as EXTERNAL
from vllama.engines.llamacpp.llama_server import ENGINE as LLAMA_SERVER
from vllama.engines.max_serve import ENGINE as MAX
from vllama.engines.mlx_lm import ENGINE as MLX
from vllama.engines.tinygrad import ENGINE as TINYGRAD
from vllama.engines.transformers_serve import ENGINE as TRANSFORMERS
from vllama.engines.vllm.adapter import ENGINE as VLLM
from vllama.models.settings import UpstreamSettings
from vllama.models.types import Format, ModelInfo
from vllama.plan.choose import choose_engine, list_loadable_formats, make_plan
from vllama.plan.report import report_plan, shorten
from vllama.plan.types import Facts, Need

BOTH = (LLAMA_CPP_GPU, VLLM_HERE)


@pytest.mark.parametrize(
    ("platform", "installed", "engine", "reason"),
    [
        (CPU, (LLAMA_CPP_HERE,), "llama-cpp-python", "any CPU"),
        (CPU, BOTH, "llama-cpp-python", "any CPU"),
        (MAC, (LLAMA_CPP_GPU,), "llama-cpp-python", "Metal"),
        (H100, BOTH, "vllm", "NVIDIA H100"),
        (H100, (LLAMA_CPP_GPU,), "llama-cpp-python", "vLLM would be preferred here"),
    ],
)
def test_the_engine_follows_the_platform(platform, installed, engine, reason):
    choice = choose_engine(facts(platform, installed))
    assert choice.engine == engine
    assert reason in choice.reason


def test_the_users_engine_is_never_replaced():
    with pytest.raises(EngineMissing) as caught:
        choose_engine(facts(H100, (LLAMA_CPP_GPU,), engine="vllm"))
    assert caught.value.exit_code == 3
    assert "vllama engines install vllm" in str(caught.value.hint)
    assert choose_engine(facts(H100, BOTH, engine="llama_cpp")).engine == "llama-cpp-python"


@pytest.mark.parametrize(
    ("platform", "installed", "engine"),
    [
        (CPU, (LLAMA_CPP_HERE,), "llama-cpp-python"),
        (CPU, (LLAMA_CPP_HERE, LLAMA_SERVER_HERE), "llama-server"),
        (H100, (LLAMA_CPP_GPU, LLAMA_SERVER_HERE), "llama-cpp-python"),
    ],
)
def test_a_family_means_its_best_engine_here(platform, installed, engine):
    assert choose_engine(facts(platform, installed, engine="llama.cpp")).engine == engine


def test_a_family_of_which_nothing_is_here_is_offered_by_its_best_engine():
    known = facts(CPU, (VLLM_HERE,), engine="llama.cpp")
    absent = known.found.missing | {LLAMA_SERVER.name: missing(LLAMA_SERVER)}
    engines = known.found.engines | {LLAMA_SERVER.name: LLAMA_SERVER}
    found = replace(known.found, engines=engines, missing=absent)
    with pytest.raises(EngineMissing, match="llama-server"):
        choose_engine(replace(known, found=found))


def test_with_no_engine_at_all_the_best_for_the_platform_is_named():
    for platform, names in (
        (CPU, ("llama-cpp-python", "vllm")),
        (H100, ("vllm", "llama-cpp-python")),
    ):
        with pytest.raises(EngineMissing, match=r"no engine.* is installed") as caught:
            choose_engine(facts(platform, ()))
        assert caught.value.engines == names


@pytest.mark.parametrize(
    ("name", "hint"), [("qwen2.5vl:3b", "vllama pull hf.co/"), ("mine", "vllama pull hf.co/org/")]
)
def test_a_file_for_ollamas_own_engine_is_refused_with_a_hint(name, hint):
    tensors = (("token_embd.weight", "F16", (1, 1)), ("v.patch_embd.weight", "F16", (1, 1)))
    for info in (replace(INFO, tensors=tensors), replace(INFO, architecture="gptoss")):
        with pytest.raises(BadModelFile, match="made for Ollama's own engine") as caught:
            make_plan(facts(CPU, (LLAMA_CPP_HERE,)), bundle(name=name), info, Need())
        assert hint in str(caught.value.hint)


def test_the_format_decides_among_engines():
    assert choose_engine(facts(H100, BOTH), Format.GGUF).engine == "llama-cpp-python"
    with pytest.raises(EngineMissing, match="vLLM: it is not installed"):
        choose_engine(facts(CPU, (LLAMA_CPP_HERE,)), Format.SAFETENSORS)
    with pytest.raises(NoPlan, match="it reads gguf"):
        choose_engine(facts(CPU, engine="llama.cpp"), Format.SAFETENSORS)


PACKED = replace(INFO, quant="MLX 4-bit")
FOLDER = bundle(format=Format.SAFETENSORS)
MLX_HERE = Installation(engine="mlx-lm", version="0.32", python=Path("/p"), offloads=True)


def beside_vllm(*installed, known=(MLX,), platform=MAC, **preferences):
    """Return facts with vLLM, and with more engines."""
    here = facts(platform, (VLLM_HERE,), **preferences)
    engines = here.found.engines | {engine.name: engine for engine in known}
    there = here.found.installations | {one.engine: one for one in installed}
    lost = {name: missing(engine) for name, engine in engines.items() if name not in there}
    found = replace(here.found, engines=engines, installations=there, missing=lost)
    return replace(here, found=found)


def first_choice(engine, platform_is_for_it=100):
    """Return the engine as the first choice of every platform."""

    class First(type(engine)):
        def preference(self, platform):
            return platform_is_for_it, "the best of all"

    return First()


def test_what_the_first_engine_refuses_the_next_one_serves():
    known = beside_vllm(MLX_HERE)
    engines = known.found.engines | {"vllm": first_choice(VLLM)}
    known = replace(known, found=replace(known.found, engines=engines))
    assert make_plan(known, FOLDER, replace(INFO, quant="BF16"), Need()).engine == "vllm"
    plan = make_plan(known, FOLDER, PACKED, Need())
    assert plan.engine == "mlx-lm"
    assert "vLLM cannot: its weights are packed for Apple's MLX" in plan.reasons[0]
    rows = {
        row["engine"]: row["reason"] for row in report_plan(known, FOLDER, PACKED, {})["engines"]
    }
    assert rows["vllm"].startswith("it cannot serve this model: its weights are packed")


def test_for_vectors_an_engine_that_makes_them_is_taken():
    engines = (first_choice(MLX), first_choice(VLLM, 50))
    known = beside_vllm(MLX_HERE, known=engines, platform=H100)
    assert make_plan(known, FOLDER, INFO, Need()).engine == "mlx-lm"
    plan = make_plan(known, FOLDER, INFO, Need(mode=Mode.EMBED))
    assert plan.engine == "vllm" and "MLX cannot: no embedding support" in plan.reasons[0]


def test_what_every_engine_refuses_is_refused_in_the_words_of_the_first():
    known = beside_vllm(platform=H100)
    with pytest.raises(BadModelFile, match=r"with vLLM: its weights are packed .*"):
        make_plan(known, FOLDER, PACKED, Need())
    # a missing one that would refuse it too is not recommended
    known = beside_vllm(MLX_HERE, known=(first_choice(TRANSFORMERS), first_choice(MLX, 10)))
    assert "Transformers" not in make_plan(known, FOLDER, PACKED, Need()).reasons[0]


@pytest.mark.parametrize("extra", [("--port", "8000"), ("--x", "--port=8000")])
def test_an_engine_s_port_is_not_the_user_s_to_choose(extra):
    with pytest.raises(ConfigError, match="chooses a free one") as caught:
        make_plan(facts(engine_args=extra), bundle(), INFO, Need())
    assert "before '--'" in str(caught.value.hint)


def test_an_engine_asked_for_by_name_refuses_by_itself():
    with pytest.raises(BadModelFile, match="with vLLM: its weights"):
        make_plan(beside_vllm(MLX_HERE, engine="vllm"), FOLDER, PACKED, Need())


@pytest.mark.parametrize(
    ("installed", "hint"),
    [
        ((VLLM_HERE,), "--engine vllm"),
        ((), "use vLLM, which supports it: install it with: vllama engines install vllm"),
    ],
)
def test_who_is_refused_by_an_engine_hears_of_one_that_can(installed, hint):
    here = Installation(engine="max", version="26.7", python=Path("/p"))
    known = beside_vllm(here, known=(MAX,), platform=CPU, engine="max")
    there = {one.engine: one for one in (here, *installed)}
    lost = {name: missing(e) for name, e in known.found.engines.items() if name not in there}
    known = replace(known, found=replace(known.found, installations=there, missing=lost))
    with pytest.raises(BadModelFile, match="only float32") as caught:
        make_plan(known, FOLDER, replace(INFO, quant="BF16"), Need())
    assert hint in str(caught.value.hint)


def test_who_is_refused_a_tokenizer_hears_of_an_engine_that_reads_it():
    here = facts(CPU, (LLAMA_CPP_HERE,), engine="tinygrad")
    engines = here.found.engines | {"tinygrad": TINYGRAD}
    there = here.found.installations | {"tinygrad": Installation(engine="tinygrad", version="0.13")}
    known = replace(here, found=replace(here.found, engines=engines, installations=there))
    with pytest.raises(BadModelFile, match="tokenizer") as caught:
        make_plan(known, bundle(), replace(INFO, metadata={"tokenizer.ggml.pre": "x"}), Need())
    assert caught.value.hint == "use an engine that supports it: --engine llama-cpp-python"


@pytest.mark.parametrize(
    ("platform", "installed", "first"),
    [
        (CPU, (LLAMA_CPP_HERE,), Format.GGUF),
        (H100, BOTH, Format.SAFETENSORS),
        (CPU, (), Format.GGUF),
    ],
)
def test_downloads_prefer_what_the_engine_reads(platform, installed, first):
    formats = list_loadable_formats(facts(platform, installed))
    assert formats[0] is first


@pytest.mark.parametrize(
    ("need", "preferred", "platform", "context"),
    [
        (None, None, CPU, 4096),  # Ollama's lowest tier
        (None, None, H100, 8192),  # the highest tier, clamped to what the model was trained for
        (None, 2048, CPU, 2048),
        (1024, 2048, CPU, 2048),  # a request never lowers it
        (512, None, CPU, 4096),
        (512, None, H100, 4096),
        (0, None, CPU, 4096),  # as with Ollama, no number is too small
        (-1, None, H100, 4096),
        (5000, None, H100, 5120),
        (100_000, None, CPU, 8192),
        (None, 777, CPU, 1024),  # rounded up to a multiple of 256
    ],
)
def test_the_context(need, preferred, platform, context):
    plan = make_plan(
        facts(platform, (LLAMA_CPP_GPU,), context_length=preferred),
        bundle(),
        INFO,
        make_need(num_ctx=need),
    )
    assert plan.settings.context_length == context


@pytest.mark.parametrize(
    ("platform", "installation", "asked", "layers"),
    [
        (CPU, LLAMA_CPP_HERE, None, 0),
        (MAC, LLAMA_CPP_GPU, None, -1),
        (MAC, LLAMA_CPP_GPU, 0, 0),
        (H100, LLAMA_CPP_GPU, None, -1),
        (H100, LLAMA_CPP_HERE, None, 0),
        (H100, LLAMA_CPP_GPU, 12, 12),
        (H100, LLAMA_CPP_HERE, 12, 0),
    ],
)
def test_layers_on_the_gpu(platform, installation, asked, layers):
    plan = make_plan(facts(platform, (installation,), gpu_layers=asked), bundle(), INFO, Need())
    assert plan.settings.gpu_layers == layers
    assert plan.memory.on_gpu is (layers != 0)


@pytest.mark.parametrize(
    ("platform", "installation", "asked", "said"),
    [
        (CPU, LLAMA_CPP_HERE, None, None),
        (CPU, LLAMA_CPP_HERE, 0, None),
        (
            CPU, LLAMA_CPP_HERE, 99,
            "all layers on the CPU, although 99 on a GPU were requested: no GPU was found, and "
            "this build of the engine has no GPU support",
        ),
        (
            CPU, LLAMA_CPP_GPU, 99,
            "no GPU was found, although 99 on a GPU were requested: the engine decides where "
            "to place the layers",
        ),
        (H100, LLAMA_CPP_GPU, 0, "all layers on the CPU, as requested"),
        (H100, LLAMA_CPP_GPU, 99, "all 30 layers on the GPU, as requested"),
        (H100, LLAMA_CPP_GPU, 30, "29 of 30 layers on the H100 80GB HBM3, 1 in RAM: "
         "92 MiB of weights, 79.0 GiB free there, as requested"),
        (H100, replace(LLAMA_CPP_GPU, backend="Vulkan"), None, "all layers on the GPU (Vulkan)"),
        (MAC, LLAMA_CPP_GPU, 12, "11 of 30 layers on the Apple M3 Pro, 19 in RAM: "
         "92 MiB of weights, 18.0 GiB free there, as requested"),
        (H100, LLAMA_CPP_HERE, None,
         "all layers on the CPU: this build of the engine has no GPU support"),
        (H100, VLLM_HERE, 12, "all layers on the GPU: vLLM does not split models"),
    ],
)  # fmt: skip
def test_what_is_said_of_layers_is_so(platform, installation, asked, said):
    form = Format.SAFETENSORS if installation is VLLM_HERE else Format.GGUF
    here = facts(platform, (installation,), gpu_layers=asked)
    plan = make_plan(here, bundle(format=form), INFO, Need())
    assert next((line for line in plan.reasons if "layers" in line), None) == said


def test_of_a_server_elsewhere_nothing_is_said_that_only_it_knows():
    external = EXTERNAL.configure({"upstreams": (UpstreamSettings(url="http://127.0.0.1:9"),)})
    found = DiscoveredEngines(
        engines={"external": external}, installations={"external": external.find(SearchPaths())}
    )
    here = Facts(platform=H100, found=found, settings=EngineSettings(gpu_layers=99))
    there = bundle(format=Format.REMOTE, files=(), path=Path("upstream:m"))
    for context, said in (
        (None, "that server does not report a context length"),
        (8192, "context length 8192, as reported by that server"),
    ):
        plan = make_plan(
            here, there, ModelInfo(architecture="vllm", context_length=context), Need()
        )
        assert plan.reasons == (
            "external server at http://127.0.0.1:9: specified as an upstream",
            said,
        )
        assert not plan.memory.on_gpu
        assert shorten(plan) == ["m:latest: on another server", *plan.reasons]


def test_an_automatic_context_shrinks_until_it_fits():
    # 32 layers × 8 heads × 128 × 2 (K and V) × 2 bytes = 128 KiB a token: 32 Ki tokens = 4 GiB
    large = replace(
        INFO, weights_bytes=4 * GIB, block_count=32, head_count_kv=(8,), key_length=128,
        value_length=128, context_length=131_072,
    )  # fmt: skip
    small = replace(
        MAC,
        accelerators=(replace(MAC.accelerators[0], total_bytes=24 * GIB),),
    )
    assert (
        make_plan(facts(small, (LLAMA_CPP_GPU,)), bundle(), large, Need()).settings.context_length
        == 32_768
    )
    tight = replace(CPU, ram_total_bytes=int(5.1 * GIB))
    plan = make_plan(facts(tight), bundle(), large, Need())
    assert plan.settings.context_length == 2048
    assert any("reduced" in reason for reason in plan.reasons)


def test_what_does_not_fit_is_refused_with_the_numbers():
    huge = replace(INFO, weights_bytes=40 * GIB)
    with pytest.raises(NotEnoughMemory) as caught:
        make_plan(facts(CPU), bundle(), huge, Need())
    assert "model requires more system memory" in caught.value.message
    assert "40.0" in caught.value.message
    assert "15.5 GiB" in caught.value.message


def test_an_asked_for_context_is_refused_and_never_lowered():
    wide = replace(INFO, context_length=10_000_000)
    with pytest.raises(NotEnoughMemory, match="context of"):
        make_plan(facts(CPU), bundle(), wide, make_need(num_ctx=5_000_000))


def test_the_plan_says_why():
    reasons = make_plan(facts(CPU), bundle(), INFO, Need()).reasons
    assert reasons[0] == "llama.cpp (llama-cpp-python) 0.3.36: runs on any CPU"
    assert "context length 4096" in reasons[-2]
    assert "4 threads" in reasons[-1]


def test_embedding_is_a_mode_of_its_own():
    settings = make_plan(facts(CPU), bundle(), INFO, Need(mode=Mode.EMBED)).settings
    assert settings.mode is Mode.EMBED


def test_a_context_for_vectors_is_lowered_until_its_batch_fits():
    known = facts(replace(CPU, ram_total_bytes=2 * GIB), (LLAMA_CPP_HERE,))
    wide = replace(INFO, vocab_size=128_256, context_length=32_768)  # a batch is its whole context
    contexts = [
        make_plan(known, bundle(), wide, Need(mode=mode)).settings.context_length
        for mode in (Mode.CHAT, Mode.EMBED)
    ]
    assert contexts == [4096, 2048]


def adapted(number: int):
    return bundle(adapters=tuple(Path(f"/models/{n}.gguf") for n in range(number)))


def test_adapters_that_the_engine_takes():
    plan = make_plan(facts(CPU), adapted(1), INFO, Need())
    assert plan.bundle.adapters == (Path("/models/0.gguf"),)


@pytest.mark.parametrize(
    ("platform", "installed", "made", "says"),
    [
        (CPU, (LLAMA_CPP_HERE,), adapted(2), "it has 2 adapters, and the engine supports 1 only"),
        (
            H100,
            BOTH,
            replace(adapted(2), format=Format.SAFETENSORS),
            "it has 2 adapters, and the engine supports 1 only",
        ),
    ],
)
def test_adapters_that_it_does_not_take(platform, installed, made, says):
    with pytest.raises(NoPlan, match=says):
        make_plan(facts(platform, installed), made, INFO, Need())


def test_the_users_engine_is_for_models_on_this_disk():
    external = EXTERNAL.configure({"upstreams": (UpstreamSettings(url="http://h:1", name="bee"),)})
    here = external.find(SearchPaths())
    both = facts(CPU, (LLAMA_CPP_HERE,), engine="llama.cpp")
    found = DiscoveredEngines(
        engines={**both.found.engines, external.name: external},
        installations={**both.found.installations, external.name: here},
        missing=both.found.missing,
    )
    both = replace(both, found=found)
    remote = bundle(format=Format.REMOTE, path=Path("upstream:m"), files=(), size_bytes=0)
    assert make_plan(both, remote, ModelInfo(architecture="vllm"), Need()).engine == "external"
    assert make_plan(both, bundle(), INFO, Need()).engine == "llama-cpp-python"
