"""Run one of the processes that serve a model together on several machines, and end it with them.

This is a program with nothing but the standard library, which `server.grouping` starts. Rank 0 asks
the other machines for their processes (`POST /api/group`), which live as long as its connections.
Whichever process ends, on whatever machine, ends all: engines do not notice that by themselves.

    rank_child.py --ask JSON --node URL --node URL -- COMMAND     rank 0
    rank_child.py --health HOST:PORT --master HOST -- COMMAND     the others

In COMMAND, and in its variables, the word {address} stands for rank 0's address, {port} for its
port, and {own} for this machine's address as the others see it. A rank other than 0 answers no
requests, so this program tells in its place that it lives.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import urlsplit

KEY, CERTIFICATES = "VLLAMA_RANK_KEY", "VLLAMA_RANK_CERTIFICATES"
SILENT_S = 8.0
"""A machine that says nothing for so long is lost."""
REFUSED, LOST = "rank refused: ", "rank lost: "
"""How the line begins that tells why all end."""


def main() -> int:
    """Run the command until it ends, or another rank does."""
    words = sys.argv[1:]
    split = words.index("--")
    options = parse(words[:split])
    key, certificates = os.environ.pop(KEY, ""), os.environ.pop(CERTIFICATES, "")
    first = urlsplit(options.node[0]).hostname if options.node else options.master
    own = find_own_address(str(first))
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    places = {"{address}": own, "{port}": str(port), "{own}": own}
    command = [places.get(word, word) for word in words[split + 1 :]]
    environ = {name: places.get(value, value) for name, value in os.environ.items()}
    child = subprocess.Popen(command, env=environ)
    signal.signal(signal.SIGTERM, lambda *_: end(child, signal.SIGTERM))
    if options.health:
        host, _, number = options.health.rpartition(":")
        server = HTTPServer((host, int(number)), Alive)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    for rank, url in enumerate(options.node, 1):
        ask = {**json.loads(options.ask), "rank": rank, "address": own, "port": port}
        follow = Follower(url, ask, key, certificates, child)
        threading.Thread(target=follow.run, daemon=True).start()
    return child.wait()


def parse(words: list[str]) -> argparse.Namespace:
    """Parse what stands before the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ask", default="{}")
    parser.add_argument("--node", action="append", default=[])
    parser.add_argument("--health")
    parser.add_argument("--master", default="")
    return parser.parse_args(words)


def find_own_address(other: str) -> str:
    """Return the address of this machine on the way to another one; nothing is sent."""
    family = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        way.connect((other, 9))
        return str(way.getsockname()[0])


def end(child: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to the command, if it still runs."""
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)


class Alive(BaseHTTPRequestHandler):
    """Answers every request with 200."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Follower:
    """Asks one machine for its rank, and ends ours when that ends."""

    def __init__(
        self,
        url: str,
        ask: dict[str, object],
        key: str,
        certificates: str,
        child: subprocess.Popen[bytes],
    ) -> None:
        self._url, self._ask, self._key, self._child = url, ask, key, child
        self._certificates = certificates or None

    def run(self) -> None:
        """Follow the machine's answer to its end, which ends the command."""
        name = urlsplit(self._url).hostname
        try:
            kind, why = self._follow()
        except (OSError, http.client.HTTPException, ValueError) as error:
            kind, why = LOST, str(error) or type(error).__name__
        if self._child.poll() is None:
            sys.stderr.write(f"{kind}{name}: {why}\n")
            end(self._child, signal.SIGKILL)

    def _follow(self) -> tuple[str, str]:
        """Return whether the machine has refused or is lost, and why."""
        parts = urlsplit(self._url)
        host, port = str(parts.hostname), parts.port
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=self._certificates)
            context.check_hostname = self._certificates is None  # a pinned one may name any host
            connection = http.client.HTTPSConnection(host, port, timeout=SILENT_S, context=context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=SILENT_S)
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        path = f"{parts.path.rstrip('/')}/api/group"
        connection.request("POST", path, json.dumps(self._ask), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            return REFUSED, str(json.loads(answer.read())["error"])
        while line := answer.readline():
            told = json.loads(line)
            if "error" in told:
                return REFUSED, str(told["error"])
            if "ended" in told:
                return LOST, str(told["ended"])
        return LOST, "it is stopping"


if __name__ == "__main__":
    sys.exit(main())
