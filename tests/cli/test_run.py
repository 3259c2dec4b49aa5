"""`vllama run`, once: what is asked, what is printed, what happens when it goes wrong."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.conftest import Vllama
from tests.cli.stub import Body, Reply, StubServer, answer
from vllama.cli.chat import repl
from vllama.models.modelfile import parse_parameter

GENERATE = "POST /api/generate"
MANIFEST = {"status": "pulling manifest"}
DIGEST = "sha256:" + "ab" * 32


def test_one_question(stub: StubServer, vllama: Vllama) -> None:
    stub.on(GENERATE, *answer("Because", " of ", "Rayleigh\u2028."))
    done = vllama("run", "m", "why", "is", "it?")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Because of Rayleigh\u2028.\n", "")
    assert stub.bodies(GENERATE) == [{"model": "m", "options": {}, "prompt": "why is it?"}]


def test_stdin_comes_before_the_prompt(stub: StubServer, vllama: Vllama) -> None:
    stub.on(GENERATE, *answer("ok"))
    vllama("run", "m", "Sum it up:", stdin="a text\n")
    vllama("run", "m", stdin="only this\n")
    assert [b["prompt"] for b in stub.bodies(GENERATE)] == ["a text Sum it up:", "only this"]


def test_stdin_that_is_no_text(stub: StubServer, env: dict[str, str]) -> None:
    stub.on(GENERATE, *answer("ok"))
    subprocess.run(
        [sys.executable, "-m", "vllama", "run", "m"],
        input=b"caf\xe9",
        env=env,
        timeout=240,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    assert stub.bodies(GENERATE)[0]["prompt"] == "caf\ufffd"


def test_without_a_prompt_it_only_loads(stub: StubServer, vllama: Vllama) -> None:
    stub.on(GENERATE, {"done": True, "done_reason": "load"})
    done = vllama("run", "m")
    assert (done.returncode, done.stdout) == (0, "")
    assert stub.bodies(GENERATE) == [{"model": "m", "options": {}}]


def test_flags(stub: StubServer, vllama: Vllama) -> None:
    stub.on(GENERATE, *answer("{}"))
    vllama("run", "m", "--format", "json", "--keepalive", "-1", "--think", "q")
    vllama("run", "m", "--format", '{"type": "object"}', "--keepalive", "1h", "--think=low", "q")
    first, second = stub.bodies(GENERATE)
    assert (first["format"], first["keep_alive"], first["think"]) == ("json", -1, True)
    assert (second["format"], second["keep_alive"], second["think"]) == (
        {"type": "object"},
        "1h",
        "low",
    )


def test_thinking(stub: StubServer, vllama: Vllama) -> None:
    stub.on(GENERATE, *answer("42", thinking="hm, hm"))
    assert vllama("run", "m", "q").stdout == "Thinking...\nhm, hm\n...done thinking.\n\n42\n"
    assert vllama("run", "m", "--hidethinking", "q").stdout == "42\n"


def test_verbose(stub: StubServer, vllama: Vllama) -> None:
    numbers = {
        "total_duration": 4_648_158_584,
        "load_duration": 12_000_000,
        "prompt_eval_count": 26,
        "prompt_eval_duration": 130_000_000,
        "eval_count": 50,
        "eval_duration": 2_000_000_000,
    }
    stub.on(GENERATE, *answer("x", **numbers))
    done = vllama("run", "m", "--verbose", "q")
    assert done.stdout == "x\n"
    assert done.stderr.splitlines() == [
        "total duration:       4.648158584s",
        "load duration:        12ms",
        "prompt eval count:    26 token(s)",
        "prompt eval duration: 130ms",
        "prompt eval rate:     200.00 tokens/s",
        "eval count:           50 token(s)",
        "eval duration:        2s",
        "eval rate:            25.00 tokens/s",
    ]


def test_verbose_leaves_cached_tokens_out_of_the_rate(stub: StubServer, vllama: Vllama) -> None:
    numbers = {
        "prompt_eval_count": 26,
        "prompt_eval_cached_count": 16,
        "prompt_eval_duration": 100_000_000,
    }
    stub.on(GENERATE, *answer("x", **numbers))
    assert vllama("run", "m", "--verbose", "q").stderr.splitlines() == [
        "prompt eval count:    26 token(s)",
        "prompt eval cached:   16 token(s)",
        "prompt eval duration: 100ms",
        "prompt eval rate:     100.00 tokens/s",
    ]


def test_long_lines_are_left_alone_when_piped(stub: StubServer, vllama: Vllama) -> None:
    stub.on(GENERATE, *answer("word " * 100))
    assert vllama("run", "m", "q").stdout == "word " * 100 + "\n"


def test_an_unknown_model_is_pulled(stub: StubServer, vllama: Vllama) -> None:
    stub.on(GENERATE, *answer("hello"))
    here = threading.Event()

    def show(body: Body, reply: Reply) -> None:
        if here.is_set():
            reply.line({"capabilities": ["completion"]})
        else:
            reply.error(404, "model 'org/repo' not found")

    def pull(body: Body, reply: Reply) -> None:
        here.set()
        reply.line(MANIFEST)
        for done in (0, 500_000, 1_000_000):
            part = {"status": "pulling abababababab", "digest": DIGEST, "total": 1_000_000}
            reply.line(part | ({"completed": done} if done else {}))
        reply.line({"status": "success"})

    stub.routes["POST /api/show"] = show
    stub.routes["POST /api/pull"] = pull
    done = vllama("run", "org/repo", "hi")
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert done.stderr.splitlines() == [
        "pulling manifest",
        "pulling abababababab: 0% of 1 MB",
        "pulling abababababab: 50% of 1 MB",
        "pulling abababababab: 100% of 1 MB",
        "success",
    ]
    assert stub.bodies("POST /api/pull") == [{"model": "org/repo"}]


def test_a_pull_that_fails(stub: StubServer, vllama: Vllama) -> None:
    stub.fail("POST /api/show", 404, "model 'x' not found")
    stub.on("POST /api/pull", MANIFEST, {"error": "cannot pull 'x': no such model; look for it"})
    done = vllama("run", "x", "hi")
    assert done.returncode == 1
    assert "Error: cannot pull 'x': no such model; look for it" in done.stderr


@pytest.mark.parametrize(
    ("lines", "out", "message"),
    [
        ([*list(answer("part"))[:1], {"error": "the engine died"}], "part\n", "the engine died"),
        (list(answer("part"))[:1], "part\n", "ended early"),
        ([], "", "ended early"),
    ],
)
def test_an_answer_that_fails_half_way(
    lines: list[Body], out: str, message: str, stub: StubServer, vllama: Vllama
) -> None:
    stub.on(GENERATE, *lines)
    done = vllama("run", "m", "q")
    assert (done.returncode, done.stdout) == (1, out)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_refused_question(stub: StubServer, vllama: Vllama) -> None:
    stub.fail(GENERATE, 400, '"m" does not support thinking')
    done = vllama("run", "m", "--think", "q")
    assert done.returncode == 1
    assert done.stderr == 'Error: "m" does not support thinking\n'


def test_images(stub: StubServer, vllama: Vllama, tmp_path: Path) -> None:
    stub.on(GENERATE, *answer("a cat"))
    picture = tmp_path / "cat.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n...")
    vllama("run", "m", f"what is {picture}")
    stub.on("POST /api/show", {"capabilities": ["completion", "vision"]})
    done = vllama("run", "m", "what is", str(picture), stdin="look")
    assert (done.returncode, done.stdout) == (0, "a cat\n")
    assert done.stderr == f"Added image '{picture}'\n"
    blind, seeing = stub.bodies(GENERATE)
    assert (blind["prompt"], "images" in blind) == (f"what is {picture}", False)
    assert seeing["prompt"] == "look what is"
    assert [base64.b64decode(image) for image in seeing["images"]] == [picture.read_bytes()]
    picture.write_text("no image")
    done = vllama("run", "m", str(picture))
    assert done.returncode == 1
    assert "it is not a PNG, JPEG or WebP" in done.stderr
    assert len(stub.bodies(GENERATE)) == 2


@pytest.mark.parametrize(
    ("text", "is_open", "message"),
    [
        ("hello", False, "hello"),
        ('"""', True, ""),
        ('"""one\ntwo', True, "one\ntwo"),
        ('"""one\ntwo"""', False, "one\ntwo"),
        ('"""\none\n"""', False, "one"),
        ('  """one"""', False, "one"),
        ('"""a "quoted" b"""', False, 'a "quoted" b'),
        ('what is """ in Python?', False, 'what is """ in Python?'),
        ('/set system """a\nb', True, "/set system a\nb"),
        ('/set  system """a\nb"""', False, "/set  system a\nb"),
        ('/set system "a"', False, '/set system "a"'),
    ],
)
def test_blocks(text: str, is_open: bool, message: str) -> None:
    assert repl.is_open(text) is is_open
    assert repl.strip_quotes(text) == message


