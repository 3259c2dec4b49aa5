"""What is written for each tool, and how each is started. Formats: their makers' documentation."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from vllama.base.errors import ConfigError
from vllama.cli.launch.edits import load_json as load
from vllama.cli.launch.settings_files import plan
from vllama.cli.launch.target import INTEGRATIONS, check_system, find, program
from vllama.cli.launch.types import Edit, Integration, Places, Target

URL = "http://127.0.0.1:11434"
TARGET = Target(
    url=URL, model="qwen3:8b", context=40960, capabilities=frozenset(["tools", "vision"])
)
ANY = Target(url=URL, model="claude-local", context=40960)
"""A model with a name that every tool takes."""
HOME = Path("/home/me")


def places(home: Path = HOME, system: str = "linux", **environ: str) -> Places:
    return Places(home=home, own=home / ".local/vllama", environ=environ, system=system)


def changed(name: str, text: str = "", target: Target = TARGET) -> str:
    (edit,) = edits(name, target)
    return edit.change(text)


def edits(name: str, target: Target = TARGET, where: Places | None = None) -> tuple[Edit, ...]:
    tool = find(name)
    assert tool.edits is not None
    return tool.edits(target, where or places())


def written(name: str, target: Target = TARGET, where: Places | None = None) -> dict[str, str]:
    """Return the new files by name."""
    return {edit.path.name: edit.change("") for edit in edits(name, target, where)}


def test_names() -> None:
    names = [n for tool in INTEGRATIONS for n in (tool.name, *tool.aliases)]
    assert len(names) == len(set(names))
    assert find("Code").name == "vscode"
    with pytest.raises(ConfigError, match="cannot launch 'clade'") as caught:
        find("clade")
    assert caught.value.hint == "did you mean claude?"
    with pytest.raises(ConfigError) as caught:
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
        ("omp", {}, "linux", "/home/me/.omp/agent/models.yml"),
        ("omp", {"PI_CONFIG_DIR": ".x"}, "linux", "/home/me/.x/agent/models.yml"),
        ("omp", {"PI_CODING_AGENT_DIR": "/p"}, "linux", "/p/models.yml"),
        ("hermes", {}, "linux", "/home/me/.hermes/config.yaml"),
        ("hermes-desktop", {"HERMES_HOME": "/h"}, "linux", "/h/config.yaml"),
        ("muse", {}, "linux", "/home/me/.local/vllama/muse/muse/settings.json"),
        ("zed", {}, "linux", "/home/me/.config/zed/settings.json"),
        ("zed", {"XDG_CONFIG_HOME": "/x"}, "linux", "/x/zed/settings.json"),
        ("zed", {"XDG_CONFIG_HOME": "/x"}, "darwin", "/home/me/.config/zed/settings.json"),
    ],
)
def test_where_settings_lie(name: str, environ: dict[str, str], system: str, path: str) -> None:
    (edit,) = edits(name, where=places(system=system, **environ))
    assert str(edit.path) == path


def test_a_commented_file_of_opencode_is_used(tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "opencode"
    folder.mkdir(parents=True)
    (folder / "opencode.jsonc").touch()
    assert edits("opencode", where=places(tmp_path))[0].path == folder / "opencode.jsonc"


def test_claude() -> None:
    settings = load(changed("claude", '{"env": {"MINE": "1"}, "theme": "dark"}'))
    assert settings["theme"] == "dark"
    env = settings["env"]
    assert (env["MINE"], env["ANTHROPIC_BASE_URL"]) == ("1", URL)
    assert (env["ANTHROPIC_AUTH_TOKEN"], env["ANTHROPIC_API_KEY"]) == ("vllama", "")
    names = [name for name in env if name.endswith("_MODEL")]
    assert {env[name] for name in names} == {"qwen3:8b"}
    assert {"ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"} <= set(names)
    limits = ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_MAX_OUTPUT_TOKENS")
    assert [env[name] for name in limits] == ["40960", "8192"]
    assert not set(limits) & set(load(changed("claude", target=Target(url=URL, model="m")))["env"])
    start = find("claude").make_start(TARGET, places(), ("-p", "hi"))
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
    start = find("codex").make_start(TARGET, places(), ("exec", "hi"))
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
    mine = '{\n\t"theme": "x"\n}\n'
    assert changed("opencode", mine).startswith('{\n\t"theme": "x",\n\t"provider": {\n\t\t"')
    start = find("opencode").make_start(TARGET, places(), ("run", "hi"))
    assert start.args == ("run", "hi")
    assert json.loads(start.environ["OPENCODE_CONFIG_CONTENT"]) == {
        "model": "vllama/qwen3:8b",
        "provider": config["provider"],
    }


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
    theirs = '[\n  {"name": "Azure", "vendor": "azure"}\n]'
    assert load(changed("vscode", theirs)) == [{"name": "Azure", "vendor": "azure"}, ours]
    (group,) = load(changed("vscode", text, Target(url=URL, model="other")))
    assert [entry["id"] for entry in group["models"]] == ["qwen3:8b", "other"]
    with pytest.raises(ValueError, match="not a list of providers"):
        changed("vscode", '{"a": 1}')


def test_kimi() -> None:
    start = find("kimi").make_start(TARGET, places(), ("-p", "hi"))
    assert start.args == ("-p", "hi")
    assert start.environ == {
        "KIMI_MODEL_NAME": "qwen3:8b",
        "KIMI_MODEL_PROVIDER_TYPE": "openai",
        "KIMI_MODEL_BASE_URL": f"{URL}/v1",
        "KIMI_MODEL_API_KEY": "vllama",
        "KIMI_MODEL_CAPABILITIES": "tool_use,image_in",
        "KIMI_MODEL_MAX_CONTEXT_SIZE": "40960",
        "KIMI_MODEL_MAX_OUTPUT_SIZE": "8192",
    }


PI_PROVIDER = {"baseUrl": f"{URL}/v1", "api": "openai-completions", "apiKey": "vllama"}
PI_MODEL = {
    "id": "qwen3:8b",
    "input": ["text", "image"],
    "reasoning": False,
    "maxTokens": 8192,
    "contextWindow": 40960,
}


def test_pi() -> None:
    provider = load(changed("pi", '{"providers": {"mine": {}}}'))["providers"]
    assert provider["mine"] == {}
    assert provider["vllama"] == {**PI_PROVIDER, "models": [PI_MODEL]}
    start = find("pi").make_start(TARGET, places(), ("-p", "hi"))
    assert start.args == ("--provider", "vllama", "--model", "qwen3:8b", "-p", "hi")


def test_droid() -> None:
    (edit,) = edits("droid")
    text = changed("droid")
    settings = load(text)
    (model,) = settings["customModels"]
    assert (model["model"], model["baseUrl"]) == ("qwen3:8b", f"{URL}/v1")
    assert settings["sessionDefaultSettings"] == {"model": model["id"]}
    assert changed("droid", text) == text
    other = load(changed("droid", text, Target(url=URL, model="other")))
    assert [model["model"] for model in other["customModels"]] == ["other"]
    start = find("droid").make_start(TARGET, places(), ("exec", "hi"))
    assert start.args == ("--settings", str(edit.path), "exec", "hi")
    assert edit.path.is_relative_to(places().own)  # the user's own settings stay as they are


def test_cline() -> None:
    config = load(changed("cline", '{"providers": {"openai": {"settings": {}}}}'))
    assert config["providers"]["openai"] == {"settings": {}}
    assert config["providers"]["ollama"]["updatedAt"]
    settings = config["providers"]["ollama"]["settings"]
    assert (settings["model"], settings["baseUrl"]) == ("qwen3:8b", f"{URL}/v1")
    start = find("cline").make_start(TARGET, places(), ("hi",))
    assert start.args == ("--provider", "ollama", "--model", "qwen3:8b", "hi")


def test_openclaw() -> None:
    config = load(changed("openclaw", '{"agents": {"defaults": {"workspace": "w"}}}'))
    defaults = config["agents"]["defaults"]
    assert defaults == {"workspace": "w", "model": {"primary": "vllama/qwen3:8b"}}
    provider = config["models"]["providers"]["vllama"]
    assert (provider["baseUrl"], provider["api"]) == (URL, "ollama")
    assert provider["models"][0]["contextWindow"] == 40960
    assert find("openclaw").make_start(TARGET, places(), ()).args == ("chat",)


def test_muse(tmp_path: Path) -> None:
    users = tmp_path / ".config" / "muse" / "settings.json"
    settings = load(written("muse", where=places(tmp_path))["settings.json"])
    assert settings["schema_version"] == 1
    assert settings["endpoint_transport"] == {"base_url": f"{URL}/v1", "auth": "none"}
    (model,) = settings["model_catalog"]
    assert (settings["model"], model["model_id"]) == ("qwen3:8b", "qwen3:8b")
    assert (model["context_limit"], model["output_limit"]) == (40960, 8192)

    users.parent.mkdir(parents=True)
    users.write_text('{"schema_version": 2, "theme": "dark", "model": "theirs"}')
    settings = load(written("muse", where=places(tmp_path))["settings.json"])
    assert (settings["schema_version"], settings["theme"]) == (2, "dark")
    assert settings["model"] == "qwen3:8b"

    start = find("muse").make_start(TARGET, places(), ("hi",))
    (edit,) = edits("muse")
    assert edit.path == Path(start.environ["XDG_CONFIG_HOME"]) / "muse" / "settings.json"


def test_omp() -> None:
    mine = "providers:\n  # mine\n  other: {}\n"
    text = changed("omp", mine)
    assert text.startswith(mine)
    provider = YAML(typ="safe").load(text)["providers"]["vllama"]
    assert provider == {**PI_PROVIDER, "models": [{**PI_MODEL, "name": "qwen3:8b"}]}
    start = find("omp").make_start(TARGET, places(), ("-p", "hi"))
    assert start.args == ("--model", "vllama/qwen3:8b", "-p", "hi")
    assert start.environ == {"OMP_SKIP_SETUP": "1"}


def test_hermes() -> None:
    mine = "model:\n  default: theirs  # mine\n  base_url: http://theirs\n"
    text = changed("hermes", mine)
    assert text.startswith(mine)
    provider = YAML(typ="safe").load(text)["providers"]["vllama"]
    assert (provider["base_url"], provider["api_key"]) == (f"{URL}/v1", "vllama")
    assert provider["models"] == {"qwen3:8b": {"context_length": 40960}}
    both = YAML(typ="safe").load(changed("hermes", text, Target(url=URL, model="other")))
    assert list(both["providers"]["vllama"]["models"]) == ["qwen3:8b", "other"]
    start = find("hermes").make_start(TARGET, places(), ("chat",))
    assert start.args == ("--provider", "vllama", "--model", "qwen3:8b", "chat")
    assert start.environ == {"OPENAI_BASE_URL": f"{URL}/v1"}

    text = changed("hermes-desktop", mine)
    assert "# mine" in text
    assert YAML(typ="safe").load(text)["model"] == {
        "default": "qwen3:8b",
        "base_url": f"{URL}/v1",
        "provider": "vllama",
        "api_key": "vllama",
    }
    assert find("hermes-desktop").make_start(TARGET, places(), ()).args == ("desktop",)


def test_dsh() -> None:
    files = {edit.path: YAML(typ="safe").load(edit.change("")) for edit in edits("dsh")}
    start = find("dsh").make_start(TARGET, places(), ("--port", "1"))
    web, flag, patch, *rest = start.args
    assert (web, flag, rest) == ("web", "--patch", ["--port", "1"])
    (entry,) = files[Path(patch)]
    settings = files[Path(entry["config"]["path"])]
    assert entry["id"] == "settings"
    assert settings["agent-default-model"] == {"provider": "vllama", "model": "qwen3:8b"}
    provider = settings["llm-pi-ai"]["providers"]["vllama"]
    assert start.environ == {provider["apiKeyEnv"]: "vllama"}
    assert (provider["api"], provider["baseURL"]) == ("openai-completions", f"{URL}/v1")
    assert [model["id"] for model in provider["models"]] == ["qwen3:8b"]


def test_chatgpt(tmp_path: Path) -> None:
    where = places(tmp_path, "darwin")
    files = written("chatgpt", where=where)
    config = tomllib.loads(files["config.toml"])
    assert (config["model"], config["model_provider"]) == ("qwen3:8b", "vllama")
    assert config["model_providers"]["vllama"]["base_url"] == f"{URL}/v1"
    catalog = Path(config["model_catalog_json"])
    assert catalog == tmp_path / ".codex" / "vllama-models.json"
    (model,) = json.loads(files[catalog.name])["models"]
    assert (model["slug"], model["context_window"]) == ("qwen3:8b", 40960)
    assert model["base_instructions"]

    catalog.parent.mkdir()
    known = {"models": [{"base_instructions": ""}, {"base_instructions": "You code."}]}
    (catalog.parent / "models_cache.json").write_text(json.dumps(known))
    (model,) = json.loads(written("chatgpt", where=where)[catalog.name])["models"]
    assert model["base_instructions"] == "You code."


def test_claude_desktop(tmp_path: Path) -> None:
    files = {edit.path: edit for edit in edits("claude-desktop", ANY, places(tmp_path, "darwin"))}
    support = tmp_path / "Library" / "Application Support"
    for name in ("Claude", "Claude-3p"):
        mode = files[support / name / "claude_desktop_config.json"].change('{"a": 1}')
        assert load(mode) == {"a": 1, "deploymentMode": "3p"}
    theirs = '{"appliedId": "x", "entries": [{"id": "x", "name": "mine"}]}'
    index = files[support / "Claude-3p" / "configLibrary" / "_meta.json"]
    applied = load(index.change(theirs))
    first, ours = applied["entries"]
    assert first == {"id": "x", "name": "mine"}
    assert applied["appliedId"] == ours["id"]
    profile = load(files[index.path.parent / f"{ours['id']}.json"].change(""))
    assert profile["inferenceGatewayBaseUrl"] == URL
    assert profile["inferenceModels"] == [{"name": "claude-local"}]

    with pytest.raises(ConfigError, match="cannot use 'qwen3:8b'") as caught:
        edits("claude-desktop")
    assert "vllama cp qwen3:8b claude-local" in str(caught.value.hint)


REFUSE_KEYS = {"muse", "vscode"}
"""They say so; see `test_a_tool_that_takes_no_key_says_why`."""


def test_there_are_tools() -> None:
    assert len(INTEGRATIONS) == 22 and {tool.name for tool in INTEGRATIONS} > REFUSE_KEYS


@pytest.mark.parametrize("tool", INTEGRATIONS, ids=lambda tool: tool.name)
def test_every_tool_is_given_the_key_or_says_why_not(tool: Integration, tmp_path: Path) -> None:
    """In its settings, or for the session. Without a key nothing of the kind is written."""

    def show(key: str | None) -> str:
        target = Target(url=URL, model="claude-local", server_key=key)
        where = places(tmp_path)
        start = tool.make_start(target, where, ())
        files = tool.edits(target, where) if tool.edits else ()
        return str([start, *(edit.change("") for edit in files)])

    if tool.refuses_key:
        assert tool.name in REFUSE_KEYS
    else:
        assert "sk-of-this-server" in show("sk-of-this-server")
    assert "sk-of-this-server" not in show(None)
    assert not tool.key_variable or tool.key_variable not in show(None)
    assert show("vllama") == show("sk-of-this-server").replace("sk-of-this-server", "vllama")


def test_goose_takes_a_key_with_openais_provider() -> None:
    target = Target(url=URL, model="m", server_key="secret")
    environ = find("goose").make_start(target, places(), ()).environ
    assert (environ["GOOSE_PROVIDER"], environ["OPENAI_HOST"]) == ("openai", URL)
    assert (environ["OPENAI_API_KEY"], environ["GOOSE_MODEL"]) == ("secret", "m")


def test_apps_of_macos(tmp_path: Path) -> None:
    chatgpt = find("codex-app")
    assert program(chatgpt, places(tmp_path, "darwin", PATH="")) is None
    app = tmp_path / "Applications" / "ChatGPT.app"
    app.mkdir(parents=True)
    started = program(chatgpt, places(tmp_path, "darwin", PATH=""))
    assert started == ("/usr/bin/open", "-a", str(app))
    assert program(chatgpt, places(tmp_path, PATH="")) is None
    check_system(chatgpt, "darwin")
    with pytest.raises(ConfigError, match="ChatGPT here: only macOS is supported"):
        check_system(chatgpt, "linux")


def test_zed() -> None:
    text = '{\n    "theme": "One"\n}\n'
    assert changed("zed", text) == (
        '{\n    "theme": "One",\n    "language_models": {\n        "ollama": {\n'
        f'            "api_url": "{URL}"\n        }}\n    }}\n}}\n'
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
    start = tool.make_start(TARGET, places(), ())
    assert start.args == args
    assert environ.items() <= start.environ.items()
    own = tool.make_start(TARGET, places(), ("x",)).args
    assert own == (("x",) if name == "goose" else (*args, "x"))
    assert tool.edits is None


@pytest.mark.parametrize("tool", INTEGRATIONS, ids=lambda tool: tool.name)
def test_every_tool(tool: Integration, tmp_path: Path) -> None:
    assert tool.install
    if tool.edits is not None:
        assert tool.after
        for change in map(plan, tool.edits(ANY, places(tmp_path))):
            assert change.differs
            change.path.parent.mkdir(parents=True, exist_ok=True)
            change.path.write_bytes(change.after or b"")
        assert not any(change.differs for change in map(plan, tool.edits(ANY, places(tmp_path))))


def test_where_programs_are(tmp_path: Path) -> None:
    claude = find("claude")
    assert program(claude, places(tmp_path, PATH="/no/such")) is None
    own = tmp_path / ".claude" / "local" / "claude"
    own.parent.mkdir(parents=True)
    own.touch(mode=0o755)
    assert program(claude, places(tmp_path, PATH="/no/such")) == (str(own),)
    usual = tmp_path / "bin" / "claude"
    usual.parent.mkdir()
    usual.touch(mode=0o755)
    assert program(claude, places(tmp_path, PATH=str(usual.parent))) == (str(usual),)


def test_the_page_names_every_tool() -> None:
    page = Path(__file__).parents[3] / "docs" / "guide" / "integrations.md"
    rows = [line.split("|")[1:3] for line in page.read_text().splitlines() if "| `" in line]
    shown = {name.strip().strip("`"): title for name, title in rows}
    assert list(shown) == [tool.name for tool in INTEGRATIONS]
    for tool in INTEGRATIONS:
        assert tool.title in shown[tool.name]
