"""The settings of the server: its address, who may use it, and how it stops."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vllama.config import kinds, parse
from vllama.config.setting import Effect, setting


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The part of `Config` about the server and its clients.

    `port` 0 takes any free port. `api_key` has the keys of `api_key_file` too.
    """

    host: str = setting(
        "127.0.0.1", kinds.text("ADDRESS", parse.host), "address to listen on",
        example="0.0.0.0:11434", flag="--host", foreign="OLLAMA_HOST", effect=Effect.RESTART,
    )  # fmt: skip
    port: int = setting(
        11434, kinds.number(0, 65535), "port to listen on; 0 takes any free one",
        example="11434", flag="--port", effect=Effect.RESTART,
    )  # fmt: skip
    watch: bool = setting(
        False, kinds.SWITCH,
        "take over changes of the config file, and of the files that it names, without a signal",
        example="true", flag="--watch", effect=Effect.RESTART,
    )  # fmt: skip
    drain_timeout_s: float = setting(
        10.0, kinds.DURATION, "how long running answers may take when the server stops",
        example="10s", effect=Effect.RESTART,
    )  # fmt: skip
    shutdown_delay_s: float = setting(
        0.0, kinds.DURATION,
        "how long a server that is told to stop still accepts requests while /readyz says no, for "
        "load balancers that have to notice",
        example="10s", effect=Effect.RESTART,
    )  # fmt: skip
    max_buffer_size_bytes: int = setting(
        512 * 1024 * 1024, kinds.SIZE,
        "memory for all requests that arrive or wait, and answers that clients do not read; what "
        "does not fit is refused",
        example="512MiB", effect=Effect.RESTART,
    )  # fmt: skip
    origins: tuple[str, ...] = setting(
        (), kinds.many(kinds.URL), "further origins that browsers may call from",
        example="https://chat.example", foreign="OLLAMA_ORIGINS",
    )  # fmt: skip
    api_key: tuple[str, ...] = setting(
        (), kinds.many(kinds.KEY),
        "keys; every request except / and the health checks must send one of them; other users of "
        "this machine can see flags, but not api_key_file",
        example="sk-1234", flag="--api-key", secret=True,
    )  # fmt: skip
    api_key_file: Path | None = setting(
        None, kinds.FILE, "file with more such keys, one a line; SIGHUP reads it again",
        example="/etc/vllama/keys", flag="--api-key-file",
    )  # fmt: skip
    require_keys: bool = setting(
        False, kinds.SWITCH,
        "accept no request without a key, even if the file of the named keys is gone or empty",
        example="true", flag="--require-keys", effect=Effect.RESTART,
    )  # fmt: skip
    client_key: str | None = setting(
        None, kinds.KEY,
        "key that the commands show to the server; the first api_key where there is one",
        example="sk-1234", foreign="OLLAMA_API_KEY", secret=True, effect=Effect.COMMANDS,
    )  # fmt: skip
    tls_cert: Path | None = setting(
        None, kinds.FILE,
        "certificate to serve https with, and its chain (PEM); SIGHUP reads it again",
        example="/etc/vllama/cert.pem", flag="--tls-cert", effect=Effect.RESTART,
    )  # fmt: skip
    tls_key: Path | None = setting(
        None, kinds.FILE, "private key of the certificate (PEM), if it is not in the same file",
        example="/etc/vllama/key.pem", flag="--tls-key", effect=Effect.RESTART,
    )  # fmt: skip
    read_only: bool = setting(
        False, kinds.SWITCH,
        "refuse to pull, push, create, copy, delete and upload models over HTTP",
        example="true", flag="--read-only",
    )  # fmt: skip
    inspect_code: bool = setting(
        False, kinds.SWITCH,
        "let keys with the scope admin send fields that an engine may run as code, or that name "
        "files and addresses, such as vllm_xargs",
        example="true", flag="--inspect-code",
    )  # fmt: skip
    no_ui: bool = setting(
        False, kinds.SWITCH, "serve no page to browsers under /ui/",
        example="true", flag="--no-ui",
    )  # fmt: skip
    searxng: str | None = setting(
        None, kinds.HTTP_URL,
        "SearXNG that /api/web_search asks; with it clients may also fetch public pages",
        example="http://127.0.0.1:8888", flag="--searxng", effect=Effect.RESTART,
    )  # fmt: skip
