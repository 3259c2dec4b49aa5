# SPDX-License-Identifier: MIT
"""Synthetic OpenAI-compatible engine for measuring proxies.

One process, one thread, standard library only. It answers like a vLLM server
(SSE framing, one event per HTTP chunk) but generates nothing: every token is
the marker ``~`` followed by the send time in microseconds of the monotonic
clock (13 digits), so that a client on the same machine can count tokens
exactly and read the one-way latency of each of them, whatever a proxy in
between has done to the JSON around it.

    python -m bench.engine --port 9000 --rate 50            # 50 tok/s per stream
    python -m bench.engine --port 9000 --rate 0 --burst 1   # as fast as it is read
    python -m bench.engine --uds e.sock --rate 50      # unix socket as well

Directives can be placed anywhere in the prompt; proxies forward them:

    @tokens=N  @rate=R  @ttft=MS     override the length / speed / prefill time
    @status=NNN                      answer with that HTTP status and an error body
    @abort=N                         reset the connection after N tokens
    @stall=N                         go silent after N tokens, connection open
    @think=N                         first N tokens as reasoning
    @tool                            answer with one tool call
    @utf8                            tokens carry non-ASCII text and escapes
    @burst=N                         N tokens per write (N events in one read of the proxy)
"""

from __future__ import annotations

import argparse
import errno
import heapq
import json
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path

from bench.answers import Ask, directives, embeddings, error, models, stream, whole
from bench.protocol import take_request

R, W = selectors.EVENT_READ, selectors.EVENT_WRITE


def us() -> int:
    return time.monotonic_ns() // 1000


class Conn:
    __slots__ = ("buf", "close_after", "closed", "gen", "out", "sock", "writing")

    def __init__(self, sock):
        self.sock, self.buf, self.out = sock, b"", b""
        self.writing = self.closed = self.close_after = False
        self.gen = None


class Stream:
    """One streamed completion on its way."""

    __slots__ = ("abort", "blocked", "burst", "conn", "due", "left", "period", "pre", "pre_think")
    __slots__ += ("sent", "stall", "suf", "tail", "think")

    def __init__(self, conn):
        self.conn, self.sent, self.blocked = conn, 0, False


