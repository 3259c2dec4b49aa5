"""A hub name → the files that are fetched, against the stand-in hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.hub import Fault, StandInHub
from vllama.base.errors import (
    AuthRequired,
    ModelNotFound,
    NoPlan,
    Offline,
    SourceError,
    VllamaError,
)
from vllama.models.names.ref import ModelRef
from vllama.models.resolve.candidates import find_quantized_safetensors
from vllama.models.resolve.search import Resolution, iterate_resolutions
from vllama.models.settings import ModelsSettings
from vllama.models.sources.hf import HuggingFace
from vllama.models.types import Format, Transient

GGUF, ST = Format.GGUF, Format.SAFETENSORS
BASE = "Acme/Rocket-3B-Instruct"
SAFE = {
    "config.json": b"{}",
    "model-00001-of-00002.safetensors": b"1" * 600,
    "model-00002-of-00002.safetensors": b"2" * 400,
    "model.safetensors.index.json": b"{}",
    "tokenizer.json": b"{}",
    "original/consolidated.00.pth": b"x",
    "consolidated.safetensors": b"w" * 1000,
    "pytorch_model.bin": b"p" * 1000,
}
TOTAL = 3_000_000_000


def ggufs(*quants: str, stem: str = "Rocket-3B-Instruct") -> dict[str, bytes]:
    return {f"{stem}-{quant}.gguf": quant.encode() * 9 for quant in quants}


def weights(total: int = TOTAL, dtype: str = "BF16") -> dict[str, object]:
    return {"safetensors": {"parameters": {dtype: total}, "total": total}}


@pytest.fixture
def source(settings: ModelsSettings) -> HuggingFace:
    return HuggingFace(settings)


def add_base(hub: StandInHub, **values: object) -> None:
    extra = {**weights(), **values.pop("extra", {})}  # type: ignore[dict-item]
    hub.add_repo(BASE, SAFE, extra=extra, tags=("safetensors",), **values)


def add_child(
    hub: StandInHub,
    name: str,
    files: Mapping[str, bytes] | None = None,
    *,
    downloads: int = 0,
    total: int | None = TOTAL,
    base: str = BASE,
    **values: object,
) -> None:
    hub.add_repo(
        name,
        ggufs("Q4_K_M", "Q8_0") if files is None else files,
        tags=("gguf", f"base_model:{base}", f"base_model:quantized:{base}"),
        downloads=downloads,
        extra={"gguf": {"total": total, "architecture": "llama"}} if total else {},
        **values,
    )


def choose(source: HuggingFace, name: str, *formats: Format, named: bool = True) -> Resolution:
    ref = ModelRef.parse(name)
    return next(iterate_resolutions(source, ref, formats or (GGUF, ST), named=named))


def taken(found: Resolution) -> tuple[str, str]:
    return found.repository.hub_id, found.variant.label


def why(found: Resolution, hub_id: str) -> str:
    return next(c.reason for c in found.candidates if c.hub_id == hub_id and not c.taken)


# -- which repository ------------------------------------------------------------------------


def test_own_files_come_first_and_cost_one_request(hub: StandInHub, source: HuggingFace) -> None:
    hub.add_repo(BASE, {**SAFE, **ggufs("Q4_K_M", "Q8_0")})
    add_child(hub, "unsloth/Rocket-3B-Instruct-GGUF")
    found = choose(source, BASE)
    assert taken(found) == (BASE, "Q4_K_M") and found.notes == ()
    hub.settle()
    assert [entry.path for entry in hub.log] == [f"/api/models/{BASE}?blobs=true"]
    rest = [c for c in found.candidates if c.variant and not c.taken]
    assert [c.variant.label for c in rest if c.variant] == ["Q8_0", "latest"]
    assert all(c.size_bytes for c in rest)


@pytest.mark.parametrize(
    ("children", "first"),
    [
        # the maker's own, then the known quantizers in their order, then by downloads
        (["TheBloke", "Acme", "unsloth"], "Acme"),
        (["mradermacher", "bartowski", "unsloth"], "unsloth"),
        (["MaziyarPanahi", "lmstudio-community", "somebody"], "lmstudio-community"),
        (["somebody", "QuantFactory"], "QuantFactory"),
        (["ggml-org", "unsloth"], "ggml-org"),
        (["popular", "unknown"], "popular"),
    ],
)
def test_order_of_quantizers(
    hub: StandInHub, source: HuggingFace, children: list[str], first: str
) -> None:
    add_base(hub)
    for place, who in enumerate(children):
        add_child(hub, f"{who}/Rocket-3B-Instruct-GGUF", downloads=100 - place)
    found = choose(source, BASE, GGUF)
    assert taken(found) == (f"{first}/Rocket-3B-Instruct-GGUF", "Q4_K_M")
    assert found.notes == (f"using {first}/Rocket-3B-Instruct-GGUF for {BASE}",)
    assert sum(c.taken for c in found.candidates) == 1
    for who in children:
        hub_id = f"{who}/Rocket-3B-Instruct-GGUF"
        if who != first:
            assert why(found, hub_id) == f"{found.repository.hub_id} is preferred"


@pytest.mark.parametrize(
    ("child", "reason"),
    [
        ("evil/Rocket-3B-Instruct-abliterated-GGUF", "'abliterated' in its name"),
        ("evil/Rocket-3B-Instruct-Uncensored-GGUF", "'uncensored' in its name"),
        ("evil/Rocket-3B-Instruct-R1-Distill-GGUF", "'r1 distill' in its name"),
        ("evil/Merged-Rocket-3B-Instruct-GGUF", "'merged' in its name"),
        ("evil/Rocket-3B-GGUF", "does not match Rocket-3B-Instruct"),
        ("evil/Comet-GGUF", "does not match Rocket-3B-Instruct"),
    ],
)
def test_others_models_are_not_taken(
    hub: StandInHub, source: HuggingFace, child: str, reason: str
) -> None:
    add_base(hub)
    add_child(hub, child, downloads=10**6)
    add_child(hub, "bartowski/Acme_Rocket-3B-Instruct-GGUF", downloads=1)
    found = choose(source, BASE, GGUF)
    assert found.repository.hub_id == "bartowski/Acme_Rocket-3B-Instruct-GGUF"
    assert reason in why(found, child)


@pytest.mark.parametrize(
    ("total", "extra", "fits"),
    [
        (TOTAL, {}, True),
        (int(TOTAL * 1.03), {}, True),
        (int(TOTAL * 1.2), {}, False),
        (int(TOTAL * 0.8), {}, False),
        (None, {}, True),
        # what sees may leave its encoder to another file; packed numbers say nothing
        (int(TOTAL * 0.8), {"pipeline_tag": "image-text-to-text"}, True),
        (int(TOTAL * 2), {"extra": weights(TOTAL, "I32")}, True),
    ],
)
def test_number_of_parameters(
    hub: StandInHub,
    source: HuggingFace,
    total: int | None,
    extra: dict[str, object],
    fits: bool,
) -> None:
    add_base(hub, **extra)
    add_child(hub, "somebody/Rocket-3B-Instruct-GGUF", total=total)
    if fits:
        assert choose(source, BASE, GGUF).repository.hub_id == "somebody/Rocket-3B-Instruct-GGUF"
    else:
        with pytest.raises(NoPlan, match="only safetensors; gguf is required") as caught:
            choose(source, BASE, GGUF)
        assert "rejected: somebody/Rocket-3B-Instruct-GGUF: it has" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("typed", "repo", "asked_list"),
    [
        ("ACME/rocket-3b-instruct", "Acme/Rocket-3B-Instruct-GGUF", BASE),
        ("Acme/Rocket-Old", "Acme/Rocket-3B-Instruct-GGUF", BASE),
    ],
)
def test_the_list_is_asked_with_the_hubs_own_spelling(
    hub: StandInHub, source: HuggingFace, typed: str, repo: str, asked_list: str
) -> None:
    add_base(hub)
    hub.renamed["Acme/Rocket-Old"] = BASE
    add_child(hub, repo)
    assert choose(source, typed, GGUF).repository.hub_id == repo
    hub.settle()
    asked = [entry.path for entry in hub.requests("hub", "GET", "/api/models?")]
    assert len(asked) == 1 and asked_list.replace("/", "%2F") in asked[0]
    assert "filter=gguf" in asked[0] and "sort=downloads" in asked[0]


def test_the_list_is_read_page_by_page(hub: StandInHub, source: HuggingFace) -> None:
    add_base(hub)
    hub.page = 2
    for number in range(5):
        add_child(hub, f"u{number}/Comet-{number}-GGUF", downloads=100 - number)
    add_child(hub, "unsloth/Rocket-3B-Instruct-GGUF", downloads=1)
    found = choose(source, BASE, GGUF)
    assert found.repository.hub_id == "unsloth/Rocket-3B-Instruct-GGUF"
    hub.settle()
    assert len(hub.requests("hub", "GET", "/api/models?")) == 3


@pytest.mark.parametrize(
    "name",
    [
        "Acme/Rocket-3B-Instruct-GGUF",
        "ggml-org/Rocket-3B-Instruct-GGUF",
        "bartowski/Acme_Rocket-3B-Instruct-GGUF",
        "TheBloke/Rocket-3B-Instruct-GGUF",
    ],
)
def test_names_are_probed_where_the_tag_is_missing(
    hub: StandInHub, source: HuggingFace, name: str
) -> None:
    add_base(hub)
    hub.add_repo(name, ggufs("Q8_0"), tags=("gguf",))
    found = choose(source, BASE, GGUF)
    assert taken(found) == (name, "Q8_0")
    assert next(c for c in found.candidates if c.taken).found == "by its name"


def test_the_makers_own_is_probed_before_others_are_taken(
    hub: StandInHub, source: HuggingFace
) -> None:
    add_base(hub)
    hub.add_repo("Acme/Rocket-3B-Instruct-GGUF", ggufs("Q4_K_M"))
    add_child(hub, "unsloth/Rocket-3B-Instruct-GGUF")
    assert taken(choose(source, BASE, GGUF)) == ("Acme/Rocket-3B-Instruct-GGUF", "Q4_K_M")


# -- which files -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tag", "label"),
    [("", "Q4_K_M"), (":q8_0", "Q8_0"), (":IQ4_XS", "IQ4_XS"), (":f16", "FP16")],
)
def test_a_quantization_is_looked_for_in_all(
    hub: StandInHub, source: HuggingFace, tag: str, label: str
) -> None:
    add_base(hub)
    add_child(hub, "unsloth/Rocket-3B-Instruct-GGUF", ggufs("Q4_K_M"))
    add_child(hub, "bartowski/Rocket-3B-Instruct-GGUF", ggufs("Q4_K_M", "Q8_0", "fp16"))
    add_child(hub, "someone/Rocket-3B-Instruct-GGUF", ggufs("IQ4_XS"))
    found = choose(source, BASE + tag, GGUF)
    assert found.variant.label == label
    if label == "Q8_0":
        assert why(found, "unsloth/Rocket-3B-Instruct-GGUF") == "it has no Q8_0, only Q4_K_M"
    with pytest.raises(ModelNotFound, match="cannot find ':Q2_K'") as caught:
        choose(source, f"{BASE}:Q2_K")
    assert "it has no Q2_K, only Q4_K_M, Q8_0, FP16" in str(caught.value.hint)


def test_a_tag_must_match_in_a_gguf_repository(hub: StandInHub, source: HuggingFace) -> None:
    hub.add_repo("Acme/R-GGUF", ggufs("Q4_K_M", "UD-Q4_K_XL", "Q8_0"))
    assert taken(choose(source, "Acme/R-GGUF:ud-q4_k_xl"))[1] == "UD-Q4_K_XL"
    with pytest.raises(ModelNotFound) as caught:
        choose(source, "Acme/R-GGUF:Q6_K")
    assert caught.value.hint == "use one of: Q4_K_M, Q8_0, UD-Q4_K_XL"


def test_shards_and_pieces(hub: StandInHub, source: HuggingFace) -> None:
    hub.add_repo(
        "Acme/R-GGUF",
        {
            "m-Q4_K_M-00001-of-00003.gguf": b"1",
            "m-Q4_K_M-00003-of-00003.gguf": b"3",
            "m-Q6_K.gguf.part1of2": b"1",
            "m-Q6_K.gguf.part2of2": b"2",
            "big/m-Q8_0-00001-of-00002.gguf": b"1",
            "big/m-Q8_0-00002-of-00002.gguf": b"2",
            "mmproj-BF16.gguf": b"bf",
            "mmproj-F16.gguf": b"f",
        },
    )
    found = choose(source, "Acme/R-GGUF")
    assert [file.path for file in found.variant.files] == [
        "big/m-Q8_0-00001-of-00002.gguf",
        "big/m-Q8_0-00002-of-00002.gguf",
        "mmproj-F16.gguf",
    ]
    reasons = [c.reason for c in found.candidates if c.variant is None]
    assert reasons == [
        "m-Q4_K_M.gguf: 1 of 3 parts are missing, such as m-Q4_K_M-00002-of-00003.gguf",
        "m-Q6_K.gguf: its parts must be joined first",
    ]


def test_safetensors_without_doubles(hub: StandInHub, source: HuggingFace) -> None:
    add_base(hub)
    found = choose(source, BASE, ST)
    assert taken(found) == (BASE, "latest")
    assert [file.path for file in found.variant.files] == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]


def test_the_engines_liking_decides(hub: StandInHub, source: HuggingFace) -> None:
    add_base(hub)
    add_child(hub, "unsloth/Rocket-3B-Instruct-GGUF")
    assert choose(source, BASE, ST, GGUF).variant.format is ST
    assert choose(source, BASE, GGUF, ST).variant.format is GGUF
    hub.repos.pop("unsloth/Rocket-3B-Instruct-GGUF")
    assert choose(source, BASE, GGUF, ST).variant.format is ST


def test_smaller_safetensors_as_data(hub: StandInHub, source: HuggingFace) -> None:
    add_base(hub)
    whole = {"config.json": b"{}", "model.safetensors": b"q" * 500}
    for name, downloads in [
        ("cpatonn/Rocket-3B-Instruct-AWQ", 90),
        ("RedHatAI/Rocket-3B-Instruct-quantized.w4a16", 80),
        ("RedHatAI/Rocket-3B-Instruct-FP8-dynamic", 70),
        ("Acme/Rocket-3B-Instruct-GPTQ-Int4", 60),
        ("someone/Rocket-3B-Instruct-heretic-AWQ", 50),
    ]:
        add_child(hub, name, whole, downloads=downloads, total=None)
    add_child(hub, "unsloth/Rocket-3B-Instruct-GGUF")
    found = find_quantized_safetensors(source, source.resolve(BASE))
    assert [(c.hub_id.partition("/")[0], c.quant, c.size_bytes) for c in found if c.variant] == [
        ("Acme", "GPTQ", 502),
        ("RedHatAI", "FP8", 502),
        ("RedHatAI", "GPTQ", 502),
        ("cpatonn", "AWQ", 502),
    ]
    refused = [c for c in found if c.variant is None]
    assert [c.hub_id for c in refused] == ["someone/Rocket-3B-Instruct-heretic-AWQ"]
    assert "'heretic'" in refused[0].reason
    for name in list(hub.repos):
        if name != BASE:
            del hub.repos[name]
    hub.add_repo(f"{BASE}-FP8", whole)
    assert [
        c.hub_id for c in find_quantized_safetensors(source, source.resolve(BASE)) if c.variant
    ] == [f"{BASE}-FP8"]


# -- gated, gone, broken ---------------------------------------------------------------------


def test_a_free_form_of_a_gated_model(hub: StandInHub, source: HuggingFace) -> None:
    add_base(hub, gated="manual", extra={"cardData": {"license": "rocket3"}})
    add_child(hub, "Acme/Rocket-3B-Instruct-GGUF", gated="manual")
    add_child(hub, "unsloth/Rocket-3B-Instruct-GGUF")
    found = choose(source, BASE, GGUF, ST)
    assert found.repository.hub_id == "unsloth/Rocket-3B-Instruct-GGUF"
    assert "license must be accepted" in why(found, "Acme/Rocket-3B-Instruct-GGUF")
    assert found.notes[1] == (
        f"license: {BASE} is gated, unsloth/Rocket-3B-Instruct-GGUF is not; "
        "the model's license (rocket3) still applies: "
        f"https://huggingface.co/{BASE}"
    )


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        (
            {"cardData": {"license": "other", "license_name": "rocket community"}},
            "rocket community",
        ),
        ({"cardData": {"license": ["mit"]}}, "mit"),
        ({}, None),
    ],
)
def test_names_of_licenses(
    hub: StandInHub, source: HuggingFace, extra: dict[str, object], name: str | None
) -> None:
    add_base(hub, extra=extra)
    assert source.resolve(BASE).license == name


def test_a_token_opens_a_gated_model(
    hub: StandInHub, with_settings: Callable[..., ModelsSettings]
) -> None:
    add_base(hub, gated="auto")
    hub.tokens["hf_good"] = {BASE}
    source = HuggingFace(with_settings(hf_token="hf_good"))
    assert taken(choose(source, BASE, ST)) == (BASE, "latest")


@pytest.mark.parametrize("token", [None, "hf_other"])
def test_gated_with_nothing_else(
    hub: StandInHub, with_settings: Callable[..., ModelsSettings], token: str | None
) -> None:
    add_base(hub, gated="auto")
    hub.tokens["hf_other"] = set()
    source = HuggingFace(with_settings(hf_token=token))
    with pytest.raises(AuthRequired) as caught:
        choose(source, BASE, ST, GGUF)
    assert f"https://huggingface.co/{BASE}" in str(caught.value.hint)
    assert ("HF_TOKEN" in str(caught.value.hint)) is (token is None)


def test_an_alias_does_without_its_base(hub: StandInHub, source: HuggingFace) -> None:
    add_child(hub, "unsloth/Rocket-3B-Instruct-GGUF")
    found = choose(source, BASE, GGUF, named=False)
    assert found.repository.hub_id == "unsloth/Rocket-3B-Instruct-GGUF"
    with pytest.raises(ModelNotFound, match="or a GGUF of it on the hub"):
        choose(source, "Acme/Comet", GGUF, named=False)


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("Acme/Rocket-3B-Instrct", BASE),
        ("Acne/Rocket-3B-Instruct", BASE),
        ("Acme/Zeppelin", None),
    ],
)
def test_near_names(hub: StandInHub, source: HuggingFace, typed: str, near: str | None) -> None:
    add_base(hub)
    with pytest.raises(ModelNotFound) as caught:
        choose(source, typed)
    assert "no such repository, or it is private" in caught.value.message
    hint = str(caught.value.hint)
    assert hint.startswith(f"did you mean {near}?") if near else "check the spelling" in hint


def test_disabled(hub: StandInHub, source: HuggingFace) -> None:
    hub.add_repo(BASE, SAFE, disabled=True)
    with pytest.raises(SourceError, match="has disabled it"):
        choose(source, BASE)
    hub.add_repo("Acme/Other", {"m-Q4_K_M.gguf": b"4"})
    repository = source.resolve("Acme/Other")
    hub.repos["Acme/Other"].disabled = True
    with pytest.raises(SourceError, match="has disabled it"):
        source.locate(repository, repository.files[0])


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"README.md": b"x"}, "only README.md"),
        ({}, "only no files"),
        ({"pytorch_model.bin": b"x", "config.json": b"{}"}, "only pytorch_model.bin"),
        ({"m-Q4_0.gguf.part1of2": b"1"}, "m-Q4_0.gguf: its parts must be joined"),
        ({"m-Q4_0-00001-of-00002.gguf": b"1"}, "1 of 2 parts are missing"),
        ({"model.safetensors": b"x"}, "only model.safetensors"),
    ],
)
def test_nothing_usable(
    hub: StandInHub, source: HuggingFace, files: dict[str, bytes], says: str
) -> None:
    hub.add_repo("Acme/Odd", files)
    with pytest.raises(NoPlan, match="neither GGUF nor safetensors") as caught:
        choose(source, "Acme/Odd")
    assert says in caught.value.message and caught.value.hint


def test_a_gguf_only_model_for_an_engine_that_reads_none(
    hub: StandInHub, source: HuggingFace
) -> None:
    add_child(hub, "unsloth/Rocket-3B-Instruct-GGUF")
    with pytest.raises(NoPlan) as caught:
        choose(source, "unsloth/Rocket-3B-Instruct-GGUF", ST)
    assert f"vllama pull hf.co/{BASE}" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("status", "headers", "kind", "says"),
    [
        (429, {"Retry-After": "77"}, Transient, "try again in 77 s"),
        (429, {"RateLimit": '"api";r=0;t=55'}, Transient, "try again in 55 s"),
        (503, {}, Transient, "try again later"),
        (401, {}, AuthRequired, "renew the token"),
    ],
)
def test_faults_in_the_middle(
    hub: StandInHub,
    source: HuggingFace,
    status: int,
    headers: dict[str, str],
    kind: type[VllamaError],
    says: str,
) -> None:
    """The list fails after the repository was read: nothing is guessed."""
    add_base(hub)
    fault = Fault(status=status, headers=headers)
    hub.fault = lambda method, path, sent, server: fault if "?filter" in path else None
    with pytest.raises(kind) as caught:
        choose(source, BASE, GGUF)
    assert says in str(caught.value.hint)


def test_something_else_than_a_hub(hub: StandInHub, source: HuggingFace) -> None:
    add_base(hub)
    hub.fault = lambda method, path, sent, server: Fault(status=200)
    with pytest.raises(SourceError, match="does not respond like the hub"):
        choose(source, BASE)
    hub.fault = lambda m, path, sent, server: Fault(status=200) if "?filter" in path else None
    with pytest.raises(SourceError, match="does not respond like the hub"):
        choose(source, BASE)


def test_a_gated_gguf_that_others_have_too(hub: StandInHub, source: HuggingFace) -> None:
    hub.add_repo(BASE, {**SAFE, **ggufs("Q4_K_M")}, gated="auto")
    add_child(hub, "unsloth/Rocket-3B-Instruct-GGUF")
    assert choose(source, BASE).repository.hub_id == "unsloth/Rocket-3B-Instruct-GGUF"


def test_offline(with_settings: Callable[..., ModelsSettings]) -> None:
    with pytest.raises(Offline, match="offline mode is on"):
        choose(HuggingFace(with_settings(hf_offline=True)), BASE)


# -- answers that are kept -------------------------------------------------------------------


def test_an_unchanged_answer_is_not_sent_again(
    hub: StandInHub,
    with_settings: Callable[..., ModelsSettings],
    tmp_path: Path,
) -> None:
    add_base(hub)
    add_child(hub, "unsloth/Rocket-3B-Instruct-GGUF")
    hub.page = 1
    settings = with_settings(data_dir=tmp_path)
    first = choose(HuggingFace(settings), BASE, GGUF)
    hub.settle()
    asked = len(hub.log)
    again = choose(HuggingFace(settings), BASE, GGUF)  # as another process would
    hub.settle()
    assert taken(again) == taken(first)
    known = [entry.status for entry in hub.log[asked:] if entry.status != 401]
    assert known == [304, 304, 304] and len(hub.log) == 2 * asked
    hub.commit("unsloth/Rocket-3B-Instruct-GGUF", ggufs("Q5_K_M"))
    assert taken(choose(HuggingFace(settings), BASE, GGUF))[1] == "Q5_K_M"


def test_kept_answers_belong_to_a_token(
    hub: StandInHub, with_settings: Callable[..., ModelsSettings], tmp_path: Path
) -> None:
    hub.add_repo(BASE, SAFE, private=True)
    hub.tokens["hf_good"] = {BASE}
    HuggingFace(with_settings(data_dir=tmp_path, hf_token="hf_good")).resolve(BASE)
    with pytest.raises(ModelNotFound):
        HuggingFace(with_settings(data_dir=tmp_path)).resolve(BASE)


def test_a_mirror_without_sizes(
    hub: StandInHub, source: HuggingFace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that ignores `blobs=true` is asked for its tree, page by page."""
    repo = hub.add_repo("Acme/R-GGUF", {**ggufs("Q4_K_M", "Q8_0"), "README.md": b"x"})
    monkeypatch.setattr(repo, "info", lambda c, b, e: type(repo).info(repo, c, False, e))
    hub.page = 2
    found = choose(source, "Acme/R-GGUF")
    assert found.variant.size_bytes == 54 and found.variant.files[0].sha256
    hub.settle()
    assert len(hub.requests("hub", "GET", "/tree/")) == 2


