"""The memory of other machines in a plan, as `llama-server --list-devices` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import CPU, GIB, H100, INFO, LLAMA_SERVER_HERE, bundle, facts
from vllama.base.errors import NoPlan, NotEnoughMemory
from vllama.engines.base import Installation
from vllama.engines.devices import Device
from vllama.engines.llamacpp.llama_server import ENGINE
from vllama.models.settings import ModelSettings
from vllama.plan.choose import make_plan
from vllama.plan.remote import add_remote
from vllama.plan.report import describe_memory
from vllama.plan.types import Facts, Need, Plan
from vllama.scheduler.memory import MemoryMeter
from vllama.scheduler.room import Room, add_room
from vllama.supervise.spec import Endpoint

ONE, OTHER, HERE = "10.9.9.5:50052", "box2:50052", "127.0.0.1:50052"
LISTED = "Available devices:\n{}"
ROW = "  RPC{}: {} ({} MiB, {} MiB free)\n"
GONE = "ggml/src/ggml-rpc/ggml-rpc.cpp:547: Failed to connect to {}\n"
OLD = "RPC server version mismatch: 2.0.0\nggml-rpc.cpp:550: RPC handshake failed for {}\n"
NOT_BUILT = 'error while handling argument "--rpc": RPC not supported in this build\n'
WHEEL = "xllamacpp: error: unrecognized arguments: --rpc {} --list-devices\n"
PROGRAM = '#!/bin/sh\ncat "${0%/*}/$2"\n'  # after --rpc


def rows(server: str, *gib: tuple[int, int]) -> str:
    """Return the list of a server with devices of so many GiB, free and in all."""
    lines = (ROW.format(n, server, total << 10, free << 10) for n, (free, total) in enumerate(gib))
    return LISTED.format("".join(lines))


def install(folder: Path, said: Mapping[str, str]) -> Installation:
    """Return a llama-server that prints what each server has."""
    for server, text in said.items():
        (folder / server).write_text(text)
    program = folder / "llama-server"
    program.write_text(PROGRAM)
    program.chmod(0o700)
    return replace(LLAMA_SERVER_HERE, executable=program)


def ask(folder: Path, said: Mapping[str, str], platform=CPU, offloads=False, **given) -> Facts:
    """Return the facts of a model with these servers."""
    own = (Device("CUDA0", "NVIDIA H100 80GB HBM3", 80 * GIB, 79 * GIB),) if offloads else ()
    here = replace(install(folder, said), offloads=offloads, devices=own)
    known = facts(platform, (here,))
    return add_remote(known, model(said, **given))


def model(said: Mapping[str, str], **given):
    return bundle(settings=ModelSettings(rpc=tuple(said), **given))


def plan(folder: Path, said: Mapping[str, str], weights: float, **more) -> Plan:
    given = {name: more.pop(name) for name in ("gpus", "strict") if name in more}
    known = ask(folder, said, **more, **given)
    info = replace(INFO, weights_bytes=int(weights * GIB))
    return make_plan(known, model(said, **given), info, Need())


TWO = {ONE: rows(ONE, (24, 24)), OTHER: rows(OTHER, (8, 12), (8, 12))}


@pytest.mark.parametrize(
    ("said", "weights", "more", "pools", "devices"),
    [
        # the one with the most memory; then more of them, in the order of the servers
        (TWO, 5, {}, {"rpc0", "ram"}, ("RPC0",)),
        (TWO, 28, {}, {"rpc0", "rpc1", "ram"}, ("RPC0", "RPC1")),
        (TWO, 5, {"gpus": "spread"}, {"rpc0", "rpc1", "rpc2", "ram"}, ("RPC0", "RPC1", "RPC2")),
        # what fits nowhere else is in RAM
        (TWO, 42, {}, {"rpc0", "rpc1", "rpc2", "ram"}, ("RPC0", "RPC1", "RPC2")),
        # GPUs of this machine come first, and hold the last layers
        (TWO, 60, {"platform": H100, "offloads": True}, {"gpu0", "ram"}, ()),
        (TWO, 90, {"platform": H100, "offloads": True}, {"rpc0", "gpu0", "ram"}, ("RPC0", "CUDA0")),
        # without a build for them, they are not used
        (TWO, 30, {"platform": H100}, {"rpc0", "rpc1", "ram"}, ("RPC0", "RPC1")),
    ],
)  # fmt: skip
def test_devices_of_other_machines_are_memories_of_the_plan(
    tmp_path, said, weights, more, pools, devices
):
    made = plan(tmp_path, said, weights, **more)
    held = {**made.memory.gpu_parts, "ram": made.memory.ram_bytes}
    assert set(held) == pools
    assert made.settings.devices == devices
    used = any(device.startswith("RPC") for device in devices)
    assert made.settings.rpc == (tuple(said) if used else ())
    argv = ENGINE.launch(made.bundle, made.settings, made.installation, Endpoint(port=1), {}).argv
    assert ("--rpc" in argv) is used
    if used:
        assert argv.index("--rpc") < argv.index("--device")
        assert argv[argv.index("--rpc") + 1] == ",".join(said)


def test_memory_on_other_machines_is_not_handed_out_here(tmp_path):
    made = plan(tmp_path, TWO, 28)
    meter = MemoryMeter(CPU, facts().reserve_of)
    assert meter.needs(made).keys() == {"ram"}
    report = {"format": "gguf", "model": "m", "files": [], "candidates": []}
    report |= describe_memory(ask(tmp_path, TWO), made)
    assert [row["device"] for row in report["devices"]][:2] == [
        f"RPC0 ({ONE})", f"RPC1 ({OTHER})",
    ]  # fmt: skip
    assert add_room(report, Room(free={"ram": 12 * GIB}))["now"]["fits"]
    # also with the facts of a server that has not asked
    assert describe_memory(facts(), made)["devices"]


@pytest.mark.parametrize("weights", [5, 13, 16])
def test_memory_of_this_machine_counts_once(tmp_path, weights):
    """Of 16 GiB a server on loopback has all, and another one, too."""
    said = {HERE: rows(HERE, (16, 16)), "localhost:50053": rows("localhost:50053", (16, 16))}
    if weights > 14:
        with pytest.raises(NotEnoughMemory):
            plan(tmp_path, said, weights)
        return
    made = plan(tmp_path, said, weights, gpus="spread")
    needs = MemoryMeter(CPU, facts().reserve_of).needs(made)
    assert needs == {"ram": sum(made.memory.gpu_parts.values()) + made.memory.ram_bytes}
    assert weights * GIB < needs["ram"] < 16 * GIB


@pytest.mark.parametrize("said", [GONE, OLD, "", "Remote RPC server crashed\n"])
def test_a_server_that_does_not_respond_is_left_out(tmp_path, said):
    servers = {ONE: rows(ONE, (24, 24)), OTHER: said.format(OTHER)}
    made = plan(tmp_path, servers, 5)
    sentence = f"left out: RPC server {OTHER} does not respond"
    assert made.settings.rpc == (ONE,) and sentence in made.reasons
    with pytest.raises(NotEnoughMemory, match=f"; {sentence}"):
        plan(tmp_path, servers, 60)
    with pytest.raises(NoPlan, match=f"RPC server {OTHER} does not respond"):
        plan(tmp_path, servers, 5, strict=True)
    alone = plan(tmp_path, {OTHER: said.format(OTHER)}, 5)
    assert (alone.settings.rpc, alone.settings.devices) == ((), ())


@pytest.mark.parametrize("said", [NOT_BUILT, WHEEL])
def test_a_build_without_rpc_says_so(tmp_path, said):
    with pytest.raises(NoPlan, match=r"this build of llama\.cpp has no RPC") as caught:
        ask(tmp_path, {ONE: said.format(ONE)})
    assert "GGML_RPC=ON" in caught.value.hint


def test_engines_without_rpc_say_so():
    with pytest.raises(NoPlan, match="cannot use RPC servers"):
        add_remote(facts(), model({ONE: ""}))
