from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.base.errors import InvalidModelRef
from vllama.models.names.ref import Kind, ModelRef, path_stem

L, H, P = Kind.LIBRARY, Kind.HUB, Kind.PATH


@pytest.mark.parametrize(
    ("text", "kind", "canonical", "display"),
    [
        ("smollm2", L, "registry.ollama.ai/library/smollm2:latest", "smollm2:latest"),
        ("  smollm2:135m\n", L, "registry.ollama.ai/library/smollm2:135m", "smollm2:135m"),
        ("SmolLM2:135M", L, "registry.ollama.ai/library/smollm2:135m", "SmolLM2:135M"),
        ("llama3.2:3b", L, "registry.ollama.ai/library/llama3.2:3b", "llama3.2:3b"),
        ("ollama://qwen3:4b", L, "registry.ollama.ai/library/qwen3:4b", "qwen3:4b"),
        ("library/x:y", H, "hf.co/library/x:y", "hf.co/library/x:y"),
        ("registry.ollama.ai/library/x:y", L, "registry.ollama.ai/library/x:y", "x:y"),
        ("registry.ollama.ai/me/x", L, "registry.ollama.ai/me/x:latest", "me/x:latest"),
        ("host:5000/me/x", L, "host:5000/me/x:latest", "host:5000/me/x:latest"),
        ("https://reg.example.com/me/x:1", L, "reg.example.com/me/x:1", "reg.example.com/me/x:1"),
        ("org/Repo", H, "hf.co/org/repo:latest", "hf.co/org/Repo:latest"),
        ("org/Repo:q4_k_m", H, "hf.co/org/repo:q4_k_m", "hf.co/org/Repo:Q4_K_M"),
        ("hf.co/org/Repo:Q8_0", H, "hf.co/org/repo:q8_0", "hf.co/org/Repo:Q8_0"),
        ("HF.co/org/Repo", H, "hf.co/org/repo:latest", "hf.co/org/Repo:latest"),
        ("huggingface.co/org/Repo", H, "hf.co/org/repo:latest", "hf.co/org/Repo:latest"),
        ("hf://org/Repo", H, "hf.co/org/repo:latest", "hf.co/org/Repo:latest"),
        ("hf://org/Repo:IQ4_XS", H, "hf.co/org/repo:iq4_xs", "hf.co/org/Repo:IQ4_XS"),
        ("https://huggingface.co/org/Repo", H, "hf.co/org/repo:latest", "hf.co/org/Repo:latest"),
        ("https://huggingface.co/org/Repo/", H, "hf.co/org/repo:latest", "hf.co/org/Repo:latest"),
        ("https://hf.co/org/R/tree/main", H, "hf.co/org/r:latest", "hf.co/org/R:latest"),
        (
            "https://huggingface.co/org/R/blob/main/sub/m-Q4_K_M.gguf?x=1",
            H,
            "hf.co/org/r:m-q4_k_m.gguf",
            "hf.co/org/R:m-Q4_K_M.gguf",
        ),
        (
            "hf://org/R/sub/m-Q4_K_M.gguf",
            H,
            "hf.co/org/r:m-q4_k_m.gguf",
            "hf.co/org/R:m-Q4_K_M.gguf",
        ),
        ("hf://hf.co/org/R/m.GGUF", H, "hf.co/org/r:m.gguf", "hf.co/org/R:m.GGUF"),
        ("org/Repo@v1.0", H, "hf.co/org/repo@v1.0:latest", "hf.co/org/Repo@v1.0:latest"),
        ("org/Repo@Dev:q4_k_m", H, "hf.co/org/repo@Dev:q4_k_m", "hf.co/org/Repo@Dev:Q4_K_M"),
        (
            "org/Repo:Q8_0@refs/pr/1",
            H,
            "hf.co/org/repo@refs/pr/1:q8_0",
            "hf.co/org/Repo@refs/pr/1:Q8_0",
        ),
        ("hf.co/org/Repo@main", H, "hf.co/org/repo:latest", "hf.co/org/Repo:latest"),
        ("hf://org/R@v1/sub/m.gguf", H, "hf.co/org/r@v1:m.gguf", "hf.co/org/R@v1:m.gguf"),
        (
            "hf://org/R@refs%2Fpr%2F1",
            H,
            "hf.co/org/r@refs/pr/1:latest",
            "hf.co/org/R@refs/pr/1:latest",
        ),
        ("https://hf.co/o/r/tree/v2", H, "hf.co/o/r@v2:latest", "hf.co/o/r@v2:latest"),
        ("https://hf.co/o/r/blob/ab12/x.gguf", H, "hf.co/o/r@ab12:x.gguf", "hf.co/o/r@ab12:x.gguf"),
        ("ollama://me/x:1", L, "registry.ollama.ai/me/x:1", "me/x:1"),
        ("ollama://library/x", L, "registry.ollama.ai/library/x:latest", "x:latest"),
        ("ollama://host:5000/me/x", L, "host:5000/me/x:latest", "host:5000/me/x:latest"),
        ("hf.co/org/r:ud-q4_k_xl", H, "hf.co/org/r:ud-q4_k_xl", "hf.co/org/r:UD-Q4_K_XL"),
        ("/models/Big Model.Q4_0.gguf", P, "/models/Big Model.Q4_0.gguf", "big-model.q4_0:latest"),
        ("file:///m/x.gguf", P, "/m/x.gguf", "x:latest"),
        ("/models/folder", P, "/models/folder", "folder:latest"),
    ],
)
def test_forms(text: str, kind: Kind, canonical: str, display: str) -> None:
    ref = ModelRef.parse(text)
    assert (ref.kind, ref.canonical, ref.display) == (kind, canonical, display)
    if kind is not P:
        assert canonical in ModelRef.parse(display).candidates
        assert ref.means(display)


