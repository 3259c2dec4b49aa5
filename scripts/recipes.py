"""Print what the environments of engines are made of: `.ci/run` keeps them while this is equal."""

import sys

from vllama.engines.registry import load_engines
from vllama.models.convert.tools import PLAIN, WITH_CPU

print(sys.version, sys.base_prefix)
for name, engine in sorted(load_engines().items()):
    print(name, engine.install)
print("converter", PLAIN, WITH_CPU)
