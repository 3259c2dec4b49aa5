"""What a server records on disk, opened as the settings say."""

from __future__ import annotations

from pathlib import Path

from vllama.captures.folder import CaptureFolder
from vllama.clock import Clock
from vllama.config import Config, describe_answering
from vllama.keys.limits import KeyLimits, name_day
from vllama.metrics.server_metrics import Metrics
from vllama.routes.capture_writer import Captures
from vllama.routes.metering import Meter
from vllama.scheduler.draft_records import DraftRecords
from vllama.usage.recorder import open_recorder


def open_draft_records(config: Config) -> DraftRecords:
    """Return the measured speeds of models with draft models."""
    return DraftRecords(config.data_dir / "drafts.json")


def open_captures(config: Config) -> Captures | None:
    """Return what records requests, None if the settings want none recorded."""
    if not config.capture:
        return None
    most = config.capture if isinstance(config.capture, int) else None
    return Captures(CaptureFolder(config.capture_dir, most=most), describe_answering(config))


def open_meter(data_dir: Path, metrics: Metrics, clock: Clock) -> Meter:
    """Return what counts requests, which goes on where the server before this one ended."""
    limits, recorder = KeyLimits(clock), open_recorder(data_dir / "usage")
    if recorder is not None:
        now_s, store = clock.time(), recorder.store
        day = name_day(now_s)
        limits.restore(day, store.sum_tokens(day), store.list_admitted(now_s))
    return Meter(limits, recorder, metrics, clock)
