"""The planner with real files: what does not fit is loaded in a smaller form that is here."""

import asyncio
from dataclasses import replace

import pytest

from tests.facts import CPU, facts, with_reserve
from tests.loops import in_loop
from tests.tiny import write_tiny_gguf
from vllama.base.errors import NotEnoughMemory
from vllama.chat.templates.jinja.renderer import Renderer
from vllama.cli.reporter import TerminalReporter
from vllama.config import Config
from vllama.models.library import open_library
from vllama.models.settings import ModelsSettings
from vllama.plan.choose import make_plan
from vllama.plan.ladder import Failed
from vllama.plan.types import Need
from vllama.routes.in_use import InUse, Setup
from vllama.scheduler.memory import DraftRecords
from vllama.server.engine_hooks import Planner
from vllama.supervise.spec import Diagnosis, Fault


@pytest.fixture
def library(tmp_path):
    write_tiny_gguf(tmp_path / "Tiny-F16.gguf", n_ctx=2048, n_layer=64, template=None)
    write_tiny_gguf(tmp_path / "Tiny-Q4_0.gguf", n_ctx=2048, template=None)
    settings = ModelsSettings(
        hf_cache_dir=tmp_path / "hf",
        data_dir=tmp_path / "data",
        folders=(tmp_path,),
        package_dirs=(),
    )
    return open_library(settings)


def make_planner(known, library, folder):
    in_use = InUse(Setup(config=Config(), facts=known, library=library))
    return Planner(in_use, Renderer({}), TerminalReporter(), DraftRecords(folder / "drafts.json"))


def test_a_smaller_form_before_any_start(library, capsys, tmp_path):
    large, small = (library.find(name).bundle for name in ("tiny-f16", "tiny-q4_0"))
    totals = [
        make_plan(facts(), one, library.info(one), Need()).memory.total_bytes
        for one in (large, small)
    ]
    # a machine between the two
    memory = with_reserve(sum(totals) // 2)
    machine = facts(replace(CPU, ram_total_bytes=memory))
    planner = make_planner(machine, library, tmp_path)
    mine = replace(large, name="mine:latest")
    plan = asyncio.run(planner.plan(mine, Need()))
    assert (plan.bundle.path, plan.bundle.name) == (small.path, "mine:latest")
    assert "second plan: the installed Q4_0 variant" in capsys.readouterr().err
    with pytest.raises(NotEnoughMemory) as caught:  # its name says which form is wanted
        asyncio.run(planner.plan(large, Need()))
    assert "use tiny-q4_0:latest, which is installed and smaller" in str(caught.value.hint)


@in_loop
async def test_a_name_with_a_quantization_never_gets_the_form_that_stood_in_for_it(
    library, tmp_path
):
    """The scheduler would refuse that instance for such a name, and load it again for ever."""
    large, small = (library.find(name).bundle for name in ("tiny-f16", "tiny-q4_0"))
    planner = make_planner(facts(), library, tmp_path)
    mine = replace(large, name="mine:latest")
    first = await planner.plan(mine, Need())
    cause = Diagnosis(cause="no such type", fault=Fault.QUANTIZATION)
    failed = [Failed(plan=first, message="cannot start", diagnosis=cause)]
    assert (await planner.replan(mine, Need(), failed)).bundle.path == small.path
    assert (await planner.plan(mine, Need())).bundle.path == small.path
    assert (await planner.plan(large, Need())).bundle.path == large.path


@in_loop
async def test_a_plan_for_what_other_programs_leave(library, tmp_path):
    large, small = (library.find(name).bundle for name in ("tiny-f16", "tiny-q4_0"))
    planner = make_planner(facts(), library, tmp_path)
    mine = replace(large, name="mine:latest")
    first = await planner.plan(mine, Need())
    room = {"ram": first.memory.total_bytes - 1}
    smaller = await planner.shrink(first, Need(), room)
    assert smaller.bundle.path == small.path and smaller.relief.room == room
    assert smaller.instead.startswith("planned for the memory left by other programs: ")
    with pytest.raises(NotEnoughMemory):
        await planner.shrink(first, Need(), {"ram": 10})