@pytest.mark.parametrize(
    "text",
    [
        *("", "  ", ":", "model:", ":tag", "a//b", "a/b/c/d", "a b", "ftp://x/y", "-x"),
        *("x@sha256:abc", "x@v1", "org/repo@", "a" * 81, "x:" + "t" * 81, "n.s/model", "mo\0del"),
        *("hf.co/repo", "hf.co/org/repo/file.gguf", "hf.co/", "hf.co", "x:a:b", "ünï", "x?"),
        *(
            "org/repo@../up",
            "org/repo@a//b",
            "org/repo@x y",
            "hf.co/o/r@sha256:ab",
            "ollama://m@v1",
        ),
        *("https://user@host.example/a/b", "ollama://a/b/c/d", "org/repo@a@b", "org/repo@v.lock"),
        *("h" * 351 + "/n/m", "n" * 81 + "/m", "file://~no-such-user-here/x"),
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(InvalidModelRef) as caught:
        ModelRef.parse(text)
    assert caught.value.message == "invalid model name"
    assert caught.value.hint


def test_an_address_of_a_file_gets_a_hint() -> None:
    with pytest.raises(InvalidModelRef) as caught:
        ModelRef.parse("http://host:9/x.gguf")
    assert caught.value.hint == "download the file first, then use its path"


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert ModelRef.parse("./x").path == tmp_path / "x"
    assert ModelRef.parse("../x").kind is P
    assert ModelRef.parse("~/m.gguf").path == Path("/home/somebody/m.gguf")
    # a name that only looks like a file is a name, whether the file is there or not
    (tmp_path / "here.gguf").touch()
    assert ModelRef.parse("here.gguf").kind is ModelRef.parse("absent.gguf").kind is L


def test_two_segments_may_be_local_or_hub() -> None:
    ref = ModelRef.parse("Me/Mine:v1")
    assert ref.candidates == ("registry.ollama.ai/me/mine:v1", "hf.co/me/mine:v1")
    assert ref.means("me/mine:V1") and ref.means("hf.co/me/mine:v1")
    assert not ModelRef.parse("hf.co/me/mine:v1").means("registry.ollama.ai/me/mine:v1")


@pytest.mark.parametrize(
    ("path", "stem"),
    [
        ("/x/A.Q4_K_M.GGUF", "a.q4_k_m"),
        ("/x/.hidden.gguf", "hidden"),
        ("/x/日本.gguf", "model-4cb764"),
        ("/x/田中.gguf", "model-7b5c66"),
        ("/x/日本-v1.gguf", "v1-234383"),
        ("/x/ünï-Q4_1.gguf", "uni-q4_1"),
        ("/x/a b!.gguf", "a-b"),
        ("/", "root"),
        ("/x/" + "y" * 200 + ".gguf", "y" * 80),
    ],
)
def test_path_stem_is_a_name(path: str, stem: str) -> None:
    assert path_stem(Path(path)) == stem
    assert ModelRef.parse(stem).display == f"{stem}:latest"


@given(st.text(max_size=60))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        ref = ModelRef.parse(text)
    except InvalidModelRef:
        return
    if ref.kind is not Kind.PATH:
        again = ModelRef.parse(ref.display)
        assert ref.canonical in again.candidates
        assert again.display == ref.display
