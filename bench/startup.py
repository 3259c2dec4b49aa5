# SPDX-License-Identifier: MIT
"""Measure how long the start and the short commands take, compared with bare Python.

    python -m bench.startup --rounds 40

Each round runs in this order: `python -c pass`, `vllama --version`, `python -c pass`,
`vllama --help`, `python -c pass`, `vllama serve` until its port accepts and until it has answered a
GET; then, each after a bare start, `vllama list`, `ps`, `show` and `stop` with that server running
and a GGUF with a typical vocabulary on disk. Every figure is compared with the bare start just
before it. Prints one line of JSON per round with milliseconds, then the medians of the ratios.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

from bench.lab import FILL, Lab, free_port

POLL_S = 0.0003
LIMIT_S = 30
MODEL = "measured"
VOCABULARY = 128_000
COMMANDS = {"list": ("list",), "ps": ("ps",), "show": ("show", MODEL), "stop": ("stop", MODEL)}
PAIRS = {"version": "bare1", "help": "bare2", "accept": "bare3", "answer": "bare3"} | {
    name: f"bare_{name}" for name in COMMANDS
}


def ms_since(begun):
    return round((time.perf_counter() - begun) * 1000, 3)


def own(lab, more=None):
    """Return the environment variables of a separate home with one model."""
    return {"HOME": str(lab.tmp), "VLLAMA_FOLDERS": str(lab.tmp / "models")} | (more or {})


def timed(command, lab, more=None):
    """Return the wall time of a command in milliseconds. Raises if it fails."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    env = lab.environment(own(lab, more))
    begun = time.perf_counter()
    subprocess.run(command, check=True, env=env, cwd=lab.tmp, **quiet)
    return ms_since(begun)


def write_model(folder, vocabulary=VOCABULARY):
    """Write a GGUF with one tensor, and by default as many tokens and merges as current models."""

    def string(text):
        return struct.pack("<Q", len(text)) + text.encode()

    def strings(key, values):
        return string(key) + struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(string, values))

    words = [f"token{number}" for number in range(vocabulary)]
    pairs = [
        string("general.architecture") + struct.pack("<I", 8) + string("llama"),
        strings("tokenizer.ggml.tokens", words),
        strings("tokenizer.ggml.merges", [f"{word} x" for word in words]),
    ]
    tensor = string("token_embd.weight") + struct.pack("<IQIQ", 1, 32, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs)) + b"".join(pairs) + tensor
    folder.mkdir()
    (folder / f"{MODEL}.gguf").write_bytes(head + bytes(-len(head) % 32) + bytes(32 * 4))


def front(command, bare, lab):
    """Return the milliseconds until the front accepts and answers, and those of the commands."""
    port = free_port()
    serve = [*command, "serve", "--port", str(port), "--upstream", lab.engine_url]
    begun = time.perf_counter()
    process = lab.spawn(serve, "serve.log", own(lab))
    try:
        sock = connect(port, process, begun)
        accepted = ms_since(begun)
        with sock:
            sock.settimeout(LIMIT_S)
            sock.sendall(b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = sock.recv(4096)
        answered = ms_since(begun)
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"cannot measure the start: it answered {head[:200]!r}")
        times = {"accept": accepted, "answer": answered}
        host = {"OLLAMA_HOST": f"127.0.0.1:{port}"}
        for words in COMMANDS.values():  # the server goes on importing beside its first answers
            timed([*command, *words], lab, host)
        for name, words in COMMANDS.items():
            times[PAIRS[name]] = timed(bare, lab)
            times[name] = timed([*command, *words], lab, host)
        return times
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)


def connect(port, process, begun):
    while process.poll() is None and time.perf_counter() - begun < LIMIT_S:
        sock = socket.socket()
        if sock.connect_ex(("127.0.0.1", port)) == 0:
            return sock
        sock.close()
        time.sleep(POLL_S)
    raise SystemExit("cannot measure the start: vllama serve does not accept connections")


def one(command, bare, lab, number):
    row = {"scenario": "startup", "target": "vllama", "round": number}
    row["bare1"], row["version"] = timed(bare, lab), timed([*command, "--version"], lab)
    row["bare2"], row["help"] = timed(bare, lab), timed([*command, "--help"], lab)
    row["bare3"] = timed(bare, lab)
    return row | front(command, bare, lab)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--rounds", type=int, default=40)
    p.add_argument("--vllama", default=FILL["vllama"], help="the command to measure")
    p.add_argument("--python", default=sys.executable, help="the bare Python")
    p.add_argument("--out", help="append every round as a JSON line here")
    a = p.parse_args()
    command, bare = shlex.split(a.vllama), [a.python, "-c", "pass"]
    rows = []
    with Lab() as lab:
        write_model(lab.tmp / "models")
        one(command, bare, lab, -1)  # byte code and the disk's cache
        for i in range(a.rounds):
            rows.append(one(command, bare, lab, i))
            line = json.dumps(rows[-1])
            print(line, flush=True)
            if a.out:
                with Path(a.out).open("a") as f:
                    f.write(line + "\n")
    for what, base in PAIRS.items():
        ratio = statistics.median(r[what] / r[base] for r in rows)
        print(f"{what}: {statistics.median(r[what] for r in rows):.1f} ms, {ratio:.2f} x bare")
    return 0


if __name__ == "__main__":
    sys.exit(main())
