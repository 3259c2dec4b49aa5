"""How a request ended, in one word: the same in metrics, traces, captures, events and the log."""

from __future__ import annotations

from typing import Literal

Outcome = Literal["ok", "error", "aborted", "stopped"]
"""`ok`; `error`, also within a stream whose status was 200; `aborted` by a client that left;
`stopped` by an administrator (`vllama stop --request`, or the page)."""
