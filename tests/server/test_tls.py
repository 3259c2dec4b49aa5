"""https: the certificate, its replacement while streams run, and the commands as clients."""

from __future__ import annotations

import http.client
import json
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from tests.server_process import LIMIT_S, Server
from vllama.base.errors import ConfigError
from vllama.net.http.listener import Certificate

pytestmark = pytest.mark.slow

STREAM = {"model": "slow", "messages": [{"role": "user", "content": "@tokens=400"}]}


class Pair:
    """A certificate of an authority of its own, in the two files that a server is given."""

    def __init__(self, folder: Path, *names: str) -> None:
        folder.mkdir(exist_ok=True)
        self.chain, self.key, self.authority = (
            folder / name for name in ("chain.pem", "key.pem", "authority.pem")
        )
        self.issue(*names)

    def issue(self, *names: str, days: float = 365.0) -> None:
        """Write a new certificate for some days, of a new authority, over the old one."""
        authority = trustme.CA()
        names = names or ("127.0.0.1", "localhost")
        now = datetime.now(UTC)
        issued = authority.issue_cert(
            *names, not_before=now - timedelta(days=9), not_after=now + timedelta(days=days)
        )
        self.chain.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.key.chmod(0o600)
        authority.cert_pem.write_to_path(str(self.authority))

    @property
    def flags(self) -> tuple[str, ...]:
        return "--tls-cert", str(self.chain), "--tls-key", str(self.key)


