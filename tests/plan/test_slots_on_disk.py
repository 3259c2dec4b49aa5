"""Where conversations are kept on disk, and what llama-server says of its slots."""

import json
from dataclasses import replace
from pathlib import Path

from tests.facts import (
    CPU,
    GIB,
    H100,
    INFO,
    LLAMA_CPP_HERE,
    LLAMA_SERVER_HERE,
    MIB,
    VLLM_HERE,
    bundle,
    facts,
    make_need,
)
from vllama.engines.argv import flag_value
from vllama.engines.llamacpp.llama_server import ENGINE as LLAMA_SERVER
from vllama.engines.llamacpp.llama_server import read_slots
from vllama.engines.vllm.adapter import ENGINE as VLLM
from vllama.models.settings import ModelSettings
from vllama.models.types import Format
from vllama.plan.choose import make_plan
from vllama.supervise.spec import Endpoint


def test_conversations_are_kept_on_disk_where_that_is_known_to_work():
    here = Path("/data/conversations")
    known = replace(facts(CPU, (LLAMA_SERVER_HERE,), cache_disk_bytes=10**9), slot_dir=here)
    plan = make_plan(known, bundle(), INFO, make_need())
    assert plan.settings.slot_dir == here
    assert "conversations are stored on disk: up to 1 GB for all models" in plan.reasons
    spec = LLAMA_SERVER.launch(plan.bundle, plan.settings, plan.installation, Endpoint(port=1), {})
    assert flag_value(spec.argv, "--slot-save-path") == "/data/conversations/"
    assert LLAMA_SERVER.traits(plan.bundle, plan.settings).slots is not None
    off = make_plan(facts(CPU, (LLAMA_SERVER_HERE,)), bundle(), INFO, make_need())
    assert off.settings.slot_dir is None
    assert LLAMA_SERVER.traits(off.bundle, off.settings).slots is None
    out = bundle(settings=ModelSettings(cache_disk=False))
    assert make_plan(known, out, INFO, make_need()).settings.slot_dir is None
    bounded = bundle(settings=ModelSettings(cache_disk=10**6))
    assert any(
        "1 MB for this one" in each for each in make_plan(known, bounded, INFO, make_need()).reasons
    )
    for info in (
        replace(INFO, sliding_window=512),
        replace(INFO, metadata={"jamba.ssm.conv_kernel": 4}),
    ):
        plan = make_plan(known, bundle(), info, make_need())
        assert plan.settings.slot_dir is None
        assert any("its conversations are not stored on disk" in each for each in plan.reasons)
    other = replace(known, found=facts(CPU, (LLAMA_CPP_HERE,)).found)
    assert make_plan(other, bundle(), INFO, make_need()).settings.slot_dir is None


def test_vllm_keeps_blocks_through_ram_with_a_gpu():
    """The files hold blocks of a model's content in one version, which vLLM does not tell apart."""
    here, roomy = Path("/data/conversations"), replace(H100, shared_memory_bytes=64 * GIB)
    model, info = bundle(format=Format.SAFETENSORS), replace(INFO, block_count=32, head_count=8)

    def make(platform):
        known = replace(facts(platform, (VLLM_HERE,), cache_disk_bytes=10**9), slot_dir=here)
        return make_plan(known, model, info, make_need())

    plan = make(roomy)
    version = plan.installation.version
    assert plan.settings.slot_dir == here / "blocks/m%3Alatest" / f"{model.digest[:16]}-{version}"
    (said,) = [each for each in plan.reasons if "on disk" in each]
    assert said.startswith("conversations are stored on disk: up to 1 GB for all models, through ")
    assert plan.memory.prompt_cache_bytes == plan.settings.prompt_cache_bytes > 0
    spec = VLLM.launch(plan.bundle, plan.settings, plan.installation, Endpoint(port=1), {})
    given = json.loads(flag_value(spec.argv, "--kv-transfer-config"))
    assert given == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": plan.settings.prompt_cache_bytes,
            "secondary_tiers": [{"type": "fs", "root_dir": str(plan.settings.slot_dir)}],
        },
    }
    assert VLLM.traits(plan.bundle, plan.settings).salt_field == "cache_salt"
    own = replace(plan.settings, extra_args=("--kv-transfer-config", "{}"))
    spec = VLLM.launch(plan.bundle, own, plan.installation, Endpoint(port=1), {})
    assert spec.argv.count("--kv-transfer-config") == 1
    small = make(replace(roomy, shared_memory_bytes=64 * MIB))  # a container's
    assert small.settings.slot_dir is None and small.memory.prompt_cache_bytes == 0
    assert any("needs RAM for that, in /dev/shm" in each for each in small.reasons)
    for plan in (small, make(CPU)):
        spec = VLLM.launch(plan.bundle, plan.settings, plan.installation, Endpoint(port=1), {})
        assert "--kv-transfer-config" not in spec.argv
        assert VLLM.traits(plan.bundle, plan.settings).salt_field is None


def test_what_llama_server_says_of_its_slots():
    said = b"""[{"id": 0, "n_ctx": 2048, "is_processing": false},
        {"id": 1, "is_processing": true, "id_task": 7, "n_prompt_tokens": 6, "more": [1],
         "params": {"dry_allowed_length": 1001, "temperature": 0.8}}]"""
    empty, busy = read_slots(said)
    assert (empty.number, empty.is_idle, empty.tokens, empty.last_task) == (0, True, 0, -1)
    assert (busy.number, busy.is_idle, busy.tokens, busy.mark) == (1, False, 6, 1001)
    assert read_slots(b'{"error": 1}') == read_slots(b"") == []