def test_switches_with_a_value(stub: StubServer, vllama: Vllama) -> None:
    stub.on(GENERATE, *answer("x", thinking="hm", eval_count=1, eval_duration=1))
    assert vllama("run", "m", "--verbose=false", "--hidethinking=true", "q").stderr == ""
    assert "eval count" in vllama("run", "m", "--verbose=true", "q").stderr


def test_embedding_models_print_a_vector(stub: StubServer, vllama: Vllama) -> None:
    stub.on("POST /api/show", {"capabilities": ["embedding"]})
    stub.on("POST /api/embed", {"embeddings": [[0.25, -1.0]]})
    done = vllama("run", "m", "--dimensions", "2", "--no-truncate", "a", "text")
    assert json.loads(done.stdout) == [0.25, -1.0]
    assert stub.bodies("POST /api/embed") == [
        {"model": "m", "input": "a text", "options": {}, "truncate": False, "dimensions": 2}
    ]
    stub.on("POST /api/embed", {"embeddings": []})
    assert vllama("run", "m", "a text").returncode == 1
    done = vllama("run", "m")
    assert done.returncode == 1
    assert done.stderr == (
        "Error: cannot run 'm' without text: it is an embedding model\n"
        'Hint: add the text: vllama run m "your text"\n'
    )


