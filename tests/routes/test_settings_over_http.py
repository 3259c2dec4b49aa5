"""Changes of settings over HTTP: what can be changed, by whom, and what stays as it is if not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server_process import Server
from vllama.config import SETTINGS

pytestmark = pytest.mark.slow  # servers as processes of their own

KEY = "sk-0123456789abcd"
FILE = """\
# ours: how long models stay
keep_alive = "7m"  # decided by Ann

[models."other"]
context_length = 1024
"""
NEVER = {
    "host", "port", "picker_port", "watch", "drain_timeout", "shutdown_delay", "max_buffer_size",
    "origins", "mcp_origins",
    "api_key", "api_key_file", "require_keys", "client_key", "tls_cert", "tls_key", "read_only",
    "inspect_code", "no_ui", "upstreams", "upstream_key", "models_file",
    "allow_registry", "max_blob_size", "folders", "aliases", "models_dir", "ollama_registry",
    "lmstudio_dir", "hf_cache_dir", "hf_endpoint", "hf_token", "hf_offline",
    "data_dir", "log_dir", "run_dir", "nohistory", "capture", "log_format",
    "otlp_endpoint", "model", "replicas", "models", "go_template",
    "gpu_overhead", "engine_paths", "engine_args", "nodes", "node_key_file",
    "node_certs", "no_local", "cache_disk",
    "batch_files", "open", "groups", "currency",
}  # fmt: skip
"""All that names a path, a command, an address or a key, or decides who may do what."""


class Configured(Server):
    """A server with a config file, which it is asked to change."""

    def __init__(self, home: Path, *flags: str, text: str | None = FILE, **more: Any) -> None:
        super().__init__(home, *flags, "--max-queue", "77", **more)
        self.file = home / "config" / "config.toml"
        self.env["VLLAMA_CONFIG"] = str(self.file)
        self.file.parent.mkdir()
        if text is not None:
            self.file.write_text(text)
        else:
            del self.env["VLLAMA_CONFIG"]
            self.env["XDG_CONFIG_HOME"] = str(home / "config")
            self.file = home / "config" / "vllama" / "config.toml"

    def change(self, headers: dict[str, str] | None = None, **values: Any) -> tuple[int, Any]:
        return self.send({"settings": values}, headers)

    def send(self, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        status, _, answer = self.request("PATCH", "/api/config", body, headers)
        return status, json.loads(answer)

    def row(self, key: str) -> dict[str, Any]:
        rows: list[dict[str, Any]] = self.get("/api/config")["settings"]
        return next(row for row in rows if row["key"] == key)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configured]:
    with Configured(tmp_path_factory.mktemp("settings")) as running:
        yield running


@pytest.fixture(autouse=True)
def same_file(server: Configured) -> Iterator[None]:
    """Each test begins with the same file, which the server has read."""
    yield
    if server.file.read_text() != FILE:
        assert server.change(keep_alive="7m")[0] == 200
        server.file.write_text(FILE)
        assert server.change(keep_alive="7m")[0] == 200


def test_a_change_holds_at_once_and_comments_stay(server: Configured) -> None:
    status, told = server.change(keep_alive="10m", threads=3)
    assert status == 200
    rows = {row["key"]: row for row in told["settings"]}
    assert (rows["keep_alive"]["text"], rows["threads"]["text"]) == ("10m", "3")
    assert rows["keep_alive"]["source"] == str(server.file)
    text = server.file.read_text()
    assert '# ours: how long models stay\nkeep_alive = "10m"  # decided by Ann\n' in text
    assert text.index("threads = 3") < text.index("[models")  # else it would be one of the table
    assert text.endswith('[models."other"]\ncontext_length = 1024\n')
    server.wait_for(r'audit: .*"keep_alive": "7m".*"threads": "3", "keep_alive": "10m"')
    status, told = server.change(threads=None, keep_alive="7m")
    assert status == 200 and "threads" not in server.file.read_text()
    assert server.row("threads")["source"] == "default"


def test_what_can_be_changed_says_so(server: Configured) -> None:
    rows = {row["key"]: row for row in server.get("/api/config")["settings"]}
    assert rows["keep_alive"]["changeable"] and not rows["host"]["changeable"]
    assert not rows["max_queue"]["changeable"], "a flag wins over the file"
    assert rows["kv_cache_type"]["schema"]["anyOf"][0]["enum"]
    assert {row["group"] for row in rows.values()} == {
        "Server", "Models and sources", "Engines", "Output",
    }  # fmt: skip


def test_every_setting_is_either_harmless_or_never_changed_over_http() -> None:
    """A new setting cannot be changed until somebody has thought of it here."""
    assert {one.key for one in SETTINGS if not one.remote} == NEVER
    assert not [one.key for one in SETTINGS if one.remote and one.secret]


@pytest.mark.parametrize("key", sorted(NEVER))
def test_paths_commands_addresses_and_keys_cannot_be_changed(server: Configured, key: str) -> None:
    status, told = server.change(keep_alive="10m", **{key: "1"})
    assert status == 403 and f"cannot set '{key}' over HTTP" in told["error"]
    assert server.file.read_text() == FILE and server.row("keep_alive")["text"] == "7m"


@pytest.mark.parametrize(
    ("values", "status", "words"),
    [
        ({"keep_alive": "soon"}, 400, 'cannot set keep_alive to "soon"'),
        ({"upstream_traits": "x"}, 400, "it was removed; use [upstreams.NAME]"),
        ({"threads": -1}, 400, 'cannot set threads to "-1"'),
        ({"engine": "/bin/sh"}, 400, "must be one of auto, external"),
        ({"engine": "../fake"}, 400, "must be one of auto, external"),
        ({"kv_cache_type": "q3_0"}, 400, "not one of"),
        ({"keep_alive": "1m" * 1000}, 400, 'cannot set keep_alive to "1m1m'),
        ({"context_length": '8192"\nengine_args = ["--x"]'}, 400, "cannot set context_length"),
        ({"keep_aliv": "1m"}, 400, "did you mean keep_alive?"),
        ({"models": {"x": {}}}, 400, "Invalid value for"),
        ({"threads": [1]}, 400, "Invalid value for"),
        ({"max_queue": 5}, 409, "it is set by --max-queue, which overrides the file"),
        ({"max_queue": None}, 409, "it is set by --max-queue"),
    ],
)
def test_a_refused_value_changes_nothing(
    server: Configured, values: dict[str, Any], status: int, words: str
) -> None:
    found, told = server.change(**values, strict=True)
    assert found == status and words in told["error"], told
    assert server.file.read_text() == FILE and server.row("strict")["text"] == "false"
    assert [path.name for path in server.file.parent.iterdir()] == ["config.toml"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"settings": 1}', b'{"settings":{},"x":1}'])
def test_a_body_of_another_form_is_refused(server: Configured, body: bytes) -> None:
    status, _, _ = server.request("PATCH", "/api/config", body)
    assert status == 400 and server.file.read_text() == FILE


def test_a_file_that_is_already_wrong_is_not_written(server: Configured) -> None:
    wrong = FILE.replace('"7m"', '"x"')
    server.file.write_text(wrong)
    status, told = server.change(strict=True)
    assert status == 400 and "cannot use keep_alive" in told["error"]
    assert "draft" not in told["error"] and server.file.read_text() == wrong
    server.file.write_text("no TOML at all")
    assert server.change(strict=True)[0] == 400
    assert server.file.read_text() == "no TOML at all"
    server.file.write_text(FILE)


def test_what_the_server_refuses_is_put_back(server: Configured) -> None:
    """The file can be read, and the server cannot work with it."""
    status, told = server.change(engine="vllm", strict=True)
    if status == 200:
        pytest.skip("vllm is installed here")
    assert status == 400, told
    assert server.file.read_text() == FILE
    assert server.get("/api/config")["refused"] == ""


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://127.0.0.1:{port}", 200),
        ("http://localhost:3000", 403),
        ("http://localhost:{port}", 403),
        ("http://127.0.0.1", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("file://", 403),
    ],
)
def test_only_the_servers_own_page_may_change_settings(
    server: Configured, origin: str, expected: int
) -> None:
    headers = {"origin": origin.format(port=server.port)}
    assert server.change(headers, keep_alive="7m")[0] == expected
    assert server.file.read_text() == FILE


def test_no_answer_is_stored(server: Configured) -> None:
    headers = server.request("PATCH", "/api/config", {"settings": {"keep_alive": "7m"}})[1]
    assert headers["cache-control"] == "no-store"


def test_without_a_file_one_is_made(tmp_path: Path) -> None:
    with Configured(tmp_path, text=None) as server:
        assert not server.file.exists()
        assert server.change(keep_alive="10m")[0] == 200
        assert 'keep_alive = "10m"' in server.file.read_text()
        assert server.get("/api/config")["file"] == str(server.file)


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with Configured(tmp_path, text=FILE) as server:
        target = tmp_path / "away"
        server.file.rename(target)
        server.file.symlink_to(tmp_path / "file-not-folder" / "x")
        (tmp_path / "file-not-folder").write_text("")
        status, told = server.change(keep_alive="10m")
        assert status == 409 and "cannot write the config file" in told["error"], told


def test_read_only_holds(tmp_path: Path) -> None:
    with Configured(tmp_path, "--read-only") as server:
        status, told = server.change(keep_alive="10m")
        assert status == 403 and "this server is read-only" in told["error"]
        assert server.file.read_text() == FILE


def test_an_open_server_without_keys_changes_nothing(tmp_path: Path) -> None:
    with Configured(tmp_path, "--host", "0.0.0.0") as server:
        status, told = server.change(keep_alive="10m")
        assert status == 403 and "it requires no key" in told["error"]
        assert server.file.read_text() == FILE


def test_the_scope_admin_is_needed(tmp_path: Path) -> None:
    with Configured(tmp_path, "--api-key", KEY) as server:
        admin = {"authorization": f"Bearer {KEY}"}
        assert server.change(keep_alive="10m")[0] == 401
        for scopes in (["read"], ["infer"], ["read", "infer"]):
            body = {"name": "-".join(["k", *scopes]), "scopes": scopes}
            _, _, answer = server.request("POST", "/api/keys", body, admin)
            weak = {"authorization": f"Bearer {json.loads(answer)['secret']}"}
            status, told = server.change(weak, keep_alive="10m")
            assert status == 403 and "it needs the scope 'admin'" in told["error"]
        assert server.file.read_text() == FILE
        assert server.change(admin, keep_alive="10m")[0] == 200
        server.wait_for(r'audit: .*abcd: config change .*"keep_alive": "10m"')
        assert KEY not in server.output
