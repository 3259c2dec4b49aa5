"""The engines besides the defaults, and how their tests start them."""

from pathlib import Path

from tests.facts import bundle
from vllama.engines.base import Installation, Mode, Settings
from vllama.engines.max_serve import ENGINE as MAX
from vllama.engines.mlx_lm import ENGINE as MLX
from vllama.engines.sglang import ENGINE as SGLANG
from vllama.engines.sglang import JAX_ENGINE as SGLANG_JAX
from vllama.engines.tinygrad import ENGINE as TINYGRAD
from vllama.engines.transformers_serve import ENGINE as TRANSFORMERS
from vllama.models.types import Format
from vllama.supervise.spec import Endpoint

ALL = (TRANSFORMERS, MLX, MAX, TINYGRAD, SGLANG, SGLANG_JAX)
ENDPOINT = Endpoint(port=4321, api_key="secret")
HERE = Installation(
    engine="e", version="1", python=Path("/env/bin/python"), executable=Path("/env/bin/program")
)
FOLDER = bundle(path=Path("/models/m"), format=Format.SAFETENSORS)
FILE = bundle(path=Path("/models/m.gguf"))


def settings(**changes) -> Settings:
    values = {"mode": Mode.CHAT, "alias": "m:latest", "context_length": 4096, "threads": 3}
    return Settings(**(values | changes))


def launch(engine, installation=HERE, environ=None, **changes):
    model = FILE if Format.GGUF in engine.formats else FOLDER
    return engine.launch(model, settings(**changes), installation, ENDPOINT, environ or {})


def traits(engine, **changes):
    model = FILE if Format.GGUF in engine.formats else FOLDER
    return engine.traits(model, settings(**changes))
