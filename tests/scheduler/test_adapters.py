"""An instance serves adapters of its base if its engine has room for them."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import INFO, bundle, facts, make_need
from tests.models.convert.test_adapter import PEFT, write
from tests.scripted import Scripted
from vllama.base.errors import BadModelFile, BadRequest
from vllama.chat.engine.traits import Traits
from vllama.models.types import Format
from vllama.net.upstream.pool import Upstream
from vllama.plan.choose import make_plan
from vllama.routes.inference.adapters import with_adapter
from vllama.scheduler.instance import Instance, Key, Lease
from vllama.supervise.spec import Endpoint

PATHS = ("/load", "/unload")


def make_instance(base, rank, paths):
    plan = make_plan(facts(), bundle(), replace(INFO, lora_count=1, lora_rank=rank), make_need())
    instance = Instance(
        key=Key(base.key, "chat"), bundle=base, need=make_need(), keep_alive_s=1, last_used_s=0
    )
    instance.plan, instance.traits = plan, Traits(context_length=9, adapter_paths=paths)
    return instance


@pytest.mark.parametrize(
    ("rank", "paths", "fits"), [(8, PATHS, True), (4, PATHS, False), (8, None, False)]
)
def test_whether_an_adapter_fits(tmp_path, rank, paths, fits):
    write(tmp_path, config=PEFT | {"r": 8})
    base = bundle(format=Format.SAFETENSORS)
    instance = make_instance(base, rank, paths)
    assert instance.fits(base, make_need())
    assert instance.fits(replace(base, adapters=(tmp_path,)), make_need()) is fits


def test_a_base_is_shown_before_its_adapters():
    base = bundle("base", format=Format.SAFETENSORS)
    one, two = (replace(base, name=name, adapters=(Path(name),)) for name in ("one", "two"))
    instance = make_instance(one, 8, PATHS)
    shown = []
    for asked in (one, two, base, one):
        instance.note_name(asked)
        shown.append(instance.bundle.name)
    assert shown == ["one", "two", "base", "base"] and set(instance.names) == {"one", "two", "base"}


def test_an_adapter_is_loaded_once_and_named_to_the_engine(tmp_path):
    write(tmp_path / "one"), write(tmp_path / "bad")
    base, used = bundle(format=Format.SAFETENSORS), []

    def load(body):
        failed = body["lora_path"].endswith("bad")
        return (400, {}, {"message": "no such rank"}) if failed else (200, {}, b"Success")

    async def use(lease, upstream):
        used.append(lease.traits.model_name)

    async def ask(upstream, adapter):
        instance = make_instance(base, 8, PATHS)
        lease = Lease(instance, upstream.endpoint, instance.traits, 0.0)
        await with_adapter(adapter, use)(lease, upstream)

    async def run(port):
        upstream = Upstream(Endpoint(host="127.0.0.1", port=port))
        for _ in range(2):
            await ask(upstream, tmp_path / "one")
        with pytest.raises(BadRequest, match=r"cannot load the adapter .*no such rank"):
            await ask(upstream, tmp_path / "bad")
        with pytest.raises(BadModelFile, match="No such file"):
            await ask(upstream, tmp_path / "gone")
        upstream.close()

    with Scripted({"/load": load}) as engine:
        asyncio.run(run(engine.port))
        assert [Path(body["lora_path"]).name for _, body in engine.asked] == ["one", "bad"]
        assert used == [engine.asked[0][1]["lora_name"]] * 2 and used[0].startswith("one-")
