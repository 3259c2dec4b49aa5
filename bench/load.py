# SPDX-License-Identifier: MIT
"""Load client for OpenAI- and Ollama-style streaming endpoints.

Standard library only, raw non-blocking sockets on epoll/kqueue, one process
per --procs, so that it costs far less than the server it measures. Against
``engine.py`` it counts tokens exactly (one ``~`` each, however a proxy has
re-framed them) and reads each token's one-way latency from its time stamp.

    python -m bench.load http://127.0.0.1:9000 --streams 64 --tokens 250
    python -m bench.load http://127.0.0.1:11434 --api ollama-chat --streams 64 --watch proxy=PID
    python -m bench.load http://127.0.0.1:11434 --api get:/api/version --streams 8 --requests 2000

Each connection is a closed loop: request, read to the end, next request.
A run ends after --requests (default: one per stream) or --duration; --timeout
is a hard stop. One JSON document on stdout; exit code 1 if an answer was wrong.
The directives of the prompt determine the correct answer (`protocol.py`): with `@status=503` every
answer must be a 503, with `@abort=5` it must have five tokens and no regular end. `--validate`
compares every byte of content.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from array import array

from bench.client import Worker
from bench.watch import usage

FAULTS = ("http_error", "conn_error", "truncated", "short", "invalid", "timeout")


def pct(values, *ps):
    if not len(values):
        return [None] * len(ps)
    v = sorted(values)
    return [v[min(len(v) - 1, int(len(v) * p / 100))] / 1000 for p in ps]


def share(n, index, procs):
    """The part of n that falls to one of several processes."""
    return None if n is None else n // procs + (index < n % procs)


def work(a, streams, requests, pipe):
    try:
        pipe.send(Worker(a, streams, requests).run())
    except BaseException as e:
        pipe.send(repr(e))
        raise


def parser():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("url")
    p.add_argument(
        "--api",
        default="openai-chat",
        help="openai-chat, openai-completions, openai-embeddings, ollama-chat, ollama-generate, "
        "ollama-embed, get:/PATH",
    )
    p.add_argument("--path", help="override the path of the API")
    p.add_argument("--uds", help="connect to this unix socket instead")
    p.add_argument("--model", default="synthetic/model-8b")
    p.add_argument(
        "--prompt", default="Say something.", help="may hold engine.py directives such as @ttft=100"
    )
    p.add_argument("--prompt-chars", type=int, default=0, help="pad the prompt to this size")
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--no-stream", action="store_true")
    p.add_argument("--streams", type=int, default=1, help="concurrent connections")
    p.add_argument("--requests", type=int, help="in all; default one per stream")
    p.add_argument("--duration", type=float, help="start no request after this many seconds")
    p.add_argument(
        "--ramp", type=float, default=0, help="spread the first requests over this many seconds"
    )
    p.add_argument("--timeout", type=float, default=120, help="hard stop in seconds")
    p.add_argument("--procs", type=int, default=1)
    p.add_argument("--no-keepalive", action="store_true")
    p.add_argument("--header", action="append", default=[])
    p.add_argument("--rcvbuf", type=int, default=0)
    p.add_argument(
        "--validate", action="store_true", help="compare the content of every answer (slower)"
    )
    p.add_argument(
        "--watch",
        action="append",
        default=[],
        metavar="NAME=PID",
        help="report CPU and memory of this process tree",
    )
    return p


def run(a):
    ctx = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    procs = max(1, min(a.procs, a.streams))
    requests = a.requests if a.requests is not None else (None if a.duration else a.streams)
    watch = {w.split("=")[0]: int(w.split("=")[1]) for w in a.watch}
    before = {k: usage(v) for k, v in watch.items()}
    peak = {k: before[k][1] for k in watch}
    wall0 = time.monotonic()
    pipes, kids = [], []
    for i in range(procs):
        r, w = ctx.Pipe(False)
        k = ctx.Process(
            target=work,
            args=(a, share(a.streams, i, procs), share(requests, i, procs), w),
        )
        k.start()
        w.close()
        pipes.append(r)
        kids.append(k)
    results = [None] * procs
    while any(r is None for r in results):
        if not any(r is None and pipes[i].poll(0.2) for i, r in enumerate(results)):
            for k, v in watch.items():
                peak[k] = max(peak[k], usage(v)[1])
            if time.monotonic() - wall0 > a.timeout + 30:
                break
            continue
        for i, r in enumerate(results):
            if r is None and pipes[i].poll(0):
                try:
                    results[i] = pipes[i].recv()
                except EOFError:
                    results[i] = "died"
    after = {k: usage(v) for k, v in watch.items()}
    for k in kids:
        k.join(5)
    good = [r for r in results if isinstance(r, tuple)]
    if len(good) != procs:
        bad = [r for r in results if not isinstance(r, tuple)]
        raise SystemExit(f"a load process failed: {bad}")
    ttft, itl, lat, total = (array("I") for _ in range(4))
    for r in good:
        ttft += r[1]
        itl += r[2]
        lat += r[3]
        total += r[4]
    skip = ("wall_us", "start", "stop", "errors_seen")
    tot = {k: sum(r[0][k] for r in good) for k in good[0][0] if k not in skip}
    wall = (max(r[0]["stop"] for r in good) - min(r[0]["start"] for r in good)) / 1e6
    names = ("p50", "p95", "p99")
    out = {
        "api": a.api,
        "streams": a.streams,
        "tokens_per_request": a.tokens,
        "wall_s": round(wall, 3),
    }
    out |= {k: tot[k] for k in ("ok", *FAULTS)}
    out["errors"] = sum(tot[k] for k in FAULTS)
    out["requests_per_s"] = round(tot["ok"] / wall, 1)
    out["tokens"] = tot["tokens"]
    out["tokens_per_s"] = round(tot["tokens"] / wall, 1)
    out["tokens_per_line"] = round(tot["tokens"] / tot["lines"], 2) if tot["lines"] else None
    out["tokens_per_read"] = round(tot["tokens"] / tot["reads"], 2) if tot["reads"] else None
    for label, arr in (
        ("ttft_ms", ttft),
        ("itl_ms", itl),
        ("token_latency_ms", lat),
        ("total_ms", total),
    ):
        out[label] = dict(zip(names, pct(arr, 50, 95, 99), strict=True))
    out["client_cpu_us_per_token"] = round(tot["cpu_s"] * 1e6 / max(1, tot["tokens"]), 2)
    out["watch"] = {}
    units = tot["tokens"] or tot["ok"]
    for k in watch:
        cpu = after[k][0] - before[k][0]
        out["watch"][k] = {
            "cpu_s": round(cpu, 3),
            "cpu_share": round(cpu / wall, 3),
            "cpu_us_per_token": round(cpu * 1e6 / max(1, units), 2),
            "cpu_us_per_request": round(cpu * 1e6 / max(1, tot["ok"]), 1),
            "rss_mb": round(after[k][1] / 1e6, 1),
            "rss_peak_mb": round(peak[k] / 1e6, 1),
            "rss_kb_per_stream": round(
                max(0, peak[k] - before[k][1]) / 1024 / max(1, a.streams), 1
            ),
        }
    seen = [e for r in good for e in r[0]["errors_seen"]]
    if seen:
        out["errors_seen"] = seen[:5]
    return out


if __name__ == "__main__":
    args = parser().parse_args()
    result = run(args)
    print(json.dumps(result))
    sys.exit(1 if result["errors"] else 0)
