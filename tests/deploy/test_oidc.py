"""Sign-in by oauth2-proxy: the compose file, and nginx between users, programs and the server.

oauth2-proxy itself is a stand-in here that knows sessions by their cookies. The files were tried
with oauth2-proxy 7.15.6 and an OpenID provider.
"""

from __future__ import annotations

import csv
import http.client
import io
import json
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_containers import BIN, run
from tests.deploy.test_rolling_update import run_nginx
from tests.ports import free_port
from tests.routes.test_access import command
from tests.server.test_tls import Pair
from tests.server_process import LIMIT_S, Server

OIDC = Path(__file__).parents[2] / "deploy" / "oidc"
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "keys.md"
OPTIONS = {
    "client-id", "client-secret", "code-challenge-method", "cookie-secret", "email-domains",
    "http-address", "oidc-issuer-url", "provider", "redirect-url", "reverse-proxy",
    "set-xauthrequest", "skip-provider-button", "trusted-proxy-ips", "upstreams",
}  # fmt: skip
"""As https://oauth2-proxy.github.io/oauth2-proxy/configuration/overview lists them."""


def test_the_compose_file() -> None:
    file = OIDC / "compose.yaml"
    run(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", file)
    comment, services = file.read_text(), yaml.safe_load(file.read_text())["services"]
    given = services["oauth2-proxy"]["environment"]
    named = {name.removeprefix("OAUTH2_PROXY_").lower().replace("_", "-") for name in given}
    assert named == OPTIONS
    assert given["OAUTH2_PROXY_SET_XAUTHREQUEST"] == given["OAUTH2_PROXY_REVERSE_PROXY"] == "true"
    assert "ports" not in services["oauth2-proxy"] and "ports" not in services["vllama"]
    variables = set(re.findall(r"\$\{(\w+):-\}", comment))
    assert variables == set(re.findall(r"^# +([A-Z_]+)=", comment, re.MULTILINE))
    template, _, _ = services["nginx"]["volumes"][0].partition(":")
    assert (OIDC / template).exists() and "${VLLAMA_WEB_KEY}" in (OIDC / template).read_text()
    added = re.findall(r"keys add web.*", comment)[0]
    assert added in GUIDE.read_text(), "the guide and the file say the same"


class Sessions(BaseHTTPRequestHandler):
    """oauth2-proxy, as far as `auth_request` asks it: 202 with the address, or 401."""

    def do_GET(self) -> None:
        cookie = self.headers.get("cookie", "")
        known = self.path == "/oauth2/auth" and cookie.startswith("session=")
        self.send_response(202 if known else 401 if self.path == "/oauth2/auth" else 200)
        if known:
            self.send_header("x-auth-request-email", cookie.removeprefix("session="))
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def proxied(folder: Path, server: Server, pair: Pair, web_key: str) -> Iterator[int]:
    """Run nginx with the template before a server; yield its port."""
    sessions = ThreadingHTTPServer(("127.0.0.1", 0), Sessions)
    threading.Thread(target=sessions.serve_forever, daemon=True).start()
    port, config = free_port(), (OIDC / "nginx.conf.template").read_text()
    for there, here in (
        ("server vllama:11434", f"server 127.0.0.1:{server.port}"),
        ("server oauth2-proxy:4180", f"server 127.0.0.1:{sessions.server_port}"),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/nginx/tls/fullchain.pem", str(pair.chain)),
        ("/etc/nginx/tls/privkey.pem", str(pair.key)),
        ("${VLLAMA_WEB_KEY}", web_key),
    ):
        assert there in config
        config = config.replace(there, here)
    try:
        with run_nginx(folder / "nginx", port, config):
            yield port
    finally:
        sessions.shutdown()
        sessions.server_close()


CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "@tokens=5"}],
    "stream": False,
    "max_tokens": 50,
}
ANN, BOB, FAKED = {"cookie": "session=ann@x.org"}, {"cookie": "session=bob@x.org"}, "boss@x.org"


@pytest.mark.slow
def test_who_is_let_in_and_counted(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "tls", "localhost")
    trust = ssl.create_default_context(cafile=str(pair.authority))
    with Server(tmp_path / "home", "--require-keys") as server:
        server.model("m")
        root = command(server, "keys", "add", "root", "--scope", "admin")
        words = ("keys", "add", "web", "--scope", "infer,read", "--trusts-user", "yes")
        web = command(server, *words, key=root)
        bearer = {"authorization": f"Bearer {command(server, 'keys', 'add', 'app', key=root)}"}
        with proxied(tmp_path, server, pair, web) as port:

            def ask(
                path: str, headers: dict[str, str], body: Any = None
            ) -> http.client.HTTPResponse:
                connection = http.client.HTTPSConnection(
                    "localhost", port, timeout=LIMIT_S, context=trust
                )
                method = "GET" if body is None else "POST"
                connection.request(method, path, json.dumps(body) if body else None, headers)
                answer = connection.getresponse()
                answer.read()
                connection.close()
                return answer

            signing_in = ask("/models?a=1", {})
            where = signing_in.getheader("location", "")
            assert signing_in.status == 302 and where.endswith("/oauth2/start?rd=/models?a=1")
            assert ask("/oauth2/start", {}).status == 200
            origin = {"origin": f"https://localhost:{port}"}
            for path, headers, body, status in (
                ("/api/tags", {}, None, 401),
                ("/v1/chat/completions", {}, CHAT, 401),
                ("/v1/chat/completions", bearer, CHAT, 200),
                ("/v1/chat/completions", bearer | {"x-forwarded-email": FAKED}, CHAT, 200),
                ("/v1/chat/completions", bearer | ANN, CHAT, 200),
                ("/v1/messages", {"x-api-key": bearer["authorization"][7:]}, CHAT, 200),
                ("/v1/messages", {"x-api-key": "sk-wrong"} | ANN, CHAT, 401),
                ("/", ANN, None, 200),
                ("/api/events?events=models", {"authorization": "Bearer wrong"} | ANN, None, 401),
                ("/api/chat", ANN | origin, CHAT, 200),
                ("/v1/chat/completions", ANN | {"x-forwarded-email": FAKED}, CHAT, 200),
                ("/v1/chat/completions", BOB | {"x-forwarded-user": FAKED}, CHAT, 200),
                ("/api/config", BOB, None, 403),
            ):
                assert ask(path, headers, body).status == status, (path, headers)
        told = command(server, "usage", "--by", "key,user", "--csv", key=root)
    rows = csv.DictReader(io.StringIO(told))
    found = [(row["key"], row["user"], row["requests"]) for row in rows]
    assert found == [("app", "", "4"), ("web", "ann@x.org", "2"), ("web", "bob@x.org", "1")]