def test_what_else_could_be_taken_is_looked_for_when_asked(
    hub: StandInHub, source: HuggingFace
) -> None:
    add_base(hub)
    tags = ("safetensors", f"base_model:quantized:{BASE}")
    hub.add_repo(f"{BASE}-FP8", SAFE, tags=tags)
    add_child(hub, "bartowski/Rocket-3B-Instruct-GGUF", downloads=5)
    add_child(hub, "unsloth/Rocket-3B-Instruct-GGUF", downloads=1)
    search = iterate_resolutions(source, ModelRef.parse(BASE), (ST, GGUF))
    assert next(search).repository.hub_id == BASE
    hub.settle()
    # nothing but the repository itself, and the index of its weights
    assert {entry.path.partition("?")[0].rpartition("/")[2] for entry in hub.log} == {
        "Rocket-3B-Instruct",
        "model.safetensors.index.json",
    }
    rest = [found.repository.hub_id for found in search]
    assert rest == [
        f"{BASE}-FP8",
        "unsloth/Rocket-3B-Instruct-GGUF",
        "bartowski/Rocket-3B-Instruct-GGUF",
    ]
    # who names a repository of GGUFs means that one
    named = iterate_resolutions(
        source, ModelRef.parse("bartowski/Rocket-3B-Instruct-GGUF"), (GGUF,)
    )
    assert [found.repository.hub_id for found in named] == ["bartowski/Rocket-3B-Instruct-GGUF"]


def test_a_misspelled_name_is_looked_for_at_its_organization(
    hub: StandInHub, source: HuggingFace
) -> None:
    hub.add_repo("solo/Rocket-GGUF", {"Rocket-Q4_K_M.gguf": b"w"})
    with pytest.raises(ModelNotFound) as caught:
        choose(source, "solo/Rokket-GGUF")
    assert "did you mean solo/Rocket-GGUF?" in str(caught.value.hint)


def test_a_quantization_of_which_parts_are_missing(hub: StandInHub, source: HuggingFace) -> None:
    files = {"m-Q8_0.gguf": b"w", "m-Q4_K_S-00001-of-00002.gguf": b"w"}
    hub.add_repo("solo/m-GGUF", files)
    with pytest.raises(ModelNotFound, match="1 of 2 parts are missing"):
        choose(source, "solo/m-GGUF:Q4_K_S")
