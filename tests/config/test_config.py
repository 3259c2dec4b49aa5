"""Tables for the settings: where they come from, who wins, what is refused."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest

from vllama import config
from vllama.base.errors import ConfigError
from vllama.config.address import Address, is_loopback, parse_address, reachable_host, url
from vllama.config.settings import BY_FIELD


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the user's own files out of the tests."""
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "scheme", "host", "port", "bad"),
    [
        ("1.2.3.4", None, "1.2.3.4", None, None),
        ("1.2.3.4:5678", None, "1.2.3.4", 5678, None),
        (":1234", None, "0.0.0.0", 1234, None),
        ("localhost", None, "localhost", None, None),
        ("example.com:", None, "example.com", None, ""),
        ("http://", "http", None, 80, None),
        ("https://", "https", None, 443, None),
        ("http://example.com", "http", "example.com", 80, None),
        ("https://example.com:8443/ollama", "https", "example.com", 8443, None),
        ("HTTP://example.com/", "http", "example.com", 80, None),
        ("example.com/path", None, "example.com", None, None),
        ("[::1]", None, "::1", None, None),
        ("[::1]:99", None, "::1", 99, None),
        ("::1", None, "::1", None, None),
        ("http://[::1]:99", "http", "::1", 99, None),
        ("1.2.3.4:99999", None, "1.2.3.4", None, "99999"),
        ("1.2.3.4:abc", None, "1.2.3.4", None, "abc"),
        ("1.2.3.4:-1", None, "1.2.3.4", None, "-1"),
        ("http://h:bad", "http", "h", 80, "bad"),
        (" 1.2.3.4:0 ", None, "1.2.3.4", 0, None),
    ],
)
def test_address(
    text: str, scheme: str | None, host: str | None, port: int | None, bad: str | None
) -> None:
    assert parse_address(text) == Address(scheme=scheme, host=host, port=port, bad_port=bad)


@pytest.mark.parametrize("text", ["ftp://h", "1:2:3", "::1::2"])
def test_address_errors(text: str) -> None:
    with pytest.raises(ValueError):
        parse_address(text)


def test_urls() -> None:
    assert url("http", "::1", 80) == "http://[::1]:80"
    assert url("https", "h", 443) == "https://h:443"
    assert reachable_host("0.0.0.0") == "127.0.0.1"
    assert reachable_host("::") == "::1"
    assert reachable_host("10.0.0.1") == "10.0.0.1"
    assert is_loopback("127.0.0.2")
    assert is_loopback("LOCALHOST")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("example.com")


def test_defaults(home: Path) -> None:
    settings = config.load({}, {})
    assert (settings.host, settings.port, settings.url) == (
        "127.0.0.1",
        11434,
        "http://127.0.0.1:11434",
    )
    assert settings.keep_alive_s == 300
    assert settings.max_queue == 512
    assert settings.hf_cache_dir == home / ".cache/huggingface/hub"
    assert settings.models_dir == home / ".ollama/models"
    assert settings.notes == ()
    assert settings.config_file is None
    assert settings == config.Config()


