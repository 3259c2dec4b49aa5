"""The head's process in a Ray cluster: a server on every machine, and a file that lists them.

    python -m vllama.targets.ray.head OWN_ADDRESS KEY_FILE LIST_FILE RAY_ADDRESS

It is the only module that imports Ray. Without RAY_ADDRESS it runs Ray's own head, too. It ends
when that ends, or when Ray answers no more; then the servers end as well.
"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from vllama.base import private
from vllama.targets.ray.cluster import PORT, Found, make_start
from vllama.targets.ray.node import NodeServer

CONNECT_LIMIT_S = 60.0
LOOK_EVERY_S = 1.0
LISTEN_EVERY_S = 0.2
AGAIN_S = 10.0
"""After which a machine without a server is asked for one again."""


@dataclass
class Started:
    """A server that has been asked for. `actor` None: it has failed."""

    address: str
    actor: Any = None
    finding: Any = None
    waiting: Any = None
    url: str = ""
    reason: str = ""
    again_s: float = 0.0


class Servers:
    """The servers of all machines but this one, by the nodes of Ray."""

    def __init__(self, own: str, key: str) -> None:
        self._own, self._key = own, key
        self._started: dict[str, Started] = {}

    def look(self) -> Found:
        """Start what is missing, and see what has come and gone. Blocks for a second."""
        nodes = {
            row["NodeID"]: row["NodeManagerAddress"]
            for row in ray.nodes()
            if row["Alive"] and row["NodeManagerAddress"] != self._own
        }
        now_s = time.monotonic()
        self._started = {
            name: one
            for name, one in self._started.items()
            if name in nodes and (one.actor is not None or now_s < one.again_s)
        }
        for name in nodes.keys() - self._started.keys():
            self._started[name] = self._start(name, nodes[name])
        self._note_answers()
        started = self._started.values()
        failed = {one.address: one.reason for one in started if one.reason}
        return Found(sorted(one.url for one in started if one.url), failed)

    def _start(self, name: str, address: str) -> Started:
        pinned = NodeAffinitySchedulingStrategy(name, soft=False)
        options = {"num_cpus": 0, "max_concurrency": 2, "scheduling_strategy": pinned}
        server: Any = ray.remote(NodeServer)  # its types do not follow methods that are remote
        actor = server.options(**options).remote(address, self._key)
        return Started(address, actor, actor.find_url.remote(), actor.wait.remote())

    def _note_answers(self) -> None:
        running = [one for one in self._started.values() if one.actor is not None]
        asked = [ref for one in running for ref in (one.waiting, one.finding) if ref is not None]
        if not asked:
            time.sleep(LOOK_EVERY_S)
            return
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=LOOK_EVERY_S)
        for one in running:
            try:
                if one.waiting in ready:
                    _fail(one, ray.get(one.waiting))
                elif one.finding in ready:
                    one.url, one.finding = ray.get(one.finding), None
            except RayError as error:
                _fail(one, str(error).strip().rpartition("\n")[2])


def _fail(one: Started, reason: str) -> None:
    ray.kill(one.actor)
    one.actor, one.url, one.reason = None, "", reason
    one.again_s = time.monotonic() + AGAIN_S


def main() -> None:
    """Run until Ray ends."""
    own, key_file, list_file, address = sys.argv[1:]
    head = None if address else subprocess.Popen(make_start(own))
    connect(address or f"{own}:{PORT}", head)
    servers = Servers(own, Path(key_file).read_text().strip())
    before = None
    while head is None or head.poll() is None:
        found = servers.look()
        if found != before:
            private.replace(Path(list_file), msgspec.json.encode(found))
            before = found


def connect(address: str, head: subprocess.Popen[bytes] | None) -> None:
    """Connect to Ray's head as soon as it answers. Raises ConnectionError, SystemExit if it ends.

    A connection to a Ray that is not there would fail after 20 s only.
    """
    deadline_s = time.monotonic() + CONNECT_LIMIT_S
    while head is not None and not is_listening(address):
        if head.poll() is not None:
            sys.exit("Ray has not started")
        if time.monotonic() > deadline_s:
            raise ConnectionError(f"Ray does not listen at {address}")
        time.sleep(LISTEN_EVERY_S)
    while True:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(LOOK_EVERY_S)
        else:
            return


def is_listening(address: str) -> bool:
    """Return whether something accepts connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), CONNECT_LIMIT_S):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    main()
