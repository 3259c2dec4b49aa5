from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tests.hub import Fault, StandInHub
from tests.hub.repos import HubRepo
from vllama.base.errors import AuthRequired, ModelNotFound, Offline, SourceError, VllamaError
from vllama.models.settings import ModelsSettings
from vllama.models.sources.hf import HuggingFace
from vllama.models.types import Format, SourceFile, Transient

FILES = {
    "README.md": b"# card",
    "config.json": b"{}",
    "m-Q4_K_M.gguf": b"4" * 1000,
    "big/m-Q8_0-00001-of-00002.gguf": b"81" * 500,
    "big/m-Q8_0-00002-of-00002.gguf": b"82" * 500,
    "mmproj-F16.gguf": b"eyes",
    "model.safetensors": b"w" * 100,
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"no",
}


@pytest.fixture
def source(settings: ModelsSettings) -> HuggingFace:
    return HuggingFace(settings)


def failure(source: HuggingFace, hub_id: str = "Org/Model") -> VllamaError:
    with pytest.raises(VllamaError) as caught:
        repository = source.resolve(hub_id)
        source.locate(repository, repository.variants[0].files[0])
    return caught.value


def test_variants(hub: StandInHub, source: HuggingFace) -> None:
    repo = hub.add_repo("Org/Model", FILES)
    found = source.resolve("Org/Model")
    assert (found.hub_id, found.commit) == ("Org/Model", repo.refs["main"])
    assert [(v.format, v.label, len(v.files)) for v in found.variants] == [
        (Format.GGUF, "Q8_0", 3),
        (Format.GGUF, "Q4_K_M", 2),
        (Format.SAFETENSORS, "latest", 3),
    ]
    q4 = found.variants[1]
    assert q4.files[-1].path == "mmproj-F16.gguf" and q4.size_bytes == 1004
    assert q4.files[0].sha256 == q4.files[0].etag
    assert len(found.variants[2].files[0].etag or "") == 40
    hub.settle()
    # one request, and nothing that tells about us
    assert [entry.path for entry in hub.log] == ["/api/models/Org/Model?blobs=true"]
    assert "vllama/" in hub.log[0].headers["user-agent"]


def test_locations(hub: StandInHub, source: HuggingFace) -> None:
    hub.add_repo("Org/Model", FILES)
    found = source.resolve("Org/Model")
    by_path = {file.path: file for variant in found.variants for file in variant.files}
    lfs = source.locate(found, by_path["m-Q4_K_M.gguf"])
    assert lfs.url.startswith(f"{hub.cdn_url}/repos/") and lfs.size_bytes == 1000
    assert lfs.etag == by_path["m-Q4_K_M.gguf"].sha256
    git = source.locate(found, by_path["config.json"])
    assert git.url.startswith(hub.url) and git.etag == by_path["config.json"].etag


def test_the_token_stays_with_the_hub(
    hub: StandInHub, with_settings: Callable[..., ModelsSettings]
) -> None:
    hub.add_repo("Org/Model", FILES, gated="manual", private=True)
    hub.tokens["hf_good"] = {"Org/Model"}
    source = HuggingFace(with_settings(hf_token="hf_good"))
    found = source.resolve("Org/Model")
    assert found.gated == "manual"
    by_path = {file.path: file for variant in found.variants for file in variant.files}
    assert "authorization" not in source.locate(found, by_path["m-Q4_K_M.gguf"]).headers
    own = source.locate(found, by_path["config.json"])
    assert own.headers["authorization"] == "Bearer hf_good"
    assert "hf_good" not in repr(own)


def test_wrong_case_gives_the_real_id(hub: StandInHub, source: HuggingFace) -> None:
    hub.add_repo("Org/Model", FILES)
    assert source.resolve("ORG/model").hub_id == "Org/Model"


def test_gated(hub: StandInHub, with_settings: Callable[..., ModelsSettings]) -> None:
    hub.add_repo("Org/Model", FILES, gated="auto")
    hub.tokens["hf_other"] = set()
    error = failure(HuggingFace(with_settings()))
    assert isinstance(error, AuthRequired)
    assert "https://huggingface.co/Org/Model" in str(error.hint)
    assert "HF_TOKEN" in str(error.hint) and "hf auth login" in str(error.hint)
    error = failure(HuggingFace(with_settings(hf_token="hf_other")))
    assert isinstance(error, AuthRequired) and "your token has no access" in str(error.hint)