@pytest.mark.parametrize(
    ("flags", "environ", "host", "port"),
    [
        ({}, {"OLLAMA_HOST": "0.0.0.0"}, "0.0.0.0", 11434),
        ({}, {"OLLAMA_HOST": ":9999"}, "0.0.0.0", 9999),
        ({}, {"OLLAMA_HOST": "http://"}, "127.0.0.1", 80),
        ({}, {"OLLAMA_HOST": "https://"}, "127.0.0.1", 443),
        ({}, {"OLLAMA_HOST": '"1.2.3.4:5"'}, "1.2.3.4", 5),
        ({}, {"OLLAMA_HOST": "  "}, "127.0.0.1", 11434),
        ({}, {"OLLAMA_HOST": "h:bad"}, "h", 11434),
        ({}, {"OLLAMA_HOST": "1.2.3.4:5", "VLLAMA_HOST": "5.6.7.8"}, "5.6.7.8", 5),
        ({}, {"OLLAMA_HOST": "1.2.3.4:5", "VLLAMA_PORT": "6"}, "1.2.3.4", 6),
        ({"port": 7}, {"OLLAMA_HOST": "1.2.3.4:5"}, "1.2.3.4", 7),
        ({"host": "h"}, {"OLLAMA_HOST": "1.2.3.4:5"}, "h", 5),
        ({"host": "h:8"}, {"VLLAMA_PORT": "6"}, "h", 8),
        ({"host": "h:8", "port": 9}, {}, "h", 9),
        ({"host": None, "port": None}, {"VLLAMA_PORT": "6"}, "127.0.0.1", 6),
        ({"port": 0}, {}, "127.0.0.1", 0),
    ],
)
def test_listening_address(
    flags: dict[str, Any], environ: dict[str, str], host: str, port: int
) -> None:
    settings = config.load(flags, environ)
    assert (settings.host, settings.port) == (host, port)


@pytest.mark.parametrize(
    ("environ", "field", "value"),
    [
        ({"OLLAMA_KEEP_ALIVE": "300"}, "keep_alive_s", 300.0),
        ({"OLLAMA_KEEP_ALIVE": "-1"}, "keep_alive_s", math.inf),
        ({"OLLAMA_KEEP_ALIVE": "10m"}, "keep_alive_s", 600.0),
        ({"OLLAMA_KEEP_ALIVE": "0"}, "keep_alive_s", 0.0),
        ({"OLLAMA_LOAD_TIMEOUT": "0"}, "load_timeout_s", None),
        ({"OLLAMA_LOAD_TIMEOUT": "-5s"}, "load_timeout_s", None),
        ({"OLLAMA_LOAD_TIMEOUT": "90s"}, "load_timeout_s", 90.0),
        ({"OLLAMA_CONTEXT_LENGTH": "8192"}, "context_length", 8192),
        ({"OLLAMA_CONTEXT_LENGTH": "0"}, "context_length", None),
        ({"OLLAMA_FLASH_ATTENTION": "1"}, "flash_attention", True),
        ({"OLLAMA_FLASH_ATTENTION": "false"}, "flash_attention", False),
        ({"OLLAMA_FLASH_ATTENTION": "banana"}, "flash_attention", True),
        ({}, "flash_attention", None),
        ({"OLLAMA_DEBUG": "2"}, "debug", True),
        ({"OLLAMA_DEBUG": "0"}, "debug", False),
        ({"OLLAMA_NOHISTORY": "1"}, "nohistory", True),
        ({"OLLAMA_ORIGINS": "http://a, app://b,"}, "origins", ("http://a", "app://b")),
        ({"OLLAMA_MODELS": "/data/ollama"}, "models_dir", Path("/data/ollama")),
        ({"OLLAMA_NUM_PARALLEL": "4"}, "num_parallel", 4),
        ({"OLLAMA_KV_CACHE_TYPE": "Q8_0"}, "kv_cache_type", "q8_0"),
        ({"OLLAMA_GPU_OVERHEAD": "1000"}, "gpu_overhead_bytes", 1000),
        ({"VLLAMA_GPU_LAYERS": "all"}, "gpu_layers", -1),
        ({"VLLAMA_GPU_LAYERS": "0"}, "gpu_layers", 0),
        ({"VLLAMA_CONTEXT_LENGTH": "8k"}, "context_length", 8192),
        ({"VLLAMA_ENGINE_ARGS": "-s 1 -n 'a b'"}, "engine_args", ("-s", "1", "-n", "a b")),
        ({"VLLAMA_ENGINE": "'vllm'"}, "engine", "vllm"),
        ({"VLLAMA_FOLDERS": os.pathsep.join(["/", "/dev"])}, "folders", (Path("/"), Path("/dev"))),
        ({"VLLAMA_KEEP_ALIVE": "1m", "OLLAMA_KEEP_ALIVE": "2m"}, "keep_alive_s", 60.0),
        ({"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}, "hf_cache_dir", Path("/c")),
        ({"HF_HOME": "/h"}, "hf_cache_dir", Path("/h/hub")),
        ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/h"}, "hf_cache_dir", Path("/old")),
        ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "/c"}, "hf_cache_dir", Path("/c")),
        ({"HUGGING_FACE_HUB_TOKEN": "hf_old"}, "hf_token", "hf_old"),
        ({"HUGGING_FACE_HUB_TOKEN": "hf_old", "HF_TOKEN": "hf_abc"}, "hf_token", "hf_abc"),
        ({"XDG_CACHE_HOME": "/x"}, "hf_cache_dir", Path("/x/huggingface/hub")),
        ({"HF_ENDPOINT": "http://127.0.0.1:1"}, "hf_endpoint", "http://127.0.0.1:1"),
        ({"HF_HUB_OFFLINE": "1"}, "hf_offline", True),
        ({"HF_TOKEN": "hf_abc"}, "hf_token", "hf_abc"),
        ({"VLLAMA_DATA_DIR": "/d"}, "log_dir", Path("/d/logs")),
        ({"VLLAMA_DATA_DIR": "/d", "VLLAMA_RUN_DIR": "/r"}, "run_dir", Path("/r")),
    ],
)  # fmt: skip
def test_environment(environ: dict[str, str], field: str, value: object) -> None:
    settings = config.load({}, environ)
    assert getattr(settings, field) == value
    assert [note for note in settings.notes if "cannot look for models" not in note] == []


