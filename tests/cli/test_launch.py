"""`vllama launch`: what is asked, written, started and put back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Vllama
from tests.cli.stub import StubServer
from tests.cli.terminal import Terminal

MODELS = [
    {"name": "vectors:latest", "capabilities": ["embedding"]},
    {"name": "smollm2:135m", "capabilities": ["completion"]},
    {"name": "qwen3:8b", "capabilities": ["completion", "tools"]},
]
SHOWN = {
    "capabilities": ["completion", "tools"],
    "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40960},
}
NOT_HERE = (
    "cannot use 'm' with Claude Desktop: it accepts only model names"
    if sys.platform == "darwin"
    else "cannot set up Claude Desktop here: only macOS is supported"
)
TOOL = """\
#!{python} -IS
import json, os, pathlib, sys
start = {{"args": sys.argv[1:], "env": dict(os.environ)}}
pathlib.Path({out!r}).write_text(json.dumps(start))
sys.exit(7)
"""


@pytest.fixture
def home(stub: StubServer, env: dict[str, str]) -> Path:
    """A home without tools, and a server with models."""
    stub.on("GET /api/tags", {"models": MODELS})
    stub.on("GET /api/ps", {"models": []})
    stub.on("POST /api/show", SHOWN)
    env["PATH"] = "/usr/bin:/bin"
    return Path(env["HOME"])


@pytest.fixture
def started(home: Path, tmp_path: Path, env: dict[str, str]) -> Callable[[str], Path]:
    """Install a tool that writes down how it was started."""

    def install(name: str) -> Path:
        out, program = tmp_path / "started.json", tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(TOOL.format(python=sys.executable, out=str(out)))
        program.chmod(0o755)
        env["PATH"] = f"{program.parent}:{env['PATH']}"
        return out

    return install


def run_process(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    """Run in a process of its own: a tool that is started takes its place."""
    return subprocess.run(
        [sys.executable, "-m", "vllama", "launch", *args],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def files(home: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and ".local" not in path.parts
    }


def test_what_there_is(home: Path, vllama: Vllama) -> None:
    header, *rows = vllama("launch").stdout.splitlines()
    assert header.split() == ["NAME", "TOOL", "INSTALLED", "SETTINGS"]
    assert {row.split()[0] for row in rows} >= {"claude", "codex", "opencode", "vscode"}
    assert all(row.split()[-2:] == ["no", "-"] for row in rows)
    assert vllama("launch", "zed", "-m", "m", "--config", "-y").returncode == 0
    (row,) = (row for row in vllama("launch").stdout.splitlines() if row.startswith("zed"))
    assert row.split() == ["zed", "Zed", "no", "written"]


@pytest.mark.parametrize(
    ("name", "path", "before"),
    [
        ("claude", ".claude/settings.json", b'{\n\t"theme": "dark"\n}'),
        ("codex", ".codex/vllama.config.toml", b"# mine\nmodel = 'x' # x\n"),
        ("opencode", ".config/opencode/opencode.json", b'{"mine": "\xc3\xa4"}'),
        ("vscode", ".config/Code/User/chatLanguageModels.json", b"[]"),
        ("omp", ".omp/agent/models.yml", b"# mine\r\nproviders:   # mine\r\n    x: {}\r\n"),
        ("hermes", ".hermes/config.yaml", b"model:\n    default: x # mine\n\n# end"),
        ("zed", ".config/zed/settings.json", b'\xef\xbb\xbf{\r\n  "theme": "One"\r\n}\r\n'),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_settings_are_written_and_put_back(
    name: str, path: str, before: bytes, there: bool, home: Path, vllama: Vllama
) -> None:
    if there:
        (home / path).parent.mkdir(parents=True)
        (home / path).write_bytes(before)
    original = files(home)
    done = vllama("launch", name, "--model", "qwen3:8b", "--config", "--yes")
    assert (done.returncode, done.stdout) == (0, "")
    assert f"{'change' if there else 'create'} {home / path}\n" in done.stderr
    assert "\n  +" in done.stderr
    after = files(home)
    assert list(after) == [path]
    assert after != original
    again = vllama("launch", name, "--model", "qwen3:8b", "--config")
    assert (again.returncode, files(home)) == (0, after)
    assert "the settings are already saved" in again.stderr
    assert vllama("launch", name, "--model", "other", "--config", "-y").returncode == 0
    assert vllama("launch", name, "--restore", "-y").returncode == 0
    assert files(home) == original
    assert [p.name for p in home.iterdir() if p.name != ".local"] == (
        [Path(path).parts[0]] if there else []
    )
    nothing = vllama("launch", name, "--restore")
    assert (nothing.returncode, files(home)) == (0, original)
    assert nothing.stderr.startswith("the settings of ")


@pytest.mark.parametrize(
    ("name", "path", "text", "reason"),
    [
        (
            "claude",
            ".claude/settings.json",
            '{"env": ',
            "Expecting value: line 1 column 9 (char 8)",
        ),
        (
            "hermes",
            ".hermes/config.yaml",
            "model: 1\nmodel: 2\n",
            'found duplicate key "model" with value "2" (original value: "1") at line 2',
        ),
    ],
)
def test_settings_that_cannot_be_read_are_left_alone(
    name: str, path: str, text: str, reason: str, home: Path, vllama: Vllama
) -> None:
    file = home / path
    file.parent.mkdir()
    file.write_text(text)
    done = vllama("launch", name, "-m", "m", "--config", "-y")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"Error: cannot change '{file}': {reason}",
        "Hint: fix it, or move it away; nothing was changed",
    ]
    assert files(home) == {path: text.encode()}


ZED = "// Zed settings\n{{\n  {}\n}}\n"
OF_US = '"language_models": {{"ollama": {{"api_url": "http://{}"}}}},'


def test_lines_are_printed_for_a_file_with_comments(
    home: Path, started: Callable[[str], Path], env: dict[str, str]
) -> None:
    """The tool is started all the same: once the lines are there, it uses this server."""
    out = started("zed")
    path = home / ".config" / "zed" / "settings.json"
    path.parent.mkdir(parents=True)
    path.write_text(ZED.format('"theme": "One", // mine'))
    before = files(home)
    done = run_process(env, "zed", "--model", "qwen3:8b")
    assert (done.returncode, out.exists(), files(home)) == (7, True, before)
    lines = OF_US.format(env["OLLAMA_HOST"]).rstrip(",")
    assert json.loads(done.stdout) == json.loads(f"{{{lines}}}")
    first, last = done.stderr.splitlines()
    assert first == f"'{path}' has comments, so it was not changed; add these lines:"
    assert last == "starting Zed; it uses this server once the lines are in the file"
    told = run_process(env, "zed", "--model", "qwen3:8b", "--config")
    assert (told.returncode, told.stdout) == (0, done.stdout)
    assert "starts now" not in told.stderr and "agent panel" in told.stderr

    path.write_text(ZED.format(OF_US.format(env["OLLAMA_HOST"])))
    done = run_process(env, "zed", "--model", "qwen3:8b")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
    assert run_process(env, "zed", "--restore").stderr.startswith(
        "the settings of Zed were not changed"
    )


def test_two_tools_with_the_same_settings_are_restored_together(home: Path, vllama: Vllama) -> None:
    path = home / ".hermes" / "config.yaml"
    path.parent.mkdir()
    path.write_text("# mine\n")
    for name in ("hermes", "hermes-desktop"):
        assert vllama("launch", name, "-m", "m", "--config", "-y").returncode == 0
    assert "default" in path.read_text()
    assert vllama("launch", "hermes", "--restore", "-y").returncode == 0
    assert path.read_text() == "# mine\n"
    assert (
        "settings of Hermes Desktop were" in vllama("launch", "hermes-desktop", "--restore").stderr
    )


def test_settings_of_a_session_lie_in_a_folder_of_our_own(
    home: Path, started: Callable[[str], Path], env: dict[str, str]
) -> None:
    users = home / ".config" / "muse" / "settings.json"
    users.parent.mkdir(parents=True)
    users.write_text('{"theme": "dark"}')
    out = started("muse")
    assert run_process(env, "muse", "--model", "qwen3:8b", "--yes").returncode == 7
    folder = Path(json.loads(out.read_text())["env"]["XDG_CONFIG_HOME"])
    settings = json.loads((folder / "muse" / "settings.json").read_text())
    assert (settings["theme"], settings["model"]) == ("dark", "qwen3:8b")
    assert files(home) == {".config/muse/settings.json": b'{"theme": "dark"}'}
    assert run_process(env, "muse", "--model", "qwen3:8b").returncode == 7
    assert run_process(env, "muse", "--restore", "--yes").returncode == 0
    assert not folder.exists()


def test_somebody_elses_changes_are_not_lost(home: Path, vllama: Vllama) -> None:
    path = home / ".claude" / "settings.json"
    vllama("launch", "claude", "-m", "m", "--config", "-y")
    path.write_text("{}")
    assert "changed since" in vllama("launch").stdout
    vllama("launch", "claude", "-m", "m", "--config", "-y")
    assert "changed since" not in vllama("launch").stdout
    path.write_text('{"theirs": 1}')
    done = vllama("launch", "claude", "--restore", "-y")
    assert "Warning: The file has been changed since" in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "Backup: " in line)
    assert Path(line.partition("Backup: ")[2]).read_text() == '{"theirs": 1}'
    assert not path.exists()


def test_a_session_of_claude_changes_no_file(
    home: Path, started: Callable[[str], Path], env: dict[str, str]
) -> None:
    out = started("claude")
    done = run_process(env, "claude", "--model", "qwen3:8b", "--", "-p", "hi there")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
    start = json.loads(out.read_text())
    flag, settings, *rest = start["args"]
    assert (flag, rest) == ("--settings", ["--model", "qwen3:8b", "-p", "hi there"])
    url = f"http://{env['OLLAMA_HOST']}"
    assert json.loads(settings)["env"]["ANTHROPIC_BASE_URL"] == url
    assert start["env"]["ANTHROPIC_BASE_URL"] == url
    assert start["env"]["HOME"] == env["HOME"]
    assert files(home) == {}


def test_codex_is_started_with_a_profile(
    home: Path, started: Callable[[str], Path], env: dict[str, str]
) -> None:
    out = started("codex")
    done = run_process(env, "codex", "--model", "qwen3:8b", "--yes")
    assert done.returncode == 7
    assert json.loads(out.read_text())["args"] == ["--profile", "vllama", "--model", "qwen3:8b"]
    assert list(files(home)) == [".codex/vllama.config.toml"]
    assert "model_context_window = 40960" in (home / ".codex/vllama.config.toml").read_text()


def test_a_tool_that_is_not_installed(home: Path, vllama: Vllama) -> None:
    done = vllama("launch", "aider", "-m", "qwen3:8b")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Error: cannot start aider: it is not installed",
        "Hint: to install it: pip install aider-install, then aider-install",
    ]


def test_settings_of_the_environment(home: Path, vllama: Vllama, env: dict[str, str]) -> None:
    done = vllama("launch", "goose", "-m", "it's", "--config")
    assert done.stdout.splitlines() == [
        "export GOOSE_PROVIDER=ollama",
        """export GOOSE_MODEL='it'"'"'s'""",
        f"export OLLAMA_HOST=http://{env['OLLAMA_HOST']}",
    ]
    assert files(home) == {}


@pytest.mark.parametrize(
    ("args", "message", "status"),
    [
        (["launch", "codex"], "no model specified", 2),
        (["launch", "codex", "-m", "m", "--config"], "cannot confirm", 2),
        (["launch", "codx"], "cannot launch 'codx'", 1),
        (["launch", "--restore"], "no tool specified", 2),
        (["launch", "codex", "--config", "--restore"], "cannot use --config", 2),
        (["launch", "claude-desktop", "-m", "m", "-y"], NOT_HERE, 2),
    ],
)
def test_what_is_refused(
    args: list[str], message: str, status: int, home: Path, vllama: Vllama
) -> None:
    done = vllama(*args)
    assert (done.returncode, done.stdout, files(home)) == (status, "", {})
    assert message in done.stderr


@pytest.mark.parametrize(
    ("shown", "loaded", "context"),
    [
        # our server tells what the model is, or would be, loaded with
        ({"vllama": {"context_length": 4096}}, [], 4096),
        ({}, [{"name": "hermes:latest", "context_length": 100_000}], 100_000),
        ({}, [{"name": "other:latest", "context_length": 100_000}], 40_960),
        ({"model_info": {}, "details": {"context_length": 262_144}}, [], 262_144),
    ],
)
def test_the_context_is_the_one_that_will_be_in_use(
    home: Path,
    stub: StubServer,
    vllama: Vllama,
    shown: dict[str, object],
    loaded: list[dict[str, object]],
    context: int,
) -> None:
    stub.on("POST /api/show", SHOWN | shown)
    stub.on("GET /api/ps", {"models": loaded})
    done = vllama("launch", "codex", "-m", "hermes", "--config", "--yes")
    assert done.returncode == 0, done.stderr
    written = (home / ".codex/vllama.config.toml").read_text()
    assert f"model_context_window = {context}\n" in written


def test_a_model_that_only_makes_vectors(home: Path, stub: StubServer, vllama: Vllama) -> None:
    stub.on("POST /api/show", {"capabilities": ["embedding"]})
    done = vllama("launch", "codex", "-m", "vectors", "-y")
    assert done.returncode == 2
    assert "cannot use 'vectors' with Codex: an embedding model" in done.stderr


def test_warnings(home: Path, stub: StubServer, vllama: Vllama) -> None:
    stub.on("POST /api/show", SHOWN | {"capabilities": ["completion"]})
    stub.on(
        "GET /api/ps", {"models": [{"name": "M:latest"}, {"name": "m", "context_length": 4096}]}
    )
    done = vllama("launch", "goose", "-m", "m", "--config")
    assert "Warning: 'm' does not support tools; goose can only chat with it\n" in done.stderr
    assert "Warning: 'm' has a context length of 4096 tokens; goose needs at least 32768\n" in (
        done.stderr
    )


def test_a_model_that_is_not_here_is_pulled(home: Path, stub: StubServer, vllama: Vllama) -> None:
    def show(body: dict[str, object], reply: object) -> None:
        assert hasattr(reply, "error")
        if stub.bodies("POST /api/pull"):
            reply.line(SHOWN)  # type: ignore[attr-defined]
        else:
            reply.error(404, "model 'new' not found")

    stub.routes["POST /api/show"] = show
    stub.on("POST /api/pull", {"status": "success"})
    refused = vllama("launch", "zed", "-m", "new", "--config")
    assert (refused.returncode, stub.bodies("POST /api/pull")) == (1, [])
    assert refused.stderr.startswith("Error: model 'new' not found")
    assert vllama("launch", "zed", "-m", "new", "--config", "-y").returncode == 0
    assert stub.bodies("POST /api/pull") == [{"model": "new"}]


def test_without_a_server(home: Path, vllama: Vllama) -> None:
    nowhere = {"OLLAMA_HOST": "127.0.0.1:9"}
    done = vllama("launch", "zed", "-m", "m", "-y", **nowhere)
    assert (done.returncode, files(home)) == (1, {})
    assert "could not connect to a vllama server" in done.stderr
    done = vllama("launch", "zed", "-m", "m", "-y", "--config", **nowhere)
    assert done.returncode == 0
    assert "Warning: no server at http://127.0.0.1:9" in done.stderr
    assert list(files(home)) == [".config/zed/settings.json"]


@pytest.mark.slow
def test_a_model_is_chosen_and_the_change_agreed(
    home: Path, terminal: Callable[..., Terminal]
) -> None:
    screen = terminal("launch", "zed", "--config")
    screen.expect("1  smollm2:135m")
    screen.expect("2  qwen3:8b")
    assert "vectors" not in screen.screen
    screen.type("9\r")
    screen.expect("enter a number from 1 to 2")
    screen.type("2\r")
    screen.expect("Save these changes? [Y/n]")
    assert files(home) == {}
    screen.type("n\r")
    screen.expect("nothing was changed")
    assert screen.finish() == 1
    assert files(home) == {}
    screen = terminal("launch", "zed", "--config", "-m", "qwen3:8b")
    screen.expect("Save these changes? [Y/n]")
    screen.type("\r")
    screen.expect("saved;")
    assert screen.finish() == 0
    screen = terminal("launch", "zed", "--restore")
    screen.expect("Restore the previous configuration? [Y/n]")
    screen.type("\x03")
    assert screen.finish() == 130
    assert list(files(home)) == [".config/zed/settings.json"]


@pytest.mark.parametrize("variable", ["VLLAMA_API_KEY", "VLLAMA_CLIENT_KEY", "OLLAMA_API_KEY"])
def test_the_key_of_every_variable_is_the_tools(variable: str, home: Path, vllama: Vllama) -> None:
    words = ("launch", "aider", "-m", "qwen3:8b", "--config")
    assert "export OLLAMA_API_KEY=sk-of-this\n" in vllama(*words, **{variable: "sk-of-this"}).stdout


@pytest.mark.parametrize("name", ["aider", "cline", "zed"])
def test_the_key_reaches_the_tool(
    name: str, started: Callable[[str], Path], env: dict[str, str]
) -> None:
    out = started(name)
    keyed = env | {"VLLAMA_CLIENT_KEY": "sk-of-this-server"}
    done = run_process(keyed, name, "-m", "qwen3:8b", "--yes")
    assert done.returncode == 7, done.stderr
    assert json.loads(out.read_text())["env"]["OLLAMA_API_KEY"] == "sk-of-this-server"


@pytest.mark.parametrize("name", ["muse", "vscode"])
def test_a_tool_that_takes_no_key_says_why(name: str, home: Path, vllama: Vllama) -> None:
    for words in ((), ("--config",)):
        done = vllama("launch", name, "-m", "qwen3:8b", "--yes", *words, OLLAMA_API_KEY="sk-x")
        assert done.returncode == 2 and "with a server that requires a key: it " in done.stderr
    assert not files(home)


def test_settings_alone_name_the_variable_of_the_key(home: Path, vllama: Vllama) -> None:
    words = ("-m", "qwen3:8b", "--config", "--yes")
    assert "export OLLAMA_API_KEY=KEY" in vllama("launch", "zed", *words, VLLAMA_API_KEY="k").stderr
    assert "OLLAMA_API_KEY" not in vllama("launch", "cline", *words).stderr
    told = vllama("launch", "aider", *words, VLLAMA_API_KEY="sk-x").stdout
    assert "export OLLAMA_API_KEY=sk-x\n" in told
