"""The command table: help, version, wrong usage, and what is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Vllama
from tests.cli.stub import StubServer
from vllama import __version__
from vllama.cli.app import prepare, run
from vllama.cli.command_index import ALIASES, COMMANDS, GROUPS, HIDDEN
from vllama.cli.parser import list_actions, load_command

Env = dict[str, str]
SHOWN = [name for rows in GROUPS.values() for name in rows]


@pytest.mark.parametrize("argv", [["--version"], ["--version", "ps"]])
def test_version(argv: list[str], vllama: Vllama) -> None:
    done = vllama(*argv)
    assert (done.returncode, done.stdout) == (0, f"vllama version is {__version__}\n")


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_help(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 0
    text = capsys.readouterr().out
    for name in SHOWN:
        assert f"\n  {name} " in text
    assert "Examples:" in text
    for name in (*ALIASES, *HIDDEN):
        assert f"\n  {name} " not in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("name", "line"), [row for rows in (*GROUPS.values(), HIDDEN) for row in rows.items()]
)
def test_the_help_page_says_what_the_commands_say(name: str, line: str) -> None:
    assert load_command(name).help.splitlines()[0] == line


@pytest.mark.parametrize("command", [*COMMANDS, *ALIASES])
@pytest.mark.parametrize("form", [("{}", "--help"), ("help", "{}")])
def test_help_of_a_command(
    command: str, form: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([part.format(command) for part in form]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: vllama {command} ")
    assert "Example" in text
    for odd in ("[default: no-", "[default: None", "{MODEL}", "<str>", "<path>", "[required]"):
        assert odd not in text


ACTIONS = [(command, action) for command in COMMANDS for action in list_actions(command)]


@pytest.mark.parametrize(("command", "action"), ACTIONS)
def test_help_of_an_action(command: str, action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, action, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: vllama {command} {action} ")
    assert run([command, "--help"]) == 0
    assert f"\n  {action} " in capsys.readouterr().out
    shown = {
        line.split()[2] for line in text.splitlines() if line.startswith(f"    vllama {command} ")
    }
    assert shown <= {action}


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (["keys"], ["keys", "list"]),
        (["keys", "--json"], ["keys", "list", "--json"]),
        (["cache"], ["cache", "list"]),
        (["cache", "ls"], ["cache", "list"]),
        (["cache", "--key", "x"], ["cache", "list", "--key", "x"]),
        (["cache", "rm", "-y"], ["cache", "remove", "-y"]),
        (["keys", "rm", "x"], ["keys", "remove", "x"]),
        (["config"], ["config", "show"]),
        (["service"], ["service", "--help"]),
        (["service", "uninstall", "-x"], ["service", "remove", "-x"]),
        (["engines", "add", "no-such"], ["engines", "install", "no-such"]),
        (["engines", "uninstall", "no-such"], ["engines", "remove", "no-such"]),
        (["nodes", "key", "x"], ["nodes", "key", "x"]),
    ],
)
def test_other_words_for_an_action(
    given: list[str],
    same: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(given) == run(same)
    shown = capsys.readouterr()
    half = len(shown.out) // 2
    assert shown.out[:half] == shown.out[half:]
    assert "No such command" not in shown.err


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (["serv"], "No such command 'serv'", "did you mean 'vllama serve'?"),
        (["upgrade"], "No such command 'upgrade'", "vllama engines install ENGINE --upgrade"),
        (["rmi", "x"], "No such command 'rmi'", "a model: vllama rm MODEL"),
        (["top"], "No such command 'top'", "vllama ps --requests"),
        (["lsit"], "No such command 'lsit'", "did you mean 'vllama list'?"),
        (["zzzzz"], "No such command 'zzzzz'", "see 'vllama --help'"),
        (["models"], "No such command 'models'", "vllama list"),
        (["search", "qwen"], "No such command 'search'", "vllama pull ORG/REPO"),
        (["run", "m", "--temperature", "0"], "option: --temperature", "/set parameter temperature"),
        (["run", "--keepalve", "3"], "No such option: --keepalve", "did you mean --keepalive?"),
        (["engines", "instal", "x"], "No such command 'instal'", "did you mean install?"),
        (["engines", "install", "vlm"], "'vlm': no such engine", "did you mean vllm?"),
        (["keys", "ad", "x"], "No such command 'ad'", "did you mean add?"),
        (["keys", "add"], "Missing argument 'NAME'", "see 'vllama keys add --help'"),
        (
            ["keys", "add", "x", "--overlap", "1h"],
            "No such option: --overlap",
            "keys add --help",
        ),
        (["keys", "lsit"], "No such command 'lsit'", "did you mean list?"),
        (["service", "instal"], "No such command 'instal'", "did you mean install?"),
        (["config", "edt"], "No such command 'edt'", "did you mean edit?"),
        (["config", "set"], "No such command 'set'", "choose one of show, edit, schema"),
        (["cache", "remove"], "cannot confirm", "pass --yes"),
        (["run"], "Missing argument 'MODEL'", "see 'vllama run --help'"),
        (["ps", "-a"], "No such option: -a", "list all models: vllama list"),
        (["run", "m", "--ctx", "8"], "No such option: --ctx", "/set parameter num_ctx VALUE"),
        (["ps", "--parallel=3"], "No such option: --parallel", "see 'vllama ps --help'"),
        (["rm", "-f", "m"], "No such option: -f", "omit -f"),
        (["stop", "--all"], "No such option: --all", "name the models"),
        (["ps", "--foo"], "No such option: --foo", "see 'vllama ps --help'"),
        (["serve", "m", "foo"], "unexpected extra argument(s) (foo)", "name one model"),
        (
            ["serve", "m", "--model", "n"],
            "cannot preload both 'm' and 'n'",
            "other models are loaded",
        ),
        (["show", "m", "--license", "--system"], "only one of --license", None),
        (["run", "m", "--think=much"], 'invalid think "much" in --think', "--think=low|"),
        (["run", "m", "--format", "xml"], 'invalid format "xml" in --format', "--format json"),
        (["run", "m", "--keepalive", "soon"], 'keep_alive "soon" in --keepalive', "10m"),
        (["serve", "--port", "x"], 'cannot use port "x" from --port: not a whole number', "11434"),
        (
            ["serve", "--context-length", "-5"],
            'context_length "-5" from --context-length: less than 1',
            "8192",
        ),
        (["serve", "--config", "/no/such.toml"], 'config file "/no/such.toml"', None),
    ],
)
def test_wrong_usage(
    argv: list[str],
    message: str,
    hint: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    first, *rest = shown.err.splitlines()
    assert first.startswith("Error: ")
    assert message in first
    assert len(rest) <= 1
    assert hint is None or (rest[0].startswith("Hint: ") and hint in rest[0])


@pytest.mark.parametrize(
    ("argv", "args", "engine_args"),
    [
        (["serve", "-m", "x", "--", "--seed", "1"], ["serve", "-m", "x"], ("--seed", "1")),
        (["start", "--"], ["start"], ()),
        (["run", "m", "--think", "why"], ["run", "m", "--think=true", "why"], ()),
        (["run", "m", "--think=high"], ["run", "m", "--think=high"], ()),
        (["run", "m", "--", "--think"], ["run", "m", "--", "--think"], ()),
        (["help"], ["--help"], ()),
        (["help", "keys", "add"], ["keys", "add", "--help"], ()),
        (["launch", "pi", "-y", "--", "-p", "x"], ["launch", "pi", "-y"], ("-p", "x")),
        (["run", "m", "--verbose=true", "x"], ["run", "m", "--verbose", "x"], ()),
        (["run", "m", "--verbose=false", "x"], ["run", "m", "x"], ()),
        (["run", "m", "--truncate=false"], ["run", "m", "--no-truncate"], ()),
        (["run", "m", "--truncate=0.5"], ["run", "m", "--truncate=0.5"], ()),
        (["run", "m", "--format=true"], ["run", "m", "--format=true"], ()),
    ],
)
def test_prepared_arguments(argv: list[str], args: list[str], engine_args: tuple[str, ...]) -> None:
    assert prepare(argv) == (args, engine_args)


def imported(*argv: str, env: Env | None = None) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "vllama", *argv],
        env=env,
        text=True,
        capture_output=True,
        timeout=240,
        check=True,
    )
    return {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}


def test_version_imports_nothing_heavy() -> None:
    heavy = {"typer", "rich", "asyncio", "vllama.config", "platformdirs", "logging", "json"}
    assert not heavy & imported("--version")


def test_the_help_page_imports_no_command() -> None:
    there = imported("--help")
    assert not {"rich", "pydantic", "platformdirs", "vllama.config"} & there
    assert not {name for name in there if name.startswith("vllama.cli.commands.")}


@pytest.mark.parametrize("command", ["serve", "launch", "ps", "cache", "nodes", "keys"])
def test_help_imports_nothing_heavy(command: str) -> None:
    heavy = {
        "huggingface_hub",
        "httptools",
        "uvloop",
        "psutil",
        "httpx2",
        "urllib3",
        "msgspec",
        "prompt_toolkit",
        "rich.console",
        "vllama.server.daemon",
        "vllama.models.library",
        "vllama.cli.launch.target",
        "tomlkit",
    }
    assert not heavy & imported(command, "--help")


@pytest.mark.parametrize(
    ("argv", "more"),
    [
        (["ps"], {"vllama.models.types"}),
        (["ps", "name"], {"vllama.models.types"}),
        (["stop", "m"], {"vllama.models.types"}),
        (["list"], {"http.client", "vllama.models.convert"}),
        (["list", "name"], {"http.client", "vllama.models.convert"}),
    ],
)
def test_short_commands_import_little(
    argv: list[str], more: set[str], stub: StubServer, env: Env
) -> None:
    stub.on("GET /api/ps", {"models": []})
    stub.on("POST /api/generate", {"done": True})
    heavy = {"httpx2", "urllib3", "rich.console", "asyncio", "jinja2", "tomlkit"}
    # typer would have pydantic convert every parameter
    assert not ({"pydantic", "vllama.server.startup"} | heavy | more) & imported(*argv, env=env)


def test_a_broken_pipe_is_quiet(env: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m vllama --help | true"],
        env=env,
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *((name, "No sign-in is needed") for name in ("signin", "login")),
        *((name, "You are not signed in to ollama.com.\n") for name in ("signout", "logout")),
    ],
)
def test_nobody_has_to_sign_in(name: str, says: str, vllama: Vllama) -> None:
    done = vllama(name)
    assert (done.returncode, says in done.stdout, done.stderr) == (0, True, "")


def test_push_says_what_the_server_says(stub: StubServer, vllama: Vllama) -> None:
    refusal = "cannot push 'm': you are not signed in"
    stub.on("POST /api/push", {"status": "retrieving manifest"}, {"error": refusal})
    done = vllama("push", "m", "--insecure")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"Error: {refusal}\n")
    assert stub.bodies("POST /api/push") == [{"model": "m"}]
    stub.fail("POST /api/push", 404, "model 'x' not found")
    assert vllama("push", "x").stderr == "Error: model 'x' not found\n"


def complete(vllama: Vllama, line: str, **env: str) -> list[str]:
    words = line.split(" ")
    asked = {"_VLLAMA_COMPLETE": "complete_bash", "COMP_CWORD": str(len(words) - 1)}
    return vllama(COMP_WORDS=line, **asked, **env).stdout.split()


def test_completion(stub: StubServer, vllama: Vllama) -> None:
    stub.on(
        "GET /api/tags",
        {"models": [{"name": "smollm2:135m"}, {"name": "smol:latest"}, {"name": "x:1"}]},
    )
    assert set(complete(vllama, "vllama l")) == {"launch", "list", "logs"}
    assert complete(vllama, "vllama run smo") == ["smollm2:135m", "smol:latest"]
    assert complete(vllama, "vllama launch codex --model smoll") == ["smollm2:135m"]
    assert set(complete(vllama, "vllama launch co")) == {"codex", "copilot"}
    assert complete(vllama, "vllama rm smoll", OLLAMA_HOST="127.0.0.1:9") == []


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("vllama serve --engine llama-", {"llama-cpp-python", "llama-server"}),
        ("vllama engines install vl", {"vllm"}),
        ("vllama engines ins", {"install"}),
        ("vllama serve --log-format ", {"text", "json"}),
        ("vllama run m --think ", {"true", "false", "low", "medium", "high", "max"}),
        ("vllama run m --format ", {"json"}),
        ("vllama config s", {"show", "schema"}),
        ("vllama cache r", {"remove"}),
        ("vllama keys rotate x --o", {"--overlap"}),
        ("vllama nodes ", {"list", "drain", "undrain", "key"}),
        ("vllama completion ", {"bash", "zsh", "fish"}),
        ("vllama serve --config ", set()),  # the shell offers files
        ("vllama create mine -f ", set()),
    ],
)
def test_completion_of_choices(vllama: Vllama, line: str, offered: set[str]) -> None:
    assert set(complete(vllama, line)) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, vllama: Vllama, tmp_path: Path) -> None:
    done = vllama("completion", shell)
    assert done.returncode == 0
    assert f"_VLLAMA_COMPLETE=complete_{shell}" in done.stdout
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True, timeout=240)


def test_completion_of_a_shell_that_is_none(vllama: Vllama) -> None:
    done = vllama("completion", "tcsh")
    assert done.returncode == 2
    assert done.stderr.endswith("Hint: use one of bash, zsh, fish\n")


def test_every_option_without_its_value_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for name, action in [(n, a) for n in COMMANDS for a in (*list_actions(n), "")]:
        command = load_command(name)
        command = command.commands[action] if action else command
        words = [name, action] if action else [name]
        for option in (each for each in command.params if each.opts[0].startswith("-")):
            flag = option.opts[0]
            if prepare([flag]) != ([flag], ()):  # --think, which has a value of its own
                continue
            given = [*words, f"{flag}=1" if option.is_flag else flag]
            assert run(given) == 2, given
            says = "takes no value" if option.is_flag else "needs a value"
            page = f"Hint: see 'vllama {' '.join(words)} --help'\n"
            assert capsys.readouterr().err == f"Error: {flag} {says}\n{page}"