@pytest.mark.parametrize("token", [None, "hf_valid"])
def test_missing_or_private(
    hub: StandInHub, with_settings: Callable[..., ModelsSettings], token: str | None
) -> None:
    hub.tokens["hf_valid"] = set()
    hub.add_repo("Org/Secret", FILES, private=True)
    source = HuggingFace(with_settings(hf_token=token))
    for name in ("Org/Absent", "Org/Secret"):
        error = failure(source, name)
        assert isinstance(error, ModelNotFound) and error.name == name
        assert "no such repository, or it is private" in error.message
        assert "check the spelling" in str(error.hint)


@pytest.mark.parametrize("token", ["hf_a\nb", "\ufeffhf_a", "hf_\u200ba"])
def test_a_token_that_cannot_be_sent_is_our_fault(
    hub: StandInHub, with_settings: Callable[..., ModelsSettings], token: str
) -> None:
    error = failure(HuggingFace(with_settings(hf_token=token)))
    assert "token" in error.message and "does not answer" not in error.message
    assert "hf_a" not in error.sentence()


def test_no_token_is_none_of_another_tool_either(
    hub: StandInHub, with_settings: Callable[..., ModelsSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    hub.add_repo("Org/Model", FILES)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.setenv("HF_TOKEN", "hf_\u200bx")
    assert HuggingFace(with_settings(hf_token="")).resolve("Org/Model").hub_id == "Org/Model"


def test_bad_token(hub: StandInHub, with_settings: Callable[..., ModelsSettings]) -> None:
    hub.add_repo("Org/Model", FILES)
    error = failure(HuggingFace(with_settings(hf_token="hf_wrong")))
    assert isinstance(error, AuthRequired) and "does not accept the token" in error.message
    assert "hf_wrong" not in error.sentence()


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (429, Transient, "rate limited"),
        (500, Transient, "returned 500"),
        (503, Transient, "returned 503"),
        (403, AuthRequired, "may not read"),
        (404, ModelNotFound, "not found"),
        (418, SourceError, "returned 418"),
    ],
)
def test_statuses(
    hub: StandInHub, source: HuggingFace, status: int, kind: type[VllamaError], says: str
) -> None:
    hub.fault = lambda method, path, headers, server: Fault(status=status)
    error = failure(source)
    assert type(error) is kind and says in error.message


class Failing:
    """Answers the first `times` requests with a fault."""

    def __init__(self, fault: Fault, times: int) -> None:
        self.fault, self.left, self.asked = fault, times, 0

    def __call__(self, *_: object) -> Fault | None:
        self.asked += 1
        self.left -= 1
        return self.fault if self.left >= 0 else None


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=503),
        Fault(status=429),
        Fault(status=429, headers={"RateLimit": '"api";r=0;t=0'}),
        Fault(status=500, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}),
    ],
)
def test_an_overloaded_hub_is_asked_again(
    hub: StandInHub, source: HuggingFace, fault: Fault
) -> None:
    hub.add_repo("Org/Model", FILES)
    hub.fault = Failing(fault, 2)
    assert source.resolve("Org/Model").hub_id == "Org/Model"


def test_a_hub_that_wants_a_long_pause_is_not_waited_for(
    hub: StandInHub, source: HuggingFace
) -> None:
    hub.add_repo("Org/Model", FILES)
    hub.fault = failing = Failing(Fault(status=429, headers={"Retry-After": "3600"}), 9)
    error = failure(source)
    assert isinstance(error, Transient) and error.hint == "try again in 3600 s"
    assert failing.asked == 1


def test_redirects_without_end(hub: StandInHub, source: HuggingFace) -> None:
    hub.fault = lambda method, path, headers, server: Fault(status=302, headers={"Location": path})
    error = failure(source)
    assert type(error) is SourceError and "redirects endlessly" in error.message