class TlsServer(Server):
    """A server that speaks https, and clients that trust what `trust` says at the moment."""

    def __init__(self, home: Path, trust: Path, *arguments: str) -> None:
        super().__init__(home, *arguments)
        self.trust, self.trust_all = trust, False

    def connect(self) -> http.client.HTTPConnection:
        context = ssl.create_default_context(cafile=str(self.trust))
        if self.trust_all:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=LIMIT_S, context=context)

    def hang_up(self, told: str) -> None:
        """Send SIGHUP, and wait until the log tells what came of it."""
        before = len(self.output)
        assert self.process
        self.process.send_signal(signal.SIGHUP)
        self.wait_for(rf"(?s)\A.{{{before}}}.*{told}.*settings reloaded")

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the command line against it."""
        return subprocess.run(
            [sys.executable, "-m", "vllama", *words],
            env=self.env | {"OLLAMA_HOST": f"https://127.0.0.1:{self.port}"} | env,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path / "tls")


@pytest.fixture
def server(tmp_path: Path, pair: Pair) -> Iterator[TlsServer]:
    with TlsServer(tmp_path / "home", pair.authority, *pair.flags) as running:
        yield running


def test_a_new_certificate_while_a_stream_runs(server: TlsServer, pair: Pair) -> None:
    server.model("slow", "--token-interval", "0.005")
    kept = server.connect()
    kept.request("GET", "/api/version")
    kept.getresponse().read()
    with server.open("/api/chat", STREAM) as answer:
        assert json.loads(answer.readline())["message"]["content"]
        before = pair.authority.read_text()
        pair.issue()
        server.hang_up("certificate reloaded")
        assert "version" in server.get("/api/version")  # the new authority is trusted alone
        server.trust.write_text(before)
        with pytest.raises(ssl.SSLCertVerificationError):
            server.get("/api/version")
        kept.request("GET", "/api/version")  # a connection keeps what it began with
        assert kept.getresponse().status == 200
        lines = [json.loads(line) for line in answer]
    assert lines[-1]["done"] and sum(bool(x["message"]["content"]) for x in lines) == 399
    kept.close()


def test_a_bad_certificate_leaves_the_old_one(server: TlsServer, pair: Pair) -> None:
    for damage in ("no certificate", Pair(server.home / "other").chain.read_text()):
        pair.chain.write_text(damage)
        server.hang_up(r"ERROR.*the certificate is unchanged: cannot use the certificate")
        assert "version" in server.get("/api/version")


@pytest.mark.parametrize(("days", "warns"), [(13.5, True), (-2.5, True), (14.5, False)])
def test_the_expiry_of_a_certificate(days: float, warns: bool, pair: Pair, tmp_path: Path) -> None:
    pair.issue(days=days)
    expires_s = time.time() + days * 86_400
    with TlsServer(tmp_path / "home", pair.authority, *pair.flags) as server:
        server.trust_all = True

        def read() -> float:
            text = server.request("GET", "/metrics")[2].decode()
            (found,) = re.findall(r"^vllama_certificate_expiration_\w+ (\S+)", text, re.MULTILINE)
            return float(found)

        assert abs(read() - expires_s) < 60
        if warns:
            server.wait_for(
                rf"WARN.*the certificate '{pair.chain}' expires at \d{{4}}-.*: renew it"
            )
        assert server.output.count("the certificate '") == warns
        pair.issue(days=90)
        server.hang_up("certificate reloaded")
        assert abs(read() - expires_s - (90 - days) * 86_400) < 60


def test_commands_as_clients(server: TlsServer, pair: Pair, tmp_path: Path) -> None:
    assert f"listening on https://127.0.0.1:{server.port}" in server.output
    done = server.run("ps", SSL_CERT_FILE=str(pair.authority))
    assert done.returncode == 0 and "No models are loaded" in done.stderr
    # with the server's own settings the scheme need not be said
    here = {"VLLAMA_TLS_CERT": str(pair.chain), "SSL_CERT_FILE": str(pair.authority)}
    assert server.run("ps", OLLAMA_HOST=f"127.0.0.1:{server.port}", **here).returncode == 0

    plain = server.run("ps", OLLAMA_HOST=f"127.0.0.1:{server.port}")
    assert plain.returncode == 1 and "https://… for TLS" in plain.stderr
    unknown = server.run("ps")
    assert unknown.returncode == 1 and "cannot trust the server" in unknown.stderr
    assert "SSL_CERT_FILE=FILE" in unknown.stderr


def test_a_server_with_another_name_is_not_trusted(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "tls", "elsewhere.example")
    with TlsServer(tmp_path / "home", pair.authority, *pair.flags) as server:
        done = server.run("ps", SSL_CERT_FILE=str(pair.authority))
    assert done.returncode == 1 and "not valid for '127.0.0.1'" in done.stderr


def test_https_without_a_certificate_is_told(tmp_path: Path) -> None:
    with Server(tmp_path, env={"OLLAMA_HOST": "https://127.0.0.1"}) as server:
        assert "serving http, not https" in server.output
        assert "version" in server.get("/api/version")


def test_older_protocols_are_refused(pair: Pair) -> None:
    context = Certificate(pair.chain, pair.key).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_one_file_may_hold_both(pair: Pair) -> None:
    pair.chain.write_bytes(pair.chain.read_bytes() + pair.key.read_bytes())
    Certificate(pair.chain, None)


def test_what_is_no_pair(pair: Pair, tmp_path: Path) -> None:
    other = Pair(tmp_path / "other")
    empty = tmp_path / "empty.pem"
    empty.touch()
    missing = tmp_path / "missing.pem"
    for chain, key, reason in (
        (pair.chain, other.key, "key values mismatch"),
        (empty, pair.key, "not PEM"),
        (pair.chain, empty, "not PEM"),
        (pair.chain, None, "not PEM"),
        (missing, pair.key, f"'{missing}': No such file"),
        (pair.chain, missing, f"'{missing}': No such file"),
        (tmp_path, pair.key, f"'{tmp_path}': Is a directory"),
    ):
        with pytest.raises(ConfigError) as caught:
            Certificate(chain, key)
        assert reason in caught.value.message, (chain.name, caught.value.message)


def test_a_start_with_a_bad_pair_ends_at_once(tmp_path: Path, pair: Pair) -> None:
    server = Server(tmp_path / "home", "--tls-cert", str(pair.chain), "--tls-key", "/none.pem")
    done = subprocess.run(
        server.command, env=server.env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "'/none.pem': No such file" in done.stderr


def test_a_key_with_a_password(pair: Pair) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    pair.key.write_bytes(locked)
    with pytest.raises(ConfigError, match="the key has a password"):
        Certificate(pair.chain, pair.key)