@pytest.mark.parametrize(
    ("environ", "field", "value", "note"),
    [
        ({"OLLAMA_KEEP_ALIVE": "soon"}, "keep_alive_s", 300.0, '"soon" from OLLAMA_KEEP_ALIVE'),
        ({"OLLAMA_NUM_PARALLEL": "many"}, "num_parallel", None, "not a whole number"),
        ({"OLLAMA_HOST": "h:99999"}, "port", 11434, '"99999" in OLLAMA_HOST; using port 11434'),
        ({"OLLAMA_HOST": "ftp://h"}, "host", "127.0.0.1", "unknown scheme"),
        ({"VLLAMA_PROT": "1"}, "port", 11434, "did you mean VLLAMA_PORT?"),
    ],
)  # fmt: skip
def test_wrong_values_that_are_noted(
    environ: dict[str, str], field: str, value: object, note: str
) -> None:
    settings = config.load({}, environ)
    assert getattr(settings, field) == value
    assert len(settings.notes) == 1
    assert note in settings.notes[0]


@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        ({"port": "x"}, {}, 'cannot use port "x" from --port: not a whole number'),
        ({"port": 70000}, {}, 'cannot use port "70000" from --port: more than 65535'),
        ({}, {"VLLAMA_PORT": "-1"}, 'cannot use port "-1" from VLLAMA_PORT: less than 0'),
        ({"host": "h:bad"}, {}, 'cannot use host "h:bad" from --host: invalid port: "bad"'),
        ({"keep_alive_s": "soon"}, {}, 'cannot use keep_alive "soon" from --keep-alive: time: '),
        ({}, {"VLLAMA_DEBUG": "maybe"}, 'cannot use debug "maybe" from VLLAMA_DEBUG: neither'),
        ({"log_format": "xml"}, {}, 'cannot use log_format "xml" from --log-format: not one of'),
        ({}, {"VLLAMA_KV_CACHE_TYPE": "q9"}, "not one of f32, f16"),
        (
            {"context_length": -5},
            {},
            'cannot use context_length "-5" from --context-length: less than 1',
        ),
        ({}, {"VLLAMA_CONFIG": "/nonexistent.toml"}, "No such file"),
    ],
)
def test_wrong_values_that_are_refused(
    flags: dict[str, Any], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(flags, environ)
    assert message in caught.value.message
    assert caught.value.exit_code == 2


def test_what_kubernetes_sets_for_a_service_called_vllama_is_no_setting() -> None:
    links = {
        "VLLAMA_PORT": "tcp://10.0.0.1:11434",
        "VLLAMA_PORT_11434_TCP": "tcp://10.0.0.1:11434",
        "VLLAMA_PORT_11434_TCP_ADDR": "10.0.0.1",
        "VLLAMA_SERVICE_HOST": "10.0.0.1",
        "VLLAMA_SERVICE_PORT": "11434",
        "VLLAMA_SERVICE_PORT_HTTP": "11434",
    }
    found = config.load({}, links)
    assert found.port == config.load({}, {}).port
    assert found.notes == ()
    assert config.load({}, {"VLLAMA_PORT": "1234"}).port == 1234


def test_a_file(tmp_path: Path) -> None:
    file = write(
        tmp_path / "my.toml",
        'host = "0.0.0.0"\nport = 4321\nkeep_alive = 60\ndebug = true\n'
        'engine_args = ["--seed", "1"]\nfolders = ["~/a", "/b"]\ncontext_length = 4096\n',
    )
    settings = config.load({"context_length": 1024}, {"VLLAMA_KEEP_ALIVE": "5s"}, file)
    assert (settings.host, settings.port) == ("0.0.0.0", 4321)
    assert settings.context_length == 1024
    assert settings.keep_alive_s == 5
    assert settings.debug
    assert settings.engine_args == ("--seed", "1")
    assert settings.folders == (tmp_path / "a", Path("/b"))
    assert settings.config_file == file


def test_the_default_file_is_read_if_it_is_there(home: Path) -> None:
    write(config.default_file(), "max_queue = 3\n")
    assert home in config.default_file().parents
    assert config.load({}, {}).max_queue == 3
    other = write(home / "other.toml", "max_queue = 4\n")
    assert config.load({}, {"VLLAMA_CONFIG": str(other)}).max_queue == 4


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("prot = 1", 'cannot use "prot" in', "did you mean port?"),
        ("zzzz = 1", "not a setting", "list the settings: vllama config"),
        ("[server]\nport = 1", 'cannot use "server" in', "at the top of the file, not in a table"),
        ("[modles.x]\npin = true", "not a setting", "did you mean models?"),
        ("[model.x]\npin = true", "cannot use model from", '[models."NAME"]?'),
        ('port = "x"', 'cannot use port "x" from', "use the form 11434"),
        ("port = [1]", "a list is not allowed here", "use the form"),
        ("[port]\na = 1", "a table is not allowed here", "use the form"),
        ("port = ", "cannot read the config file", "use lines such as"),
        ('hf_token = ""\nhf_offline = "perhaps"', 'hf_offline "perhaps"', "use the form true"),
    ],
)
def test_a_wrong_file(tmp_path: Path, text: str, message: str, hint: str) -> None:
    file = write(tmp_path / "c.toml", text)
    with pytest.raises(ConfigError) as caught:
        config.load({}, {}, file)
    assert message in caught.value.message
    assert str(file) in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["api_key", "api_key_file"])
