from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vllama.models.hub_cache import HubRepo


def test_two_pulls_may_link_one_file_at_once(tmp_path: Path) -> None:
    repo = HubRepo(tmp_path, "o/r")
    repo.prepare()
    for etag in "ab":
        repo.blob(etag).write_text(etag)

    def link(etag: str) -> set[str]:
        return {repo.link("c" * 40, "m.gguf", etag).read_text() for _ in range(300)}

    with ThreadPoolExecutor(4) as pool:
        seen = set().union(*pool.map(link, "abab"))
    assert seen <= {"a", "b"}
    assert sorted(path.name for path in repo.root.iterdir()) == ["blobs", "snapshots"]
