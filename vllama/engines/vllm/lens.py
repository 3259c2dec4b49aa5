"""vllm-lens, a plug-in of vLLM that collects the residual stream and steers by vectors.

Its fields travel in `vllm_xargs`, what it has collected in `activations` beside the choices.
Checked with vllm-lens 1.3.0 and vLLM 0.32 on a CPU (docs/reference/engines.md#vllm-lens): in a
stream only the last piece of an answer is counted, so that what the others have collected is cut
off, and completions that stream collect nothing. A layer that the model lacks, or a vector of
another length, is ignored without a word.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec

from vllama.base.errors import BadRequest, UpstreamError
from vllama.chat.inspect import Dtype, Residual, Steering
from vllama.net.http.content_encoding import decompress

PLUGIN = "vllm-lens"
SWITCH = "VLLM_LENS_DISABLE"
MOST_BYTES = 1 << 32


_DTYPES: Mapping[str, Dtype] = {f"torch.{name}": name for name in get_args(Dtype)}


class _Tensor(msgspec.Struct):
    data: str
    original_dtype: Literal["torch.float32", "torch.float16", "torch.bfloat16"]
    shape: tuple[int, int, int]
    compression: Literal["zstd", "identity"] = "identity"


class _Activations(msgspec.Struct):
    residual_stream: _Tensor


class _Choice(msgspec.Struct):
    token_ids: list[int]
    prompt_token_ids: list[int] | None = None  # of a completion


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    activations: _Activations
    prompt_token_ids: list[int] | None = None  # of a chat


@dataclass(frozen=True, slots=True)
class Lens:
    """Requests to a vLLM with the plug-in."""

    def ask(self, layers: Sequence[int], steering: Sequence[Steering]) -> Mapping[str, Any]:
        """Return `vllm_xargs`, and what makes the answer come whole with its tokens."""
        told: dict[str, Any] = {}
        if steering:
            vectors = [_write_vector(each) for each in steering]
            told["apply_steering_vectors"] = msgspec.json.encode(vectors).decode()
        if not layers:
            return {"vllm_xargs": told}
        told["output_residual_stream"] = list(layers)
        return {"vllm_xargs": told, "stream": False, "return_token_ids": True}

    def read(self, answer: bytes, layers: Sequence[int]) -> Residual:
        """Return the collected data of a response. Raises UpstreamError."""
        try:
            told = msgspec.json.decode(answer, type=_Answer)
            tensor, choice = told.activations.residual_stream, told.choices[0]
            packed = base64.b64decode(tensor.data, validate=True)
            data = decompress(packed, tensor.compression, MOST_BYTES)
        except (ValueError, IndexError, BadRequest) as error:
            raise UpstreamError(
                f"cannot collect activations: unexpected data from {PLUGIN} ({error})",
                hint="to reinstall it: vllama engines install vllm --with vllm-lens --upgrade",
            ) from None
        tokens = [*(told.prompt_token_ids or choice.prompt_token_ids or ()), *choice.token_ids]
        return Residual(
            dtype=_DTYPES[tensor.original_dtype],
            shape=tensor.shape,
            layers=layers,
            token_ids=tokens[: tensor.shape[1]],
            tokens=(),
            data=base64.b64encode(data).decode(),
        )


def _write_vector(steering: Steering) -> dict[str, Any]:
    """Return one of its `SteeringVector`s: the same row for each layer."""
    rows = len(steering.layers)
    return {
        "activations": {
            "data": base64.b64encode(steering.vector * rows).decode(),
            "dtype": "float32",
            "original_dtype": "torch.float32",
            "shape": [rows, len(steering.vector) // 4],
        },
        "layer_indices": list(steering.layers),
        "scale": steering.strength,
    }


TRIAL = """
import json, os, tempfile
from os import environ
environ |= {"VLLM_LENS_DISABLE": "0", "VLLM_LENS_STRICT_COMPATIBILITY": "1",
    "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64,
        "max_position_embeddings": 64, "dtype": "bfloat16"}
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(config, file)
        model = LLM(folder, load_format="dummy", skip_tokenizer_init=True, max_model_len=64,
            max_num_seqs=1, gpu_memory_utilization=0.1)
        asked = SamplingParams(max_tokens=1, detokenize=False,
            extra_args={"output_residual_stream": [1]})
        answer = model.generate([{"prompt_token_ids": [1, 2, 3]}], asked)[0]
        shape = tuple(answer.activations["residual_stream"].shape)
        if shape != (1, 3, 64):
            raise SystemExit(f"vllm-lens collected {shape}, not (1, 3, 64)")
"""
"""A program for its environment: a model with random weights answers, and a layer is collected."""
