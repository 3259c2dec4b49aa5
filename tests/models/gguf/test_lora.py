"""Adapters and templates of created models: what is kept, and what they make of a model."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.models.stores.test_local import home, library, make  # noqa: F401
from tests.tiny import write_tiny_gguf, write_tiny_lora
from vllama.base.errors import BadRequest
from vllama.models.headers.gguf.header import read_header
from vllama.models.headers.info import apply_template, combine_headers, control_tokens
from vllama.models.library import Library
from vllama.models.types import Capability, ModelInfo

CHAT = Capability.COMPLETION


def test_an_adapter_is_kept_and_makes_another_model(library: Library, tmp_path: Path) -> None:  # noqa: F811
    adapter = write_tiny_lora(tmp_path / "a.gguf")
    plain = make(library, "plain")
    made = make(library, "adapted", adapters=(adapter,))
    assert made.adapters == (adapter,)
    assert made.key != plain.key
    assert made.size_bytes == plain.size_bytes + adapter.stat().st_size
    # what the adapter's file says is not taken for the model's
    assert library.info(made).parameter_count == library.info(plain).parameter_count
    again = make(library, "again", base="adapted", system="s")
    assert again.adapters == (adapter,)
    assert again.files.count(adapter) == 1
    assert again.key == made.key


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n_embd": 32}, "its tensors for 'blk.0.attn_q.weight' have a different shape"),
        ({"tensor": "blk.7.attn_q.weight"}, "the model has no tensor 'blk.7.attn_q.weight'"),
        ({"tensor": "blk.0.ffn_gate.weight"}, "a different shape"),
        ({"tensor": "blk.0.attn_norm.weight"}, "are not matrices"),
        ({"parts": ("lora_a",)}, "are not a pair"),
        ({"parts": ()}, "it has no tensors"),
        ({"arch": "qwen2"}, "it requires the architecture qwen2, but the model has llama"),
        ({"kind": "control"}, "it is not a LoRA adapter"),
    ],
)
def test_adapters_that_do_not_fit(
    library: Library,  # noqa: F811
    tmp_path: Path,
    changes: dict[str, object],
    says: str,
) -> None:
    adapter = write_tiny_lora(tmp_path / "a.gguf", **changes)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match=says):
        make(library, "mine", adapters=(adapter,))


def test_files_that_are_no_adapter(library: Library, tmp_path: Path) -> None:  # noqa: F811
    model = write_tiny_gguf(tmp_path / "m.gguf")
    text = tmp_path / "a.txt"
    text.write_text("hello")
    for path, says in (
        (model, "it is not a LoRA adapter"),
        (text, "not a GGUF file"),
        (tmp_path / "gone.gguf", "No such file"),
    ):
        with pytest.raises(BadRequest, match=says):
            make(library, "mine", adapters=(path,))


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("{{ .Prompt }}", {CHAT}),
        ("{{ .Prompt }}{{ .Suffix }}", {CHAT, Capability.INSERT}),
        ("{{ .Tools }}{{ range .Messages }}{{ end }}", {CHAT, Capability.TOOLS}),
        (
            "{{ range .Messages }}{{ if .Role }}<t>{{ .Thinking }}</t>{{ end }}{{ end }}",
            {CHAT, Capability.THINKING},
        ),
    ],
)
def test_a_template_decides_what_a_model_can(
    library: Library,  # noqa: F811
    template: str,
    wanted: set[Capability],
) -> None:
    made = make(library, "mine", template=template)
    assert made.template == template
    assert library.info(made).capabilities == wanted


def test_a_template_that_cannot_be_read_is_refused(library: Library) -> None:  # noqa: F811
    with pytest.raises(BadRequest, match="line 2: undefined variable"):
        make(library, "mine", template="a\n{{ $x }}")


def test_one_that_was_kept_all_the_same_hides_nothing(library: Library) -> None:  # noqa: F811
    made = replace(make(library, "mine"), template="{{ broken")
    info = library.info(make(library, "plain"))
    assert apply_template(info, made) is info


@pytest.mark.parametrize(
    ("tokens", "fim"),
    [
        (("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),) * 2,
        (("▁<PRE>", "▁<SUF>", "▁<MID>"),) * 2,
        (("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),) * 2,
        (("<|fim_prefix|>", "<|fim_suffix|>"), None),
        (("<|fim|>",), None),
        ((), None),
    ],
)
@pytest.mark.parametrize("many", [False, True])
def test_tokens_that_mark_a_gap(
    tmp_path: Path, tokens: tuple[str, ...], fim: tuple[str, str, str] | None, many: bool
) -> None:
    more = tuple(f"word{n}" for n in range(5000)) if many else ()  # long lists are not built
    header = read_header(write_tiny_gguf(tmp_path / "m.gguf", tokens=(*more, *tokens)))
    info = combine_headers([header])
    assert info.fim_tokens == fim
    assert (Capability.INSERT in info.capabilities) is (fim is not None)


@pytest.mark.parametrize(
    "names", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")]
)
def test_tokens_that_the_file_names(tmp_path: Path, names: tuple[str, ...]) -> None:
    def extra(writer) -> None:  # type: ignore[no-untyped-def]
        for number, name in enumerate(names):
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", 300 + number)

    header = read_header(write_tiny_gguf(tmp_path / "m.gguf", extra=extra))
    first = header.metadata["tokenizer.ggml.tokens"][300]  # type: ignore[index]
    fim = combine_headers([header]).fim_tokens
    assert fim is not None
    assert fim[0] == first


@pytest.mark.parametrize("many", [False, True])
def test_the_texts_of_control_tokens(tmp_path: Path, many: bool) -> None:
    more = tuple(f"word{n}" for n in range(5000)) if many else ()
    header = read_header(write_tiny_gguf(tmp_path / "m.gguf", tokens=(*more, "<|end|>")))
    control = control_tokens(combine_headers([header]))
    assert (control[0], control[1], control[2]) == ("<unk>", "<s>", "</s>")
    assert list(control.values())[-1] == "<|end|>"
    assert len(control) == 3 + len(more) + 1
    assert control_tokens(ModelInfo(architecture="none")) == {}
