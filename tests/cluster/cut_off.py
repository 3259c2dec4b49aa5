"""A machine that is cut off while it serves a part of a model: run by test_storm.py."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from tests.cluster.machines import PORT, Machine, open_lan
from tests.server_process import LIMIT_S, Server
from vllama.supervise.rank_child import SILENT_S

NAME = "shared"
KEY = "sk-between-the-servers"
ENDS_WITHIN_S = SILENT_S + 10.0
HEADERS = {"authorization": f"Bearer {KEY}"}


def serves(box: Machine) -> bool:
    """Tell whether the machine runs its part of the model."""
    for process in box.find_processes():
        with suppress(psutil.Error):  # it may end meanwhile
            if process.cmdline()[1:2] == ["-c"]:
                return True
    return False


def wait(until: Callable[[], bool], limit_s: float, what: str) -> None:
    """Wait until something is so."""
    deadline_s = time.monotonic() + limit_s
    while not until():
        if time.monotonic() > deadline_s:
            sys.exit(f"it takes more than {limit_s:g} s until {what}")
        time.sleep(0.1)


def run(home: Path) -> None:
    """Serve a model on two machines, pull the cable of the second, and plug it in again."""
    key = home / "node.key"
    key.write_text(f"{KEY}\n")
    key.chmod(0o600)
    open_lan()
    own = ("--node-key-file", str(key))
    box = Machine(1, home / "box", *own)
    head = Server(home / "head", *own)
    file = home / "head" / ".config" / "vllama" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'[models."*"]\nmachines = ["http://{box.address}:{PORT}"]\n')
    for server in (box.server, head):
        server.model(NAME)
    body = {"model": NAME, "prompt": "hi", "stream": False}

    def answers() -> bool:
        return head.request("POST", "/api/generate", body, HEADERS)[0] == 200

    told = f"it has lost the machine {box.address}"
    box.boot()
    with head:
        for _ in range(2):
            wait(answers, LIMIT_S, "both serve it")
            wait(lambda: serves(box), LIMIT_S, "the second has its rank")
            box.plug(into=False)
            wait(lambda: not serves(box), ENDS_WITHIN_S, "what is cut off ends its rank")
            wait(lambda: told in head.output, ENDS_WITHIN_S, "the loss is told")
            box.plug(into=True)
    box.server.find_own().terminate()
    wait(lambda: not box.find_processes(), LIMIT_S, "nothing is left")
    box.power_off()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder))
