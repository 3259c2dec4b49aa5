# SPDX-License-Identifier: MIT
"""Measure how soon a disconnecting client stops the engine, and the cost of one that does not read.

Opens N streams through a proxy, reads a few tokens of each, closes the sockets, and polls
/__stats of engine.py until no stream is active. Prints one line of JSON.

    python -m bench.abort http://127.0.0.1:11434 --engine http://127.0.0.1:9000 --streams 16

With --prefill the clients disconnect before the engine has sent a token. A proxy that notices this
only at its next write keeps the engine busy until then.

With --no-read SECONDS the clients request long unthrottled answers and read nothing. The result
says how many tokens the engine could push (backpressure limits them), whether it still pushes at
the end, and how much memory the proxy (--watch PID) took.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
import urllib.request
from urllib.parse import urlsplit

from bench import protocol
from bench.watch import usage

MANY = 100_000  # tokens of an unread answer
STILL_S = 0.5  # the engine counts as stopped if it sends nothing for this long
POLL_S = 0.002


def stats(engine):
    with urllib.request.urlopen(engine + "/__stats", timeout=5) as answer:
        return json.load(answer)


def open_streams(a, prompt, tokens):
    u = urlsplit(a.url)
    data = protocol.request(
        a.api, u.netloc, model=a.model, prompt=prompt, tokens=tokens, headers=tuple(a.header)
    )
    socks = []
    for _ in range(a.streams):
        socks.append(socket.create_connection((u.hostname, u.port), 10))
        socks[-1].sendall(data)
    return socks


def close(a, socks, idle):
    """Close all; return milliseconds until the engine has no more streams than `idle`, or None."""
    begun = time.monotonic()
    for s in socks:
        s.close()
    while time.monotonic() - begun < a.wait:
        if stats(a.engine)["active"] <= idle:
            return round((time.monotonic() - begun) * 1000, 1)
        time.sleep(POLL_S)
    return None


def leave(a):
    """Disconnect while the engine generates, or with --prefill before its first token."""
    before = stats(a.engine)
    prefill = " @ttft=5000" if a.prefill else ""
    socks = open_streams(a, f"Say something. @rate=50{prefill}", 3000)
    if a.prefill:
        limit = time.monotonic() + 10
        while stats(a.engine)["active"] - before["active"] < a.streams:
            if time.monotonic() > limit:
                raise SystemExit("the engine did not get all requests")
            time.sleep(POLL_S)
    else:
        for s in socks:
            got = b""
            s.settimeout(20)
            while got.count(b"~") < 3:
                data = s.recv(65536)
                if not data:
                    raise SystemExit(f"closed early: {got[-300:]!r}")
                got += data
    tokens = stats(a.engine)["tokens"]
    ms = close(a, socks, before["active"])
    wasted = stats(a.engine)["tokens"] - tokens
    return {"all_stopped_ms": ms, "tokens_wasted": wasted, "errors": int(ms is None)}


def unread(a):
    """Request long answers, read nothing, then disconnect."""
    before = stats(a.engine)
    rss = usage(a.watch)[1] if a.watch else None
    socks = open_streams(a, f"Say something. @rate=0 @tokens={MANY}", 3000)
    time.sleep(a.no_read - STILL_S)
    pushed = stats(a.engine)["tokens"]
    time.sleep(STILL_S)
    late = stats(a.engine)["tokens"] - pushed
    grown = None if rss is None else (usage(a.watch)[1] - rss) / 1e6 / a.streams
    ms = close(a, socks, before["active"])
    return {
        "unread_tokens_per_stream": round((pushed - before["tokens"]) / a.streams),
        "of": MANY,
        "still_sending": late,
        "grew_mb_per_client": grown and round(grown, 3),
        "all_stopped_ms": ms,
        "errors": int(ms is None or late > 0),
    }


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("url")
    p.add_argument("--engine", required=True)
    p.add_argument("--api", default="ollama-chat")
    p.add_argument("--model", default="synthetic/model-8b")
    p.add_argument("--streams", type=int, default=16)
    p.add_argument("--wait", type=float, default=10, help="give up after this many seconds")
    p.add_argument("--no-read", type=float, default=0, metavar="SECONDS")
    p.add_argument("--prefill", action="store_true")
    p.add_argument("--watch", type=int, help="pid of the proxy")
    p.add_argument("--header", action="append", default=[])
    a = p.parse_args()
    result = {"api": a.api, "streams": a.streams} | (unread(a) if a.no_read else leave(a))
    print(json.dumps(result))
    return 1 if result["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
