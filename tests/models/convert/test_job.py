"""A conversion from the name to the kept model; the two official programs are stand-ins here."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import groupby
from pathlib import Path

import psutil
import pytest

from tests.models.convert.conftest import VISION, local, repository
from tests.models.convert.tools import Tools
from vllama.base.errors import BadModelFile, DiskFull, VllamaError
from vllama.models.convert.job import ConversionOptions
from vllama.models.convert.prepare import prepare
from vllama.models.types import Format

# some processes each
pytestmark = pytest.mark.slow

NAME = "hf.co/Org/Model:Q4_K_M"


@pytest.fixture
def tools(data, tiny):
    return Tools(data, tiny)


class Run:
    """Prepares and runs conversions, and keeps what was told."""

    def __init__(self, library, tools):
        self.library, self.tools, self.told = library, tools, []

    def __call__(self, name, **wishes):
        free = wishes.pop("free_space", None)
        job = prepare(self.library, name, ConversionOptions(**wishes))
        more = {"free_space": free} if free else {}
        self.told.clear()
        return asyncio.run(
            job.run(
                self.library,
                self.tools.quantizer,
                env=self.tools.env,
                tell=self.told.append,
                **more,
            )
        )

    @property
    def statuses(self):
        return [status for status, _ in groupby(event.status for event in self.told)]


@pytest.fixture
def run(library, tools):
    return Run(library, tools)


def left(data: Path) -> list[str]:
    return sorted(path.name[:8] for path in (data / "blobs").iterdir())


def test_a_model_of_the_hub(hub, library, run, tools, data, tmp_path):
    hub.add_repo("Org/Model", repository(tmp_path / "r"))
    job = prepare(library, "org/model", ConversionOptions())
    assert (job.quant, job.via, job.result) == ("Q4_K_M", "F16", NAME)
    assert job.pulled_bytes > 50
    made = run("org/model")
    assert (made.name, made.format, made.quant, made.store) == (
        NAME, Format.GGUF, "Q4_K_M", "created"
    )  # fmt: skip
    assert run.statuses[-5:] == [
        "converting model to F16",
        "quantizing F16 model to Q4_K_M",
        "verifying conversion",
        "writing manifest",
        "success",
    ]
    shares = [e.completed_bytes / e.total_bytes for e in run.told if "quantizing" in e.status]
    assert shares == sorted(shares) and shares[-1] == 1
    ((arguments, names, variables),) = tools.calls()
    assert arguments[2:] == ["--outtype", "f16", "--model-name", "Model"]
    assert names == ["config.json", "model.safetensors", "tokenizer.json"]
    assert "HF_HUB_OFFLINE" in variables and "HOME" not in variables
    # its plain name is that of what can be served now, and both are listed
    for name in ("org/model", "hf.co/Org/Model:q4_k_m", "hf.co/org/model"):
        assert library.find(name).bundle.path == made.path
    assert {b.name for b in library.list()} == {NAME, "hf.co/Org/Model:latest"}
    assert left(data) == ["sha256-4"[:7] + made.path.name[7]]
    # again, in another quantization: from what is here
    second = run("org/model", quantize="q8_0")
    assert second.name == "hf.co/Org/Model:Q8_0"
    assert tools.calls()[-1][0][3] == "q8_0"
    library.remove(NAME)
    library.remove(second.name)
    assert left(data) == []
    assert library.find("org/model").bundle.format is Format.SAFETENSORS


def test_a_folder_becomes_a_name_or_a_file(run, library, tmp_path, data):
    folder = local(tmp_path / "My Model")
    made = run(str(folder))
    assert (made.name, library.find("my-model").bundle.quant) == ("my-model:latest", "Q4_K_M")
    assert run(str(folder), output="team/x:v1").name == "team/x:v1"
    target = tmp_path / "out" / "x-Q4_K_M.gguf"
    target.parent.mkdir()
    assert run(str(folder), output=str(target)) == target
    assert library.info(library.find(str(target)).bundle).architecture == "llama"
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_a_gguf_is_only_quantized(run, library, tools, tmp_path, tiny, data):
    made = run(str(tiny), quantize="Q5_K_M", output="small")
    assert (made.name, made.quant) == ("small:latest", "Q5_K_M")
    assert tools.calls() == []
    assert run.statuses[0] == "quantizing F16 model to Q5_K_M"
    assert tiny.exists()


def test_a_projector(run, library, tools, tmp_path):
    folder = local(tmp_path / "eye", **VISION)
    made = run(str(folder))
    assert made.projector is not None and made.projector in made.files
    assert "--mmproj" in tools.calls()[1][0]
    assert run(str(folder), projector=False).projector is None
    target = tmp_path / "eye.gguf"
    run(str(folder), output=str(target))
    assert (tmp_path / "mmproj-eye.gguf").is_file()


def test_a_projector_that_cannot_be_made(run, tmp_path):
    folder = local(tmp_path / "eye", model_type="blind", **VISION)
    made = run(str(folder))
    assert made.projector is None
    assert any("without its projector" in status for status in run.statuses)
    with pytest.raises(BadModelFile, match="Model FooForCausalLM is not supported"):
        run(str(folder), projector=True)
    with pytest.raises(BadModelFile, match="it is a text-only model"):
        run(str(local(tmp_path / "text")), projector=True)


@pytest.mark.parametrize(
    ("config", "wishes", "says"),
    [
        ({"model_type": "fails"}, {}, "Model FooForCausalLM is not supported"),
        ({}, {"quantize": "Q2_K"}, "cannot quantize 'mine' to Q2_K: .*out of ideas"),
    ],
)
def test_a_failure_leaves_nothing(run, library, data, tmp_path, config, wishes, says):
    with pytest.raises(BadModelFile, match=says):
        run(str(local(tmp_path / "mine", **config)), **wishes)
    assert left(data) == []
    assert library.list() == []


def test_a_full_disk_is_told_before(run, data, tmp_path, tools):
    with pytest.raises(DiskFull, match="cannot convert") as caught:
        run(str(local(tmp_path / "mine")), free_space=lambda path: 1000)
    assert "--output" in caught.value.hint
    assert tools.calls() == []


def test_an_unwritable_place(run, tmp_path):
    folder = local(tmp_path / "mine")
    (tmp_path / "file").write_text("")
    with pytest.raises(VllamaError, match="cannot write"):
        run(str(folder), output=str(tmp_path / "file" / "x.gguf"))


def test_a_cancelled_one_ends_its_tool_and_leaves_nothing(library, tools, data, tmp_path):
    folder = local(tmp_path / "mine", model_type="hangs")
    job = prepare(library, str(folder), ConversionOptions())

    async def main():
        begun = asyncio.Event()

        def tell(event):
            if event.total_bytes and event.completed_bytes == event.total_bytes:
                begun.set()  # the stand-in shows all of its bar before it hangs

        work = asyncio.ensure_future(
            job.run(library, tools.quantizer, env=tools.env, tell=tell)
        )  # fmt: skip
        await begun.wait()
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work

    asyncio.run(main())
    assert not psutil.pid_exists(tools.pid)
    assert left(data) == []
    assert library.list() == []
