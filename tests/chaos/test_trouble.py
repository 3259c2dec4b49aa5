"""A short run of everything at once; `make soak TROUBLE=1 SECONDS=300` is a long one."""

import pytest

from tests.chaos.trouble import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_everything_at_once_where_memory_is_short(tmp_path):
    mix = run(tmp_path, 12.0, 3, every_s=2.0)
    assert not mix.wrong, "\n".join(mix.wrong)
    for name in ("right", "killed", "unload", "copy", "create", "reloaded"):
        assert mix.seen[name], (name, mix.seen)