class Engine:
    def __init__(self, args):
        self.a = args
        self.sel = selectors.DefaultSelector()
        self.listeners = []
        self.heap: list = []  # (due_us, seq, callable)
        self.seq = 0
        self.step: dict = {}  # (period_us, burst) -> set of streams (pacing=step)
        self.free: set = set()  # unthrottled streams that can write now
        self.conns: set = set()
        names = "connections requests streams active max_active finished client_gone tokens errors"
        self.n = dict.fromkeys(names.split(), 0)
        self.reqno = 0
        self.stop = False

    # ------------------------------------------------------------- listening
    def listen(self):
        a = self.a
        if a.uds:
            Path(a.uds).unlink(missing_ok=True)
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            s.bind(a.uds)
            self.listeners.append(s)
        if a.port is not None:
            s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if a.reuse_port:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            s.bind((a.host, a.port))
            self.listeners.append(s)
        for s in self.listeners:
            s.listen(4096)
            s.setblocking(False)
            self.sel.register(s, R, None)

    def at(self, due, fn):
        self.seq += 1
        heapq.heappush(self.heap, (due, self.seq, fn))

    # ------------------------------------------------------------------ loop
    def run(self):
        sel, heap = self.sel, self.heap
        while not self.stop:
            if self.free:
                timeout = 0
            elif heap:
                timeout = max(0.0, (heap[0][0] - us()) / 1e6)
            else:
                timeout = 1.0
            for key, ev in sel.select(timeout):
                c = key.data
                if c is None:
                    self.accept(key.fileobj)
                    continue
                if ev & W:
                    self.flush(c)
                if ev & R and not c.closed:
                    self.readable(c)
            now = us()
            while heap and heap[0][0] <= now:
                heapq.heappop(heap)[2]()
            if self.free:
                for st in list(self.free):
                    self.advance(st, st.burst)

    def accept(self, ls):
        while True:
            try:
                sock, _ = ls.accept()
            except (BlockingIOError, OSError):
                return
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.a.sndbuf:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.a.sndbuf)
            c = Conn(sock)
            self.conns.add(c)
            self.n["connections"] += 1
            self.sel.register(sock, R, c)

    def drop(self, c, reset=False):
        if c.closed:
            return
        c.closed = True
        self.conns.discard(c)
        if isinstance(c.gen, Stream):
            self.end_stream(c.gen, gone=not reset)
        c.gen = None
        self.sel.unregister(c.sock)
        if reset:
            c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        c.sock.close()

    # ------------------------------------------------------------------ read
    def readable(self, c):
        try:
            data = c.sock.recv(262144)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop(c)
            return
        c.buf += data
        while c.buf and c.gen is None and not c.closed:
            if not self.parse_one(c):
                break

    def parse_one(self, c) -> bool:
        request = take_request(c.buf)
        if request is None:
            return False
        method, path, body, c.close_after, c.buf = request
        self.n["requests"] += 1
        self.route(c, method, path.split(b"?")[0], body)
        return True

    # ----------------------------------------------------------------- route
    def route(self, c, method, path, body):
        a = self.a
        if method == b"POST" and path in (b"/v1/chat/completions", b"/v1/completions"):
            self.completion(c, body, path.endswith(b"chat/completions"))
        elif method == b"POST" and path == b"/v1/embeddings":
            self.later(c, a.delay_ms, 200, embeddings(json.loads(body), a.model, a.dim))
        elif path == b"/v1/models":
            self.reply(c, 200, models(a.model))
        elif path in (b"/health", b"/ping"):
            self.reply(c, 200, None)
        elif path == b"/version":
            self.reply(c, 200, {"version": "0.0.0-synthetic"})
        elif path == b"/__stats":
            t = os.times()
            more = {"cpu_s": t.user + t.system, "pid": os.getpid(), "open": len(self.conns)}
            self.reply(c, 200, self.n | more)
        else:
            self.reply(c, 404, error("not found", "NotFoundError", 404))

    def later(self, c, ms, status, doc):
        if ms <= 0:
            self.reply(c, status, doc)
            return
        c.gen = "waiting"
        self.at(us() + int(ms * 1000), lambda: self._late(c, status, doc))

    def _late(self, c, status, doc):
        if not c.closed:
            c.gen = None
            self.reply(c, status, doc)
            while c.buf and c.gen is None and not c.closed and self.parse_one(c):
                pass

    def reply(self, c, status, doc):
        body = b"" if doc is None else doc if isinstance(doc, bytes) else json.dumps(doc).encode()
        self.send(
            c,
            b"HTTP/1.1 %d X\r\nserver: synthetic\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (status, len(body), body),
        )

    def send(self, c, data):
        if c.closed:
            return
        if c.out:
            c.out += data
            return
        try:
            n = c.sock.send(data)
        except BlockingIOError:
            n = 0
        except OSError:
            self.drop(c)
            return
        if n < len(data):
            c.out = data[n:]
            if not c.writing:
                c.writing = True
                self.sel.modify(c.sock, R | W, c)
        elif c.close_after and c.gen is None:
            self.drop(c, reset=False)

    def flush(self, c):
        if c.out:
            try:
                n = c.sock.send(c.out)
            except BlockingIOError:
                return
            except OSError:
                self.drop(c)
                return
            c.out = c.out[n:]
        if not c.out and c.writing:
            c.writing = False
            self.sel.modify(c.sock, R, c)
            st = c.gen
            if isinstance(st, Stream) and st.blocked:
                st.blocked = False
                if st.period == 0:
                    self.free.add(st)

    # ------------------------------------------------------------ completion
    def completion(self, c, body, chat):
        a, n = self.a, self.n
        try:
            req = json.loads(body)
        except ValueError:
            n["errors"] += 1
            self.reply(c, 400, error("bad json", "BadRequestError", 400))
            return
        d = directives(body)
        if "status" in d:
            n["errors"] += 1
            self.reply(c, d["status"], error("synthetic failure", "SyntheticError", d["status"]))
            return
        limit = req.get("max_completion_tokens") or req.get("max_tokens") or 0
        tokens = min(d.get("tokens") or limit or a.tokens, a.max_tokens)
        rate = d.get("rate", a.rate)
        self.reqno += 1
        number = (self.reqno * 0x9E3779B97F4A7C15) & (2**64 - 1)
        ask = Ask(
            chat=chat,
            rid=f"{'chatcmpl' if chat else 'cmpl'}-{number:016x}",
            model=req.get("model") or a.model,
            created=int(time.time()),
            tokens=tokens,
            prompt_tokens=max(1, len(body) // 5),
            utf8="utf8" in d,
            tool="tool" in d,
            finish="tool_calls" if "tool" in d else "length" if limit == tokens else "stop",
            usage=bool((req.get("stream_options") or {}).get("include_usage")),
            reasoning_field=a.reasoning_field,
        )
        if not req.get("stream"):
            n["tokens"] += tokens
            n["finished"] += 1
            ms = a.delay_ms + (tokens * 1000 / rate if a.delay_generation and rate else 0)
            self.later(c, ms, 200, whole(ask, us(), d.get("think", 0)))
            return
        st = Stream(c)
        st.left = tokens
        st.abort, st.stall, st.think = d.get("abort", -1), d.get("stall", -1), d.get("think", 0)
        st.burst = d.get("burst", a.burst)
        parts = stream(ask)
        st.pre, st.pre_think, st.suf, st.tail = parts.pre, parts.pre_think, parts.suf, parts.tail
        st.period = int(1e6 / rate) if rate else 0
        c.gen = st
        n["streams"] += 1
        n["active"] += 1
        n["max_active"] = max(n["max_active"], n["active"])
        ttft = d.get("ttft", a.ttft_ms)
        if ttft > 0:
            self.at(us() + int(ttft * 1000), lambda: self.begin(st, parts.head))
        else:
            self.begin(st, parts.head)

    def begin(self, st, first):
        c = st.conn
        if c.closed:
            return
        self.send(c, first)
        if c.closed:
            return
        if st.period == 0:
            self.free.add(st)
            return
        self.advance(st, 1)  # the first token is due at once
        if c.closed or c.gen is not st:
            return
        if self.a.pacing == "step":
            key = st.period, st.burst
            group = self.step.get(key)
            if group is None:
                group = self.step[key] = set()
                p = st.period * st.burst
                due = us() // p * p + p
                self.at(due, lambda: self.tick(key, group, due))
            group.add(st)
        else:
            st.due = us() + st.period * st.burst
            self.at(st.due, lambda: self.pace(st))

    def tick(self, key, group, due):
        period, burst = key
        for st in list(group):
            if st.conn.gen is st:
                self.advance(st, burst)
            if st.conn.gen is not st:
                group.discard(st)
        if not group:
            self.step.pop(key, None)
            return
        p = period * burst
        nxt = max(due + p, us() // p * p)
        self.at(nxt, lambda: self.tick(key, group, nxt))

    def pace(self, st):
        if st.conn.gen is not st:
            return
        self.advance(st, st.burst)
        if st.conn.gen is st:
            st.due += st.period * st.burst
            self.at(st.due, lambda: self.pace(st))

    def advance(self, st, count):
        """Send the next `count` tokens of a stream in one write."""
        c = st.conn
        if st.stall >= 0 and st.sent >= st.stall:
            self.free.discard(st)
            return
        if 0 <= st.abort <= st.sent:
            self.free.discard(st)
            self.drop(c, reset=True)
            return
        k = min(count, st.left)
        stamp = b"%013d" % us()
        if k == 1:
            data = (st.pre_think if st.sent < st.think else st.pre) + stamp + st.suf
        else:
            if st.abort >= 0:
                k = min(k, st.abort - st.sent)
            thoughts = max(0, min(k, st.think - st.sent))
            data = (st.pre_think + stamp + st.suf) * thoughts
            data += (st.pre + stamp + st.suf) * (k - thoughts)
        st.left -= k
        st.sent += k
        self.n["tokens"] += k
        if st.left <= 0:
            data += st.tail
            c.gen = None
            self.end_stream(st)
        # an inlined send(): this is the hot path
        if c.out:
            c.out += data
        else:
            try:
                m = c.sock.send(data)
            except BlockingIOError:
                m = 0
            except OSError as e:
                if e.errno not in (errno.EPIPE, errno.ECONNRESET):
                    self.n["errors"] += 1
                self.drop(c)
                return
            if m < len(data):
                c.out = data[m:]
                st.blocked = True
                self.free.discard(st)
                if not c.writing:
                    c.writing = True
                    self.sel.modify(c.sock, R | W, c)
        if c.gen is None:
            if c.close_after and not c.out:
                self.drop(c)
            else:
                while c.buf and c.gen is None and not c.closed and self.parse_one(c):
                    pass

    def end_stream(self, st, gone=False):
        self.n["active"] -= 1
        self.n["client_gone" if gone else "finished"] += 1
        self.free.discard(st)


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, help="0 picks a free one")
    p.add_argument("--uds", help="listen on this unix socket too")
    p.add_argument(
        "--rate", type=float, default=50.0, help="tokens per second per stream; 0: unthrottled"
    )
    p.add_argument(
        "--tokens", type=int, default=128, help="length of an answer when the request sets none"
    )
    p.add_argument("--max-tokens", type=int, default=100000)
    p.add_argument(
        "--pacing",
        choices=("step", "stagger"),
        default="step",
        help="step: all streams advance together, as in continuous batching; stagger: each alone",
    )
    p.add_argument("--burst", type=int, default=1, help="tokens per write")
    p.add_argument("--ttft-ms", type=float, default=0)
    p.add_argument("--delay-ms", type=float, default=0, help="delay of non-streamed answers")
    p.add_argument(
        "--delay-generation", action="store_true", help="non-streamed answers also take tokens/rate"
    )
    p.add_argument("--model", default="synthetic/model-8b")
    p.add_argument(
        "--reasoning-field",
        default="reasoning",
        help="vLLM, SGLang: reasoning; llama.cpp, older vLLM: reasoning_content",
    )
    p.add_argument("--dim", type=int, default=1024, help="embedding size")
    p.add_argument("--sndbuf", type=int, default=0)
    p.add_argument("--reuse-port", action="store_true")
    p.add_argument("--max-seconds", type=float, default=3600, help="stop by itself after this long")
    a = p.parse_args(argv)
    if a.port is None and not a.uds:
        a.port = 0
    e = Engine(a)
    e.listen()
    e.at(us() + int(a.max_seconds * 1e6), lambda: setattr(e, "stop", True))
    for s in (signal.SIGTERM, signal.SIGINT):
        signal.signal(s, lambda *_: sys.exit(0))
    port = next((s.getsockname()[1] for s in e.listeners if s.family == socket.AF_INET), None)
    print(json.dumps({"port": port, "uds": a.uds, "pid": os.getpid()}), flush=True)
    e.run()


if __name__ == "__main__":
    main()