def test_an_empty_key_opens_no_server(name: str, tmp_path: Path) -> None:
    variable = f"VLLAMA_{name.upper()}"
    for text in ("", ",", " , ") if name == "api_key" else ("",):
        with pytest.raises(ConfigError, match=f"an empty {name} from {variable}"):
            config.load({}, {variable: text})
    for value in ('""', "[]"):
        file = write(tmp_path / "c.toml", f"{name} = {value}\n")
        with pytest.raises(ConfigError, match=f"an empty {name} from .*c.toml, line 1"):
            config.load({}, {variable: "sk-1"} if name == "api_key" else {}, file)
    assert config.load({}, {"OLLAMA_API_KEY": "", "HF_TOKEN": ""}).api_key == ()


def test_the_token_file(home: Path) -> None:
    write(home / ".cache/huggingface/token", "hf_stored\n")
    settings = config.load({}, {})
    assert settings.hf_token == "hf_stored"
    assert "hf_stored" not in repr(settings)
    named = write(home / "elsewhere", "hf_named")
    assert config.load({}, {"HF_TOKEN_PATH": str(named)}).hf_token == "hf_named"
    assert config.load({}, {"HF_TOKEN": "hf_env"}).hf_token == "hf_env"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"hf_ok\n", None),
        (b" hf_ok \r\n", None),
        (b"hf_ok\nsecond\n", "it contains a line break"),
        (b"hf_ok\r\nsecond", "U+000D"),
        (b"\xef\xbb\xbfhf_ok", "byte-order mark"),
        ("hf_ok".encode("utf-16"), "UTF-16"),
        ("hf_ok".encode("utf-16-be"), "UTF-16"),
        ("hf_o\u200bk".encode(), "U+200B"),
        ("hf_ök".encode(), "U+00F6"),
        ("hf_ök".encode("latin-1"), "not UTF-8 text"),
        (b"hf ok", "U+0020"),
        (b"hf_\x7f", "U+007F"),
    ],
)
def test_a_token_that_cannot_be_sent(home: Path, content: bytes, fault: str | None) -> None:
    file = home / ".cache/huggingface/token"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    text = content.decode(errors="replace")
    for environ, where in (({}, str(file)), ({"HF_TOKEN": text}, "HF_TOKEN")):
        settings = config.load({}, environ)
        if fault is None:
            assert (settings.hf_token, settings.notes) == ("hf_ok", ())
            continue
        (note,) = settings.notes
        assert settings.hf_token == "" and f"token from {where}" in note
        assert fault in note or where == "HF_TOKEN"


