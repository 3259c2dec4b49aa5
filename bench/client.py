# SPDX-License-Identifier: MIT
"""The worker of the load client: N connections on one selector, each a closed loop.

It uses raw non-blocking sockets on epoll/kqueue, so that it costs far less than the fronts that it
measures.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from array import array
from urllib.parse import urlsplit

from bench import protocol
from bench.protocol import STAMP

SAMPLE_CAP = 1_500_000


def us() -> int:
    return time.monotonic_ns() // 1000


class Stream:
    __slots__ = ("body", "connected", "framing", "head", "keep", "last", "left", "lines", "nbytes")
    __slots__ += ("sock", "status", "t0", "tail", "tokens")


class Worker:
    def __init__(self, a, streams, requests):
        self.a, self.want, self.todo = a, streams, requests
        u = urlsplit(a.url)
        self.addr, self.family = (u.hostname or "127.0.0.1", u.port or 80), socket.AF_INET
        if a.uds:
            self.addr, self.family = a.uds, socket.AF_UNIX
        prompt, stream = a.prompt, not a.no_stream
        if a.prompt_chars:
            pad = " lorem ipsum" * (a.prompt_chars // 12 + 1)
            prompt = (prompt + pad)[: max(a.prompt_chars, len(prompt))]
        self.request = protocol.request(
            a.api,
            u.netloc,
            model=a.model,
            prompt=prompt,
            tokens=a.tokens,
            stream=stream,
            path=a.path,
            headers=tuple(a.header),
            keep=not a.no_keepalive,
        )
        self.expect = protocol.expected(a.api, prompt, a.tokens, stream)
        self.sse = a.api.startswith("openai")
        self.sel = selectors.DefaultSelector()
        self.ttft, self.itl, self.lat, self.total = array("I"), array("I"), array("I"), array("I")
        names = "ok http_error conn_error truncated short invalid timeout tokens lines reads bytes"
        self.r = dict.fromkeys(names.split(), 0)
        self.active = 0
        self.errors: list = []

    def run(self):
        a = self.a
        start = us()
        stop_new = start + int(a.duration * 1e6) if a.duration else None
        hard = start + int(a.timeout * 1e6)
        gap = int(a.ramp * 1e6 / max(1, self.want))
        starts = [start + i * gap for i in range(self.want)]
        si = 0
        self.stop_new = stop_new
        while True:
            now = us()
            while si < len(starts) and starts[si] <= now:
                si += 1
                self.start_one()
            if si >= len(starts) and not self.active:
                break
            if now > hard:
                self.r["timeout"] += self.active
                break
            wait = 0.25 if si >= len(starts) else max(0.0, (starts[si] - now) / 1e6)
            for key, _ in self.sel.select(wait):
                s = key.data
                if not s.connected:
                    self.on_connect(s)
                else:
                    self.on_read(s)
        out = self.r | {
            "wall_us": us() - start,
            "start": start,
            "stop": us(),
            "errors_seen": self.errors[:5],
        }
        t = os.times()
        out["cpu_s"] = t.user + t.system
        return out, self.ttft, self.itl, self.lat, self.total

    # ----------------------------------------------------------------- steps
    def take(self):
        if self.stop_new is not None:
            if us() >= self.stop_new:
                return False
            if self.todo is None:
                return True
        if self.todo is None or self.todo <= 0:
            return False
        self.todo -= 1
        return True

    def start_one(self):
        if not self.take():
            return
        self.active += 1
        self.connect()

    def connect(self):
        s = Stream()
        s.sock = socket.socket(self.family, socket.SOCK_STREAM)
        if self.family == socket.AF_INET:
            s.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.a.rcvbuf:
                s.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.a.rcvbuf)
        s.sock.setblocking(False)
        s.connected = False
        s.t0 = us()
        err = s.sock.connect_ex(self.addr)
        if err in (0, 115, 36, 11):  # EINPROGRESS on Linux / macOS
            self.sel.register(s.sock, selectors.EVENT_WRITE, s)
            if err == 11:  # unix socket backlog full: EAGAIN
                self.fail(s, "conn_error", "connect backlog")
        else:
            self.sel.register(s.sock, selectors.EVENT_WRITE, s)
            self.fail(s, "conn_error", os.strerror(err))

    def on_connect(self, s):
        err = s.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if err:
            self.fail(s, "conn_error", os.strerror(err))
            return
        s.connected = True
        self.sel.modify(s.sock, selectors.EVENT_READ, s)
        self.send(s)

    def send(self, s):
        s.head, s.status, s.framing, s.left, s.tail = b"", 0, None, 0, b""
        s.tokens = s.lines = s.last = s.nbytes = 0
        s.keep = True
        s.body = [] if self.a.validate else None
        s.t0 = us()
        try:
            n = s.sock.send(self.request)
            if n != len(self.request):  # a big prompt: finish blocking, it is loopback
                s.sock.setblocking(True)
                s.sock.sendall(self.request[n:])
                s.sock.setblocking(False)
        except OSError as e:
            self.fail(s, "conn_error", str(e))

    def fail(self, s, kind, why=""):
        """Handle a broken connection, which is correct only if the engine had to reset it."""
        self.count(s, (kind, why) if kind != "truncated" or not self.cut_well(s) else None)
        self.close(s)
        self.active -= 1
        self.again()

    def cut_well(self, s):
        return self.expect.cut and s.tokens == self.expect.tokens

    def count(self, s, wrong):
        if wrong is None:
            self.r["ok"] += 1
            return
        self.r[wrong[0]] += 1
        if len(self.errors) < 5:
            self.errors.append(f"{wrong[0]}: {wrong[1]}")

    def close(self, s):
        try:
            self.sel.unregister(s.sock)
        except KeyError:
            pass
        s.sock.close()

    def again(self, s=None):
        if not self.take():
            if s is not None:
                self.close(s)
            return
        self.active += 1
        if s is not None and s.keep and not self.a.no_keepalive:
            self.send(s)
        else:
            if s is not None:
                self.close(s)
            self.connect()

    def on_read(self, s):
        try:
            data = s.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError as e:
            self.fail(s, "truncated" if s.tokens else "conn_error", str(e))
            return
        now = us()
        if not data:
            if s.framing == "close" and s.status:
                self.finish(s, now)
            else:
                self.fail(s, "truncated", f"closed after {s.tokens} tokens")
            return
        self.r["reads"] += 1
        s.nbytes += len(data)
        if s.framing is None:
            s.head += data
            i = s.head.find(b"\r\n\r\n")
            if i < 0:
                return
            head, data = s.head[:i].lower(), s.head[i + 4 :]
            s.status = int(head[9:12])
            s.keep = b"\r\nconnection: close" not in head
            if b"transfer-encoding: chunked" in head:
                s.framing = "chunked"
            else:
                length = protocol.header(head, b"content-length")
                if length is not None:
                    s.left = int(length)
                    s.framing = "length"
                else:
                    s.framing, s.keep = "close", False
            if not data:
                if s.framing == "length" and s.left == 0:
                    self.finish(s, now)
                return
        stamps = STAMP.findall(data)
        n = data.count(b"~")
        if n:
            self.r["tokens"] += n
            if s.tokens == 0:
                if len(self.ttft) < SAMPLE_CAP:
                    self.ttft.append(now - s.t0)
            elif len(self.itl) < SAMPLE_CAP:
                self.itl.append(now - s.last)
            s.tokens += n
            s.last = now
            if len(self.lat) < SAMPLE_CAP:
                for t in stamps:
                    d = now - int(t)
                    self.lat.append(d if d > 0 else 0)
        self.r["lines"] += data.count(b"\n\n") if self.sse else data.count(b"}\n")
        if s.body is not None:
            s.body.append(data)
        s.tail = data[-600:] if len(data) >= 600 else (s.tail + data)[-600:]
        if s.framing == "chunked":
            if s.tail.endswith(b"0\r\n\r\n") and (
                s.tail.endswith(b"\r\n0\r\n\r\n") or len(s.tail) == 5
            ):
                self.finish(s, now)
        elif s.framing == "length":
            s.left -= len(data)
            if s.left <= 0:
                self.finish(s, now)

    def finish(self, s, now):
        self.r["bytes"] += s.nbytes
        self.total.append(min(now - s.t0, 2**32 - 1))
        self.active -= 1
        self.count(s, self.wrong(s))
        self.again(s)

    def wrong(self, s):
        """Return what is wrong with a finished answer as (kind, description), or None."""
        want, tail = self.expect, protocol.joined(s.tail)
        if s.status != want.status:
            return "http_error", f"HTTP {s.status} {s.tail[-200:]!r}"
        if want.cut and want.end in tail and b'"error"' not in tail:
            return "truncated", f"a good end after an engine that broke off: {s.tail[-200:]!r}"
        if not want.cut and want.end not in tail:
            return "truncated", f"no end marker: {s.tail[-200:]!r}"
        if want.tokens is not None and s.tokens != want.tokens:
            return "short", f"{s.tokens} tokens of {want.tokens}"
        if s.body is None or want.cut or want.status >= 400:
            return None
        raw = b"".join(s.body)
        try:
            body = protocol.dechunk(raw) if s.framing == "chunked" else raw
            docs = protocol.documents(self.a.api, body, bool(want.end))
            fault = protocol.fault(self.a.api, self.a.prompt, self.a.tokens, docs)
        except Exception as e:  # whatever a proxy sends that cannot be read is a finding
            fault = repr(e)
        return fault and ("invalid", fault)
