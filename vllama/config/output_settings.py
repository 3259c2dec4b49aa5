"""The settings of what vllama writes: its folders, logs, traces and captures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vllama.config import kinds
from vllama.config.folders import default_data_dir
from vllama.config.setting import Effect, setting


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """The part of `Config` that says where to write, and how much."""

    data_dir: Path = setting(
        None, kinds.FOLDER, "where vllama keeps what it writes",
        example="~/.local/share/vllama", factory=default_data_dir, effect=Effect.RESTART,
    )  # fmt: skip
    log_dir: Path = setting(
        None, kinds.FOLDER, "logs of the engines and of vllama",
        example="~/.local/share/vllama/logs", factory=lambda: default_data_dir() / "logs",
        effect=Effect.RESTART,
    )  # fmt: skip
    run_dir: Path = setting(
        None, kinds.FOLDER, "records of running engines",
        example="~/.local/share/vllama/run", factory=lambda: default_data_dir() / "run",
        effect=Effect.RESTART,
    )  # fmt: skip
    nohistory: bool = setting(
        False, kinds.SWITCH, "keep no history of what is typed",
        example="true", foreign="OLLAMA_NOHISTORY", effect=Effect.COMMANDS,
    )  # fmt: skip
    debug: bool = setting(
        False, kinds.SWITCH, "log more",
        example="true", flag="--debug", foreign="OLLAMA_DEBUG",
    )  # fmt: skip
    debug_log_requests: bool = setting(
        False, kinds.SWITCH,
        "keep the body of every request to a model in a file, with a command that repeats it",
        example="true", foreign="OLLAMA_DEBUG_LOG_REQUESTS", effect=Effect.RESTART,
    )  # fmt: skip
    capture: int | Path = setting(
        0, kinds.CAPTURES,
        "keep the last N requests to models with their answers, or as many as 1 GiB holds in the "
        "folder DIR; see 'vllama requests' and 'vllama replay'",
        example="100", flag="--capture", effect=Effect.RESTART,
    )  # fmt: skip
    log_format: str = setting(
        "text", kinds.choice("text", "json"), "form of the log",
        example="json", flag="--log-format", effect=Effect.RESTART,
    )  # fmt: skip
    otlp_endpoint: str | None = setting(
        None, kinds.HTTP_URL,
        "OpenTelemetry collector to send a trace of each request to, over HTTP (needs the extra "
        "otel); the other OTEL_ variables hold too",
        example="http://127.0.0.1:4318", flag="--otlp-endpoint",
        foreign="OTEL_EXPORTER_OTLP_ENDPOINT", effect=Effect.RESTART,
    )  # fmt: skip

    @property
    def own_folders(self) -> tuple[Path, ...]:
        """The folders that hold nothing but what vllama has written, whoever made them."""
        data = (self.data_dir,) if self.data_dir == default_data_dir() else ()
        return data + tuple(f for f in (self.log_dir, self.run_dir) if f.parent == self.data_dir)

    @property
    def capture_dir(self) -> Path:
        """The folder of the captures, whether any are kept or not."""
        return self.capture if isinstance(self.capture, Path) else self.data_dir / "captures"