def test_a_careless_mirror(
    hub: StandInHub, source: HuggingFace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no choice depends on may be missing or nonsense."""
    repo = hub.add_repo("Org/Model", FILES)
    whole = type(repo).info

    def info(self: HubRepo, *args: Any) -> dict[str, Any]:
        kept = {key: whole(self, *args).get(key) for key in ("id", "sha", "siblings")}
        return {**kept, "safetensors": {"total": None}, "gguf": [], "cardData": "text", "tags": 5}

    monkeypatch.setattr(type(repo), "info", info)
    found = source.resolve("Org/Model")
    assert len(found.variants) == 3 and found.gated is None and found.bases == ()
    assert source.children("Org/Model") == ()


@pytest.mark.parametrize("etag", ['"../../x"', '"/etc/x"', '""', '".."'])
def test_a_checksum_that_cannot_name_a_file(
    hub: StandInHub, source: HuggingFace, etag: str
) -> None:
    hub.add_repo("Org/Model", FILES)
    found = source.resolve("Org/Model")
    headers = {"X-Linked-Etag": etag, "X-Repo-Commit": found.commit, "X-Linked-Size": "5"}
    hub.fault = lambda *_: Fault(status=200, headers=headers)
    with pytest.raises(SourceError, match="no checksum"):
        source.locate(found, found.variants[0].files[0])


def test_file_gone_meanwhile(hub: StandInHub, source: HuggingFace) -> None:
    hub.add_repo("Org/Model", FILES)
    found = source.resolve("Org/Model")
    with pytest.raises(ModelNotFound, match="no such file"):
        source.locate(found, SourceFile(path="gone.gguf", size_bytes=1))
    hub.repos["Org/Model"].snapshots.clear()
    with pytest.raises(ModelNotFound, match="no such revision"):
        source.locate(found, found.variants[0].files[0])


def test_unreachable_and_offline(
    hub: StandInHub, with_settings: Callable[..., ModelsSettings]
) -> None:
    error = failure(HuggingFace(with_settings(hf_endpoint="http://127.0.0.1:9")))
    assert isinstance(error, Offline) and "cannot reach 127.0.0.1:9" in error.message
    error = failure(HuggingFace(with_settings(hf_offline=True)))
    assert isinstance(error, Offline) and "offline mode" in error.message
    error = failure(HuggingFace(with_settings(hf_endpoint="no-scheme")))
    assert isinstance(error, (Offline, SourceError))
    assert hub.log == []


def test_names_that_the_hub_forbids(hub: StandInHub, source: HuggingFace) -> None:
    assert isinstance(failure(source, "Org/bad--name"), ModelNotFound)


class TestStandInHub:
    """The double itself, where no other test touches it."""

    def get(self, hub: StandInHub, path: str) -> httpx2.Response:
        return httpx2.get(hub.url + path)

    def test_lists_are_paged_and_filtered(self, hub: StandInHub) -> None:
        import huggingface_hub

        for number in range(5):
            hub.add_repo(f"o/m{number}", {}, tags=("gguf",), downloads=number)
        hub.add_repo("o/other", {}, tags=("safetensors",))
        hub.page = 2
        api = huggingface_hub.HfApi(endpoint=hub.url)
        listed = [model.id for model in api.list_models(filter="gguf", sort="downloads")]
        assert listed == ["o/m4", "o/m3", "o/m2", "o/m1", "o/m0"]
        assert [model.id for model in api.list_models(search="OTH")] == ["o/other"]

    def test_trees(self, hub: StandInHub) -> None:
        import huggingface_hub

        hub.add_repo("o/r", FILES)
        api = huggingface_hub.HfApi(endpoint=hub.url)
        files = {entry.path for entry in api.list_repo_tree("o/r", recursive=True)}
        assert files == {*FILES, "big"}
        assert len(list(api.list_repo_tree("o/r", "big"))) == 2
        assert api.model_info("o/r", expand=["downloads"]).downloads == 0
        assert json.loads(self.get(hub, "/api/whoami-v2").text) == {"error": "Unauthorized"}
        assert self.get(hub, "/nothing").status_code == 404

    def test_ranges(self, hub: StandInHub) -> None:
        repo = hub.add_repo("o/r", {"m.gguf": b"0123456789"})
        sha = repo.snapshots[repo.refs["main"]]["m.gguf"].sha256
        url = f"{hub.cdn_url}/repos/{sha}?X-Amz-Signature=first"
        for asked, status, body in [
            ("bytes=2-4", 206, b"234"),
            ("bytes=8-", 206, b"89"),
            ("bytes=8-99", 206, b"89"),
            ("bytes=10-", 416, b""),
        ]:
            answer = httpx2.get(url, headers={"range": asked})
            assert (answer.status_code, answer.content) == (status, body)
        hub.expire()
        assert httpx2.get(url).status_code == 403