def test_ctrl_c_ends_the_request(stub: StubServer, env: dict[str, str]) -> None:
    left = threading.Event()

    def endless(body: Body, reply: Reply) -> None:
        reply.line({"response": "first", "done": False})
        reply.wait_for_leaving()
        left.set()

    stub.routes[GENERATE] = endless
    with subprocess.Popen(
        [sys.executable, "-m", "vllama", "run", "m", "q"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(5) == b"first"
        process.send_signal(signal.SIGINT)
        assert left.wait(60)
        assert process.wait(60) == 130
        assert process.stderr.read() == b""


def test_a_reader_that_leaves_ends_the_request(stub: StubServer, env: dict[str, str]) -> None:
    left = threading.Event()

    def endless(body: Body, reply: Reply) -> None:
        try:
            while True:
                reply.line({"response": "y\n" * 10_000, "done": False})
        finally:
            left.set()

    stub.routes[GENERATE] = endless
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m vllama run m q </dev/null | head -n 1"],
        env=env,
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.stdout == b"y\n"
    assert done.stderr == b""
    assert left.wait(60)


@pytest.mark.parametrize(
    ("name", "values", "value"),
    [
        ("temperature", ["0.2"], 0.2),
        ("num_ctx", ["4096"], 4096),
        ("stop", ["'a b'", "c"], ["a b", "c"]),
        ("use_mmap", ["False"], False),
    ],
)
def test_parameters(name: str, values: list[str], value: object) -> None:
    assert parse_parameter(name, values) == value


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("heat", ["1"], "unknown parameter 'heat'"),
        ("seed", [], "needs a value"),
        ("seed", ["x"], "a whole number, not 'x'"),
        ("top_p", ["x"], "a number, not 'x'"),
        ("use_mmap", ["x"], "true or false"),
        ("seed", ["1", "2"], "accepts only one value"),
    ],
)
def test_wrong_parameters(name: str, values: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_parameter(name, values)


def test_a_hint_of_the_server_has_a_line_of_its_own(stub: StubServer, vllama: Vllama) -> None:
    stub.fail("POST /api/show", 404, "model 'm' not found")

    def fail(body: Body, reply: Reply) -> None:
        reply.line({"error": "cannot find 'm': no repository; name one", "hint": "name one"})

    stub.routes["POST /api/pull"] = fail
    done = vllama("run", "m", "q")
    assert done.stderr.endswith("Error: cannot find 'm': no repository\nHint: name one\n")


@pytest.mark.parametrize(
    ("command", "name", "hint"),
    [
        ("run", "./nothing", "no such file or folder"),
        ("stop", "./nothing", "no such file or folder"),
        ("run", "./here", "specify a .gguf file, or a folder with config.json and *.safetensors"),
        (
            "run",
            "a b",
            "check 'a b': use the form model[:tag], org/repo[:QUANT] or the path of a .gguf ",
        ),
    ],
)
def test_a_wrong_name_has_a_hint(
    stub: StubServer,
    vllama: Vllama,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    name: str,
    hint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").touch()
    for route in ("show", "generate"):
        stub.fail(f"POST /api/{route}", 400, "invalid model name")
    done = vllama(command, name)
    where = f"cannot find a model at '{tmp_path / name}'"
    said = where if name.startswith(".") else f"invalid model name '{name}'"
    assert done.stderr.startswith(f"Error: {said}\nHint: {hint}")