def test_folders_that_are_missing(tmp_path: Path) -> None:
    gone = str(tmp_path / "drive" / "hf" / "models")
    names = ("VLLAMA_FOLDERS", "VLLAMA_LMSTUDIO_DIR", "OLLAMA_MODELS", "HF_HUB_CACHE")
    for name in names:
        assert f"models in '{gone}'" in config.load({}, {name: gone}).notes[0]
    (tmp_path / "drive").mkdir()
    said = [bool(config.load({}, {name: gone}).notes) for name in names]
    assert said == [True, True, False, False]  # a pull makes the others


def test_the_table_is_whole_and_without_doubles() -> None:
    for column in ("key", "flag", "env", "foreign"):
        names = [name for one in config.SETTINGS if (name := getattr(one, column))]
        assert len(names) == len(set(names))
    assert all(one.help and one.example for one in config.SETTINGS)
    derived = {"scheme", "config_file", "notes", "sources"}
    fields = {setting.field for setting in config.SETTINGS}
    assert fields == {field.name for field in dataclasses.fields(config.Config)} - derived


@pytest.mark.parametrize("setting", config.SETTINGS, ids=lambda setting: setting.key)
def test_every_example_is_accepted(setting: config.Setting) -> None:
    if setting.field == "api_key_file":  # is read at once
        setting.kind.parse(setting.example)
        return
    certificate = {"VLLAMA_TLS_CERT": "cert.pem"} if setting.field == "tls_key" else {}
    config.load({}, {setting.env: setting.example, **certificate})


def test_aliases(tmp_path: Path) -> None:
    file = write(tmp_path / "c.toml", '[aliases]\nmine = "org/repo:Q4_K_M"\n"a:1" = "qwen3:0.6b"\n')
    settings = config.load({}, {}, file)
    assert config.models_settings(settings).aliases == {
        "mine": "org/repo:Q4_K_M",
        "a:1": "qwen3:0.6b",
    }
    assert config.load({}, {"VLLAMA_ALIASES": "a = b, c=d"}).aliases == (("a", "b"), ("c", "d"))
    for wrong in ("a", "a=", "=b", "a=b,c"):
        with pytest.raises(ConfigError, match="name=model"):
            config.load({}, {"VLLAMA_ALIASES": wrong})
    with pytest.raises(ConfigError, match="a table is not allowed here"):
        config.load({}, {}, write(tmp_path / "d.toml", '[folders]\nx = "y"\n'))


