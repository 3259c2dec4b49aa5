"""What is written for each tool, and how each is started. Formats: their makers' documentation."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from vllama.errors import BadRequest
from vllama.integrations.jsonc import load
from vllama.integrations.registry import INTEGRATIONS, find, program
from vllama.integrations.settings_files import plan
from vllama.integrations.types import Integration, Places, Target

URL = "http://127.0.0.1:11434"
TARGET = Target(
    url=URL, model="qwen3:8b", context=40960, capabilities=frozenset(["tools", "vision"])
)
HOME = Path("/home/me")


def places(home: Path = HOME, system: str = "linux", **environ: str) -> Places:
    return Places(home=home, environ=environ, system=system)


def changed(name: str, text: str = "", target: Target = TARGET) -> str:
    (edit,) = edits(find(name), target)
    return edit.change(text)


def edits(tool: Integration, target: Target = TARGET):
    assert tool.edits is not None
    return tool.edits(target, places())


def test_names() -> None:
    names = [n for tool in INTEGRATIONS for n in (tool.name, *tool.aliases)]
    assert len(names) == len(set(names))
    assert find("Code").name == "vscode"
    with pytest.raises(BadRequest, match="unknown integration: clade") as caught:
        find("clade")
    assert caught.value.hint == "did you mean claude?"
    with pytest.raises(BadRequest) as caught:
        find("zzz")
    assert "codex" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "environ", "system", "path"),
    [
        ("claude", {}, "linux", "/home/me/.claude/settings.json"),
        ("claude", {"CLAUDE_CONFIG_DIR": "/c"}, "linux", "/c/settings.json"),
        ("codex", {}, "linux", "/home/me/.codex/vllama.config.toml"),
        ("codex", {"CODEX_HOME": "~/x"}, "linux", "/home/me/x/vllama.config.toml"),
        ("opencode", {}, "linux", "/home/me/.config/opencode/opencode.json"),
        ("opencode", {"XDG_CONFIG_HOME": "/x"}, "linux", "/x/opencode/opencode.json"),
        ("opencode", {"XDG_CONFIG_HOME": "x"}, "linux", "/home/me/.config/opencode/opencode.json"),
        ("opencode", {"OPENCODE_CONFIG_DIR": "/d"}, "linux", "/d/opencode.json"),
        ("opencode", {"OPENCODE_CONFIG": "/o.json"}, "linux", "/o.json"),
        ("vscode", {}, "linux", "/home/me/.config/Code/User/chatLanguageModels.json"),
        ("vscode", {"XDG_CONFIG_HOME": "/x"}, "linux", "/x/Code/User/chatLanguageModels.json"),
        ("vscode", {"VSCODE_APPDATA": "/a"}, "linux", "/a/Code/User/chatLanguageModels.json"),
        (
            "vscode",
            {"VSCODE_PORTABLE": "/p"},
            "linux",
            "/p/user-data/User/chatLanguageModels.json",
        ),
        (
            "vscode",
            {},
            "darwin",
            "/home/me/Library/Application Support/Code/User/chatLanguageModels.json",
        ),
        ("vscode", {"APPDATA": "/r"}, "win32", "/r/Code/User/chatLanguageModels.json"),
        ("zed", {}, "linux", "/home/me/.config/zed/settings.json"),
        ("zed", {"XDG_CONFIG_HOME": "/x"}, "linux", "/x/zed/settings.json"),
        ("zed", {"XDG_CONFIG_HOME": "/x"}, "darwin", "/home/me/.config/zed/settings.json"),
    ],
)
def test_where_settings_lie(name: str, environ: dict[str, str], system: str, path: str) -> None:
    tool = find(name)
    assert tool.edits is not None
    (edit,) = tool.edits(TARGET, places(system=system, **environ))
    assert str(edit.path) == path


def test_a_commented_file_of_opencode_is_used(tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "opencode"
    folder.mkdir(parents=True)
    (folder / "opencode.jsonc").touch()
    tool = find("opencode")
    assert tool.edits is not None
    assert tool.edits(TARGET, places(tmp_path))[0].path == folder / "opencode.jsonc"


def test_claude() -> None:
    settings = load(changed("claude", '{"env": {"MINE": "1"}, "theme": "dark"}'))
    assert settings["theme"] == "dark"
    env = settings["env"]
    assert (env["MINE"], env["ANTHROPIC_BASE_URL"]) == ("1", URL)
    assert (env["ANTHROPIC_AUTH_TOKEN"], env["ANTHROPIC_API_KEY"]) == ("vllama", "")
    names = [name for name in env if name.endswith("_MODEL")]
    assert {env[name] for name in names} == {"qwen3:8b"}
    assert {"ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"} <= set(names)
    start = find("claude").start(TARGET, ("-p", "hi"))
    flag, given, *rest = start.args
    assert flag == "--settings"
    assert json.loads(given) == {"env": dict(start.environ)}
    assert rest == ["--model", "qwen3:8b", "-p", "hi"]


def test_codex() -> None:
    text = changed("codex", "# mine\napproval_policy = 'never'\n")
    assert text.startswith("# mine\napproval_policy = 'never'\n")
    assert tomllib.loads(text) == {
        "approval_policy": "never",
        "model": "qwen3:8b",
        "model_provider": "vllama",
        "model_context_window": 40960,
        "model_providers": {
            "vllama": {"name": "vllama", "base_url": f"{URL}/v1", "wire_api": "responses"}
        },
    }
    assert "model_context_window" not in changed("codex", target=Target(url=URL, model="m"))
    start = find("codex").start(TARGET, ("exec", "hi"))
    assert start.args == ("--profile", "vllama", "--model", "qwen3:8b", "exec", "hi")


def test_opencode() -> None:
    text = changed("opencode")
    config = load(text)
    assert config["$schema"] == "https://opencode.ai/config.json"
    assert config["provider"]["vllama"] == {
        "npm": "@ai-sdk/openai-compatible",
        "name": "vllama",
        "options": {"baseURL": f"{URL}/v1"},
        "models": {
            "qwen3:8b": {
                "name": "qwen3:8b",
                "limit": {"context": 40960, "output": 8192},
                "modalities": {"input": ["text", "image"], "output": ["text"]},
            }
        },
    }
    both = load(changed("opencode", text, Target(url=URL, model="other")))
    assert list(both["provider"]["vllama"]["models"]) == ["qwen3:8b", "other"]
    mine = '{\n  // mine\n  "theme": "x",\n}\n'
    assert changed("opencode", mine).startswith('{\n  // mine\n  "theme": "x",\n  "provider": {')
    start = find("opencode").start(TARGET, ("run", "hi"))
    assert start.args == ("run", "hi")
    assert json.loads(start.environ["OPENCODE_CONFIG_CONTENT"]) == {"model": "vllama/qwen3:8b"}


def test_vscode() -> None:
    model = {
        "id": "qwen3:8b",
        "name": "qwen3:8b",
        "url": f"{URL}/v1/chat/completions",
        "toolCalling": True,
        "vision": True,
        "thinking": False,
        "maxInputTokens": 32768,
        "maxOutputTokens": 8192,
    }
    ours = {
        "name": "vllama",
        "vendor": "customendpoint",
        "apiType": "chat-completions",
        "models": [model],
    }
    text = changed("vscode")
    assert load(text) == [ours]
    assert changed("vscode", text) == text
    theirs = '[\n  {"name": "Azure", "vendor": "azure"} // mine\n]'
    assert load(changed("vscode", theirs)) == [{"name": "Azure", "vendor": "azure"}, ours]
    assert "// mine" in changed("vscode", theirs)
    (group,) = load(changed("vscode", text, Target(url=URL, model="other")))
    assert [entry["id"] for entry in group["models"]] == ["qwen3:8b", "other"]
    with pytest.raises(ValueError, match="no list of providers"):
        changed("vscode", '{"a": 1}')


def test_kimi() -> None:
    flag, given, *rest = find("kimi").start(TARGET, ("-p", "hi")).args
    assert (flag, rest) == ("--config", ["-p", "hi"])
    config = json.loads(given)
    assert config["default_model"] == "vllama"
    assert config["providers"]["vllama"]["base_url"] == f"{URL}/v1"
    assert config["models"]["vllama"]["model"] == "qwen3:8b"
    assert config["models"]["vllama"]["max_context_size"] == 40960


def test_pi() -> None:
    provider = load(changed("pi", '{"providers": {"mine": {}}}'))["providers"]
    assert provider["mine"] == {}
    assert provider["vllama"] == {
        "baseUrl": f"{URL}/v1",
        "api": "openai-completions",
        "apiKey": "vllama",
        "models": [
            {
                "id": "qwen3:8b",
                "input": ["text", "image"],
                "reasoning": False,
                "maxTokens": 8192,
                "contextWindow": 40960,
            }
        ],
    }
    start = find("pi").start(TARGET, ("-p", "hi"))
    assert start.args == ("--provider", "vllama", "--model", "qwen3:8b", "-p", "hi")


def test_droid() -> None:
    mine = '{"customModels": [{"displayName": "mine"}], "sessionDefaultSettings": {"model": "x"}}'
    text = changed("droid", mine)
    settings = load(text)
    assert settings["sessionDefaultSettings"] == {"model": "x"}
    first, ours = settings["customModels"]
    assert first == {"displayName": "mine"}
    assert (ours["model"], ours["baseUrl"]) == ("qwen3:8b", f"{URL}/v1")
    assert changed("droid", text) == text
    assert len(load(changed("droid", text, Target(url=URL, model="other")))["customModels"]) == 3


def test_cline() -> None:
    config = load(changed("cline", '{"providers": {"openai": {"settings": {}}}}'))
    assert config["providers"]["openai"] == {"settings": {}}
    assert config["providers"]["ollama"]["updatedAt"]
    settings = config["providers"]["ollama"]["settings"]
    assert (settings["model"], settings["baseUrl"]) == ("qwen3:8b", f"{URL}/v1")
    start = find("cline").start(TARGET, ("hi",))
    assert start.args == ("--provider", "ollama", "--model", "qwen3:8b", "hi")


def test_openclaw() -> None:
    config = load(changed("openclaw", '{"agents": {"defaults": {"workspace": "w"}}}'))
    defaults = config["agents"]["defaults"]
    assert defaults == {"workspace": "w", "model": {"primary": "vllama/qwen3:8b"}}
    provider = config["models"]["providers"]["vllama"]
    assert (provider["baseUrl"], provider["api"]) == (URL, "ollama")
    assert provider["models"][0]["contextWindow"] == 40960
    assert find("openclaw").start(TARGET, ()).args == ("tui",)


def test_zed() -> None:
    text = '{\n  "theme": "One", // mine\n}\n'
    assert changed("zed", text) == (
        '{\n  "theme": "One", // mine\n  "language_models": {\n    "ollama": {\n'
        f'      "api_url": "{URL}"\n    }}\n  }},\n}}\n'
    )


@pytest.mark.parametrize(
    ("name", "args", "environ"),
    [
        (
            "copilot",
            (),
            {"COPILOT_PROVIDER_BASE_URL": f"{URL}/v1", "COPILOT_MODEL": "qwen3:8b"},
        ),
        (
            "goose",
            ("session",),
            {"GOOSE_PROVIDER": "ollama", "GOOSE_MODEL": "qwen3:8b", "OLLAMA_HOST": URL},
        ),
        (
            "qwen",
            ("--auth-type", "openai", "--model", "qwen3:8b"),
            {"OPENAI_BASE_URL": f"{URL}/v1", "OPENAI_MODEL": "qwen3:8b"},
        ),
        ("pool", ("-m", "qwen3:8b"), {"POOLSIDE_STANDALONE_BASE_URL": f"{URL}/v1"}),
        ("aider", (), {"OLLAMA_API_BASE": URL, "AIDER_MODEL": "ollama_chat/qwen3:8b"}),
    ],
)
def test_tools_of_the_environment(name: str, args: tuple[str, ...], environ: object) -> None:
    tool = find(name)
    start = tool.start(TARGET, ())
    assert start.args == args
    assert environ.items() <= start.environ.items()
    own = tool.start(TARGET, ("x",)).args
    assert own == (("x",) if name == "goose" else (*args, "x"))
    assert tool.edits is None


@pytest.mark.parametrize("tool", INTEGRATIONS, ids=lambda tool: tool.name)
def test_every_tool(tool: Integration, tmp_path: Path) -> None:
    assert tool.install
    if tool.edits is not None:
        assert tool.after
        (change,) = plan(tool.edits(TARGET, places(tmp_path)))
        assert change.is_one
        change.path.parent.mkdir(parents=True)
        change.path.write_bytes(change.after or b"")
        (again,) = plan(tool.edits(TARGET, places(tmp_path)))
        assert not again.is_one


def test_where_programs_are(tmp_path: Path) -> None:
    claude = find("claude")
    assert program(claude, places(tmp_path, PATH="/no/such")) is None
    own = tmp_path / ".claude" / "local" / "claude"
    own.parent.mkdir(parents=True)
    own.touch(mode=0o755)
    assert program(claude, places(tmp_path, PATH="/no/such")) == str(own)
    usual = tmp_path / "bin" / "claude"
    usual.parent.mkdir()
    usual.touch(mode=0o755)
    assert program(claude, places(tmp_path, PATH=str(usual.parent))) == str(usual)


def test_the_page_names_every_tool() -> None:
    page = Path(__file__).parents[2] / "docs" / "guide" / "integrations.md"
    rows = [line.split("|")[1:3] for line in page.read_text().splitlines() if "| `" in line]
    shown = {name.strip().strip("`"): title for name, title in rows}
    assert list(shown) == [tool.name for tool in INTEGRATIONS]
    for tool in INTEGRATIONS:
        assert tool.title in shown[tool.name]
