"""What a conversion tool finds when it runs."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from vllama.models.convert.tools import run_tool


def test_temporary_files_of_a_tool_lie_where_its_others_do(tmp_path: Path) -> None:
    told: list[str] = []
    script = "import tempfile; print(tempfile.mkstemp()[1])"
    argv = [sys.executable, "-c", script]
    run = run_tool(argv, task="x", env=dict(os.environ), folder=tmp_path, on_line=told.append)
    asyncio.run(run)
    assert Path(told[-1]).parent == tmp_path