def test_slices() -> None:
    settings = config.load({"engine": "x", "gpu_layers": 3}, {"HF_ENDPOINT": "http://h"})
    models = config.models_settings(settings)
    assert models.hf_endpoint == "http://h"
    assert models.hf_cache_dir == settings.hf_cache_dir


def test_the_stores_of_other_tools(home: Path) -> None:
    usual = config.models_settings(config.load({}, {}))
    assert usual.ollama_dirs[0] == home / ".ollama/models" and len(usual.ollama_dirs) == 2
    assert usual.lmstudio_dirs == (home / ".lmstudio/models", home / ".cache/lm-studio/models")
    (home / ".lmstudio-home-pointer").write_text(f"{home / 'studio'}\n")
    noted = config.models_settings(config.load({}, {}))
    assert noted.lmstudio_dirs[0] == home / "studio/models"
    own = {"OLLAMA_MODELS": "/o", "VLLAMA_LMSTUDIO_DIR": "/l", "VLLAMA_OLLAMA_REGISTRY": "reg:5"}
    set_ = config.models_settings(config.load({}, own))
    assert (set_.ollama_dirs, set_.lmstudio_dirs) == ((Path("/o"),), (Path("/l"),))
    assert set_.ollama_registry == "reg:5"


def test_a_folder_that_is_not_there_is_noted(tmp_path: Path) -> None:
    missing = tmp_path / "nope"
    settings = config.load({}, {"VLLAMA_FOLDERS": os.pathsep.join((str(tmp_path), str(missing)))})
    assert settings.notes == (
        f"cannot look for models in '{missing}' (folders): no such file or folder",
    )
    assert settings.folders == (tmp_path, missing)  # it may come later


def test_the_hub_library_is_silenced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "0")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "0")
    config.prepare_environment()
    assert config.environ()["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert config.environ()["HF_HUB_DISABLE_PROGRESS_BARS"] == "1"


def test_a_file_of_keys(tmp_path: Path) -> None:
    keys = write(tmp_path / "keys", "# team\n\nsk-one\n  sk-two # Bob's\n\tsk#three\t# x\n")
    keys.chmod(0o600)
    settings = config.load({"api_key_file": str(keys), "api_key": ("sk-flag",)}, {})
    assert settings.api_key == ("sk-flag", "sk-one", "sk-two", "sk#three")
    assert settings.key_to_send == "sk-flag" and not settings.notes
    keys.chmod(0o644)
    (note,) = config.load({"api_key_file": str(keys)}, {}).notes
    assert note.startswith("other users of this machine can read") and f"chmod 600 {keys}" in note


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it has no key"),
        ("# none\n\n", "it has no key"),
        ("sk-one\nsk two\n", "line 2"),
        ("sk-\u00fc\n", "line 1"),
    ],
)
def test_a_file_without_keys_is_an_error(tmp_path: Path, text: str, reason: str) -> None:
    keys = write(tmp_path / "keys", text)
    with pytest.raises(ConfigError, match=reason) as caught:
        config.load({"api_key_file": str(keys)}, {})
    assert "sk two" not in caught.value.sentence()  # an error is logged
    with pytest.raises(ConfigError, match="cannot read the keys"):
        config.load({"api_key_file": str(tmp_path)}, {})


def test_a_certificate_makes_the_scheme(tmp_path: Path) -> None:
    cert = {"VLLAMA_TLS_CERT": "cert.pem"}
    assert config.load({}, cert).url == "https://127.0.0.1:11434"
    assert config.load({}, cert | {"OLLAMA_HOST": "http://gpu:1"}).url == "http://gpu:1"
    with pytest.raises(ConfigError, match=r"cannot use tls_key .* alone"):
        config.load({}, {"VLLAMA_TLS_KEY": "key.pem"})
    key = write(tmp_path / "key.pem", "")
    key.chmod(0o644)
    (note,) = config.load({}, cert | {"VLLAMA_TLS_KEY": str(key)}).notes
    assert str(key) in note


