"""A port for a test that has to name it before anybody listens there."""

from __future__ import annotations

import os
import random
import socket

# below the range that the kernel gives to connections and to port 0 (32768 and up on Linux): other
# workers' servers cannot come to lie there by chance
_LOWEST, _HIGHEST = 20_000, 32_000
_random = random.Random(os.urandom(8))


def free_port() -> int:
    """Return a port of the loopback that nobody uses."""
    while True:
        port = _random.randint(_LOWEST, _HIGHEST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
