"""vLLM over two servers for real, on its CPU build, tensor parallel: `make test-vllm`."""

import json
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import weights
from tests.e2e.test_vllm_real import START_S, environment, make_folder, serving
from tests.server_process import LIMIT_S

__all__ = ["environment"]

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(900)]

NAME = "halves"
# its heads can be divided by two, those of the other models of tests cannot
MAKE = """
import sys
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(
    vocab_size=49152, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
    tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
"""


@pytest.fixture
def pair(environment, tmp_path):
    """Start a server that has half of the model, and one that answers; return both."""
    folder = make_folder(environment, weights(), tmp_path / "model" / NAME)
    subprocess.run([environment / "bin" / "python", "-c", MAKE, folder], check=True)
    ways = {"GLOO_SOCKET_IFNAME": "lo"}
    with ExitStack() as stack:
        servers = []
        for place in ("box", "head"):
            server = serving(tmp_path / place, environment, "--ctx", "512", "--parallel", "4")
            server.env |= ways
            (server.models / NAME).symlink_to(folder)
            servers.append(server)
        box, head = servers
        stack.enter_context(box)
        file = Path(head.env["HOME"]) / ".config" / "vllama" / "config.toml"
        file.parent.mkdir(parents=True)
        file.write_text(f'[models."{NAME}"]\nmachines = [{json.dumps(box.url)}]\n')
        stack.enter_context(head)
        yield box, head


def find_workers(server) -> list[psutil.Process]:
    """Return vLLM's processes under a server that hold a part of the model."""
    return [each for each in server.tree() if "VLLM::Worker" in " ".join(each.cmdline())]


def test_two_servers_have_a_half_each(pair):
    box, head = pair
    asked = {"model": NAME, "prompt": "The capital of France is", "raw": True, "stream": False,
             "options": {"num_predict": 8, "temperature": 0}}  # fmt: skip
    status, answer = head.post("/api/generate", asked)
    assert status == 200 and answer["eval_count"] == 8, (answer, head.output, box.output)
    assert [len(find_workers(each)) for each in pair] == [1, 1]
    for killed in (0, 1):
        parts = [*find_workers(box), *find_workers(head)]
        parts[killed].send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(parts, timeout=LIMIT_S)
        assert not alive, (head.output, box.output)
        status, again = head.post("/api/generate", asked)
        assert status == 200 and again["response"] == answer["response"], head.output
    trees = [*find_workers(box), *find_workers(head)]
    assert head.post("/api/generate", {"model": NAME, "keep_alive": 0})[0] == 200
    _, alive = psutil.wait_procs(trees, timeout=START_S)
    assert not alive