def test_registries() -> None:
    given = {"VLLAMA_ALLOW_REGISTRY": "HuggingFace.co, https://Reg.example:5000/ ,[::1]:80"}
    assert config.load({}, given).allow_registry == (
        "huggingface.co",
        "reg.example:5000",
        "[::1]:80",
    )
    for wrong in ("a b", "a/b", "a:b", "https://", "ho*t"):
        with pytest.raises(ConfigError, match="allow_registry"):
            config.load({}, {"VLLAMA_ALLOW_REGISTRY": wrong})


def test_sizes_of_files() -> None:
    def size(text: str) -> int | None:
        return config.load({}, {"VLLAMA_MAX_BLOB_SIZE": text}).max_blob_size_bytes

    assert (size("20GB"), size("1GiB"), size("1000"), size("0")) == (20 * 10**9, 2**30, 1000, None)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, None),
        ({"VLLAMA_HOST": "localhost"}, None),
        ({"VLLAMA_HOST": "[::1]"}, None),
        ({"VLLAMA_HOST": "0.0.0.0", "VLLAMA_API_KEY": "k"}, None),
        ({"VLLAMA_HOST": "0.0.0.0"}, r"http://0.0.0.0:11434\b.* run, add, replace and delete"),
        ({"VLLAMA_HOST": "[::]"}, r"http://\[::\]:11434\b"),
        ({"VLLAMA_HOST": "gpu"}, "http://gpu:11434 is open"),
        ({"VLLAMA_HOST": "gpu", "VLLAMA_READ_ONLY": "1"}, "can run its models; "),
        ({"VLLAMA_HOST": "gpu", "VLLAMA_TLS_CERT": "c"}, "https://gpu:11434 is open"),
    ],
)
def test_the_warning_of_a_server_for_all(settings: dict[str, str], words: str | None) -> None:
    warning = config.load({}, settings).exposure
    if words is None:
        assert warning is None
    else:
        assert warning is not None and re.search(words, warning)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("engine_args", ("--seed", "1", "--name", "a b, c")),
        ("folders", (Path("/a b"), Path("/c,d"))),
        ("origins", ("http://a:1", "http://b:2")),
        ("engine_args", ()),
    ],
)
def test_a_list_as_text_is_read_back(field, value):
    kind = BY_FIELD[field].kind
    text = kind.text(value)
    assert tuple(map(str, kind.parse(text) if text != kind.none else ())) == tuple(map(str, value))
    assert kind.text(list(value)) == text


@pytest.mark.parametrize(
    "value",
    [
        "garbage",
        "grpc://x:4317",
        "http://",
        "http://[",
        "//host",
        "http://host:99999",
        "http://host:x",
    ],
)
def test_an_address_that_cannot_be_asked_is_refused(value):
    with pytest.raises(ValueError, match="not an address like http://host:port"):
        BY_FIELD["otlp_endpoint"].kind.parse(value)
    assert BY_FIELD["otlp_endpoint"].kind.parse("https://host/path") == "https://host/path"


@pytest.mark.parametrize(
    "text",
    [
        "https://a b",
        "https://a;script-src *",
        "a.example",
        "https://a/b",
        "https://u@a",
        "ws://a",
        "https://a\nx",
        "https://*",
        "https://a:x",
    ],
)
def test_only_an_origin_gets_into_the_policy_of_the_page(text):
    with pytest.raises(ValueError, match="not an origin like https://host:port"):
        BY_FIELD["mcp_origins"].kind.parse([text])


def test_an_origin_is_written_as_browsers_do():
    origins = ["https://MCP.example", "http://127.0.0.1:3000", "http://[::1]:80"]
    parsed = BY_FIELD["mcp_origins"].kind.parse(origins)
    assert list(parsed) == [one.lower() for one in origins]
