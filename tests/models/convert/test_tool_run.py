"""What a conversion tool finds when it runs."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from vllama.models.convert.tools import run_tool


def test_temporary_files_of_a_tool_lie_where_its_others_do(tmp_path: Path) -> None:
    told: list[float] = []
    script = "import tempfile; print('Writing: 40%', flush=True); tempfile.mkstemp(suffix='.own')"
    argv = [sys.executable, "-c", script]
    run = run_tool(argv, task="x", env=dict(os.environ), folder=tmp_path, on_progress=told.append)
    asyncio.run(run)
    assert len(list(tmp_path.glob("*.own"))) == 1
    assert told == [0.4]
