"""An OpenAI-like HTTP server for tests: no model, but every fault a real engine has.

A single file with nothing but the standard library: ``python tests/fake_engine/engine.py --port
8000``. Its answer is "tok0 tok1 …", 8 tokens long; directives in the last user message change
that: ``@tokens=50 @delay=0.01``. ``--help`` lists the faults; ``GET /__stats`` tells what it saw,
``GET /__exit`` ends it (with --exit-code) at once, ``GET /__core_dies`` makes it answer from then
on that its core is dead, and ``@core_dies`` in a message does so, too; ``@dies=N`` kills
it after N tokens, ``@dies_after=N`` N milliseconds after it has read that; ``@reads=S`` has it read
for S seconds where no tokens are wanted.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import email
import hashlib
import itertools
import json
import os
import re
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

DEFAULT_TOKENS = 8
DIMENSIONS = 8
CHILD_LIFE_S = 600
SLOTS = 2
KEPT = 100  # requests; to read an answer token by token takes one for each
WIDTH = 64  # of what is collected
METRICS = """\
# HELP fake:requests_total Requests.
# TYPE fake:requests_total counter
fake:requests_total{model="inside",path="a \\"b\\" c"} 3
# HELP fake:latency_seconds Latency.
# TYPE fake:latency_seconds histogram
fake:latency_seconds_bucket{le="0.5"} 1
fake:latency_seconds_bucket{le="+Inf"} 2
fake:latency_seconds_sum 1.5
fake:latency_seconds_count 2
# TYPE fake:requests_created gauge
fake:requests_created 1.7e9
# TYPE process_open_fds gauge
process_open_fds 7
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.25
# TYPE vllama_build_info counter
vllama_build_info 1
fake_untyped 5
{"fake.dots",kind="x"} 1
fake_words{"a.b"="x"} 1
"""


def parse(args: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--uds", metavar="PATH", help="listen there, not on the port")
    p.add_argument("--api-key")
    p.add_argument("--model", default="fake")
    p.add_argument("--owner", default="fake", help="`owned_by` of its model")
    p.add_argument("--metrics", choices=("good", "bad", "hang"), default="good")
    p.add_argument("--slots", metavar="DIR", help="save and restore slots there")
    p.add_argument("--context", type=int, default=0, metavar="N", help="tokens, of no use")
    life = p.add_argument_group("start and end")
    life.add_argument("--ready-after", type=float, default=0.0, metavar="S")
    life.add_argument("--bind-early", action="store_true", help="503 until ready")
    life.add_argument("--hang-health", action="store_true", help="never answer /health")
    life.add_argument("--exit-after", type=float, metavar="S", help="S after it was ready")
    life.add_argument("--exit-before-ready", action="store_true", help="when it would be ready")
    life.add_argument("--exit-code", type=int, default=None, metavar="N")
    life.add_argument("--fits", type=int, metavar="N", help="a larger context is too much memory")
    life.add_argument("--hold", type=int, default=0, metavar="MB", help="take so much memory")
    life.add_argument("--peak", type=int, default=0, metavar="MB", help="so much while it loads")
    life.add_argument("--rpc", action="append", default=[], metavar="HOST:PORT", help="end with it")
    life.add_argument("--hide-rpc", action="store_true", help="print nothing of those")
    life.add_argument("--no-wake", action="store_true", help="refuse to wake up")
    life.add_argument("--ignore-term", action="store_true", help="children too")
    talk = p.add_argument_group("output")
    talk.add_argument("--print", action="append", default=[], metavar="LINE", help="before ready")
    talk.add_argument("--chatter-interval", type=float, metavar="S", help="while loading")
    talk.add_argument("--chatter-cr", action="store_true", help="as a progress bar, by \\r")
    talk.add_argument("--talk", type=int, default=0, metavar="BYTES", help="before ready")
    kids = p.add_argument_group("children")
    kids.add_argument("--spawn-child", action="store_true")
    kids.add_argument("--spawn-setsid", action="store_true")
    kids.add_argument("--spawn-daemon", action="store_true", help="forked twice")
    kids.add_argument("--hold-output", action="store_true", help="a setsid child keeps stdout")
    kids.add_argument("--pids", metavar="FILE", help="append 'KIND PID' of itself and children")
    flow = p.add_argument_group("streams")
    flow.add_argument("--token-interval", type=float, default=0.0, metavar="S")
    flow.add_argument(
        "--say", type=json.loads, metavar="JSON", help="this text, three letters each"
    )
    flow.add_argument("--say-held", type=json.loads, metavar="JSON", help="this one for a format")
    flow.add_argument("--started-with", metavar="JSON")
    flow.add_argument("--no-usage", action="store_true")
    flow.add_argument("--stall-after", type=int, metavar="N", help="say no more after N tokens")
    flow.add_argument("--reset-after", type=int, metavar="N", help="reset the connection")
    flow.add_argument("--die-after", type=int, metavar="N", help="SIGKILL, or --exit-code")
    flow.add_argument("--die-held", action="store_true", help="when asked for a format")
    flow.add_argument("--die-reading", action="store_true", help="the answer, for its tokens")
    flow.add_argument("--error-after-200", action="store_true")
    flow.add_argument("--empty-200", action="store_true")
    flow.add_argument("--counts", choices=("messages", "tokenize"), help="by vLLM's route so named")
    flow.add_argument("--one-system", action="store_true", help="its template wants it first")
    flow.add_argument("--no-tool-parser", action="store_true", help="as a vLLM without one")
    flow.add_argument("--strict-messages", action="store_true", help="refuse earlier thinking")
    flow.add_argument("--embed-per-token", action="store_true")
    return p.parse_args(args)


# --- start and end --------------------------------------------------------------------------


def note_pid(options: argparse.Namespace, kind: str) -> None:
    """Append this process to the --pids file; one write, so that lines do not mix."""
    if options.pids:
        fd = os.open(options.pids, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, f"{kind} {os.getpid()}\n".encode())
        os.close(fd)


def spawn(options: argparse.Namespace, kind: str) -> None:
    """Fork a child that sleeps: plain, in a session of its own, or daemonised."""
    if os.fork():
        return
    if kind != "child":
        os.setsid()
    if kind == "daemon" and os.fork():
        os._exit(0)
    if kind != "output":
        quiet = os.open(os.devnull, os.O_RDWR)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
    note_pid(options, kind)
    time.sleep(CHILD_LIFE_S)
    os._exit(0)


def reach(options: argparse.Namespace, number: int, server: str) -> None:
    """Connect to a server of another machine, and end when the connection does."""
    host, _, port = server.rpartition(":")
    try:
        link = socket.create_connection((host, int(port)))
    except OSError:
        print(f"Failed to connect to {server}", flush=True)
        os._exit(1)
    if not options.hide_rpc:
        print(f"using device RPC{number} ({server}) (unknown id) - 8192 MiB free")
        print(f"load_tensors: RPC0[{server}] model buffer size = 10.00 MiB", flush=True)

    def watch() -> None:
        with contextlib.suppress(OSError):
            link.recv(1)
        print("Remote RPC server crashed", flush=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def load(options: argparse.Namespace) -> None:
    """Do what is done before ready: print, and take the time, and memory that is given back."""
    peak = bytes(range(256)) * (4096 * options.peak)
    for line in options.print:
        print(line, flush=True)
    for number, server in enumerate(options.rpc):
        reach(options, number, server)
    block = ("talk " * 20)[:99] + "\n"
    for _ in range(options.talk // len(block)):
        sys.stdout.write(block)
    sys.stdout.flush()
    deadline = time.monotonic() + options.ready_after
    for step in itertools.count():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            del peak
            return
        if options.chatter_interval:
            print(f"loading step {step}", end="\r" if options.chatter_cr else "\n", flush=True)
            left_s = min(left_s, options.chatter_interval)
        time.sleep(left_s)


def main() -> None:
    """Run the program."""
    options = parse()
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note_pid(options, "engine")
    for kind in ("child", "setsid", "daemon"):
        if getattr(options, f"spawn_{kind}"):
            spawn(options, kind)
    if options.hold_output:
        spawn(options, "output")
    server = None
    if options.bind_early:
        server = Server(options)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    load(options)
    if options.fits is not None and options.context > options.fits:
        print(f"failed to allocate {options.context} tokens", flush=True)
        os._exit(1)
    if options.exit_before_ready:
        sys.stdout.flush()
        os._exit(options.exit_code or 0)
    if server is None:
        server = Server(options)
        server.ready = True  # before anybody is answered
        threading.Thread(target=server.serve_forever, daemon=True).start()
    server.ready = True
    print(f"serving on {options.host}:{options.port}", flush=True)
    if options.exit_after is None:
        threading.Event().wait()
    time.sleep(options.exit_after)
    os._exit(options.exit_code or 0)


# --- serving --------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """The listening socket (with SO_REUSEADDR) and what is counted."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.ready = False
        self.lock = threading.Lock()
        self.counts = {"active": 0, "requests": 0, "tokens": 0, "gone": 0, "most": 0, "sleeps": 0}
        self.counts["scrapes"] = 0

        self.asleep = False
        self.table: list[dict[str, Any]] = [
            {"id": number, "is_processing": False} for number in range(SLOTS)
        ]
        self.texts = [""] * SLOTS
        self.core_died = threading.Event()
        self.loop = threading.Lock()  # whoever has it keeps all others waiting
        self.held = bytes(range(256)) * (4096 * options.hold)
        self.bodies: deque[Any] = deque(maxlen=KEPT)
        self.ids: deque[str | None] = deque(maxlen=KEPT)  # `x-request-id` of each of the bodies
        self.parents: deque[dict[str, str | None]] = deque(maxlen=KEPT)  # W3C's, of each of them
        self.address_family = socket.AF_UNIX if options.uds else socket.AF_INET
        super().__init__(options.uds or (options.host, options.port), Handler)

    def server_bind(self) -> None:
        """Bind without the look-up of the host's name that the base class does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def kill_core(self) -> None:
        """Announce the end of the core in the log, and fail all answers from now on."""
        print("core: no such color: mauve", flush=True)
        self.core_died.set()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that go away between requests."""

    def count(self, **changes: int) -> None:
        """Add to the counts."""
        with self.lock:
            for name, change in changes.items():
                self.counts[name] += change
            self.counts["most"] = max(self.counts["most"], self.counts["active"])


class ClientGone(Exception):
    """The client has closed the connection."""


class CoreDead(Exception):
    """All answers end with an error, and there are no others, although the process still runs."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server
    dies_after: int | None = None
    steered = ""  # what an answer begins with

    def setup(self) -> None:
        """Send small pieces at once, which a Unix socket does anyway."""
        self.disable_nagle_algorithm = self.server.address_family != socket.AF_UNIX
        super().setup()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer GET."""
        options, path = self.server.options, self.path.split("?")[0]
        if path == "/__stats":
            with self.server.lock:
                stats = {**self.server.counts, "bodies": list(self.server.bodies)}
                stats["ids"] = list(self.server.ids)
                stats["core_died"] = self.server.core_died.is_set()
                stats["parents"] = list(self.server.parents)
            self.answer(200, stats)
        elif path == "/__exit":
            os._exit(options.exit_code or 0)
        elif path == "/__core_dies":
            self.answer(200, {})  # before anybody ends this process for it
            self.server.kill_core()
        elif not self.server.ready:
            self.answer(503, {"error": {"message": "Loading model", "code": 503}})
        elif path == "/health":
            if options.hang_health:
                time.sleep(CHILD_LIFE_S)
            self.answer(200, {"status": "ok"})
        elif not self.authorized():
            self.answer(401, error("invalid api key", 401))
        elif path == "/metrics" and options.metrics != "hang":
            with self.server.loop:
                self.server.count(scrapes=1)
            self.answer(200, (METRICS if options.metrics == "good" else "# TYPE x\n{").encode())
        elif path == "/metrics":
            time.sleep(CHILD_LIFE_S)
        elif path == "/slots":
            self.answer(200, self.server.table)
        elif path == "/v1/models":
            card = {"id": options.model, "object": "model", "created": 0}
            card["owned_by"] = options.owner
            self.answer(200, {"object": "list", "data": [card]})
        else:
            self.answer(404, error(f"no such path {path}", 404))

    def do_POST(self) -> None:
        """Answer POST."""
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.split("?")[0]
        routes = {
            "/v1/chat/completions": self.complete,
            "/v1/completions": self.complete,
            "/v1/embeddings": self.embed,
            "/v1/rerank": self.rerank,
            "/extras/tokenize": self.tokenize,
            "/extras/detokenize": self.tokenize,
        }
        if self.server.options.counts == "messages":
            routes["/v1/messages/count_tokens"] = self.count_messages
        elif self.server.options.counts == "tokenize":
            routes["/tokenize"] = self.count_messages
        if not self.server.ready:
            self.answer(503, {"error": {"message": "Loading model", "code": 503}})
        elif not self.authorized():
            self.answer(401, error("invalid api key", 401))
        elif path in ("/sleep", "/wake_up"):
            self.doze(asleep=path == "/sleep")
        elif self.server.asleep:
            self.answer(500, error("asleep", 500))
        elif path.startswith("/slots/"):
            self.act(int(path.removeprefix("/slots/")), json.loads(raw)["filename"])
        elif self.server.core_died.is_set():
            self.answer(500, error("the core is dead, see above", 500))
        elif path == "/v1/audio/transcriptions":
            self.transcribe(raw)
        elif path in ("/v1/audio/speech", "/v1/images/generations", "/v1/images/edits"):
            self.make(path, raw)
        elif path not in routes:
            self.answer(404, error(f"no such path {path}", 404))
        else:
            try:
                body = json.loads(raw)
            except ValueError as reason:
                self.answer(400, error(f"bad JSON: {reason}", 400))
                return
            with self.server.lock:
                self.server.bodies.append(body)
                self.server.ids.append(self.headers.get("x-request-id"))
                names = ("traceparent", "tracestate")
                self.server.parents.append({name: self.headers.get(name) for name in names})
            self.server.count(requests=1, active=1)
            try:
                routes[path](path, body)
            except (ClientGone, BrokenPipeError, ConnectionResetError):
                self.server.count(gone=1)
                self.close_connection = True
            except CoreDead:
                self.answer(500, error("the core is dead, see above", 500))
            finally:
                self.server.count(active=-1)

    def act(self, number: int, name: str) -> None:
        """Save a slot or restore it; a file that is no text of a slot ends the engine."""
        file, slot = Path(self.server.options.slots) / name, self.server.table[number]
        if "action=save" in self.path:
            file.write_text(json.dumps([slot["n_prompt_tokens"], self.server.texts[number]]))
        else:
            try:
                slot["n_prompt_tokens"], self.server.texts[number] = json.loads(file.read_text())
            except ValueError:
                os.kill(os.getpid(), signal.SIGABRT)
        self.answer(200, {"id_slot": number, "filename": name})

    def take_slot(self, body: dict[str, Any], prompt: str, text: str, tokens: int) -> int:
        """Put a conversation into a slot; return how many letters of it were there."""
        table, texts = self.server.table, self.server.texts
        number = body.get("id_slot", -1)
        with self.server.lock:
            if number < 0:
                fits = [count_common(each, prompt) for each in texts]
                best = max(range(SLOTS), key=fits.__getitem__)
                oldest = min(range(SLOTS), key=lambda n: table[n].get("id_task", -1))
                number = best if fits[best] else oldest
            cached = count_common(texts[number], prompt)
            texts[number] = prompt + text
            table[number] |= {
                "id_task": self.server.counts["requests"],
                "n_prompt_tokens": tokens - 1,
                "params": {"dry_allowed_length": body.get("dry_allowed_length", 2)},
            }
        return cached

    def doze(self, *, asleep: bool) -> None:
        """Fall asleep or wake up."""
        if self.server.options.no_wake and not asleep:
            self.answer(500, error("cannot wake", 500))
            return
        self.server.asleep = asleep
        self.server.count(sleeps=int(asleep))
        self.answer(200, {})

    def authorized(self) -> bool:
        """Check the bearer key, if one is wanted."""
        key = self.server.options.api_key
        return key is None or self.headers.get("Authorization") == f"Bearer {key}"

    def answer(self, status: int, value: Any) -> None:
        """Send a answer, as JSON unless it is bytes."""
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    # --- completions ---------------------------------------------------------------------

    def complete(self, path: str, body: dict[str, Any]) -> None:
        """Answer a chat or text completion, as a stream or whole."""
        options = self.server.options
        if options.empty_200:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        chat = path == "/v1/chat/completions"
        if options.no_tool_parser and body.get("tools") and body.get("tool_choice") != "none":
            flags = "--enable-auto-tool-choice and --tool-call-parser"
            self.answer(400, error(f'"auto" tool choice requires {flags} to be set', 400))
            return
        roles = [item["role"] for item in body.get("messages", ())]
        if options.one_system and "system" in roles[1:]:
            self.answer(400, error("System message must be at the beginning.", 400))
            return
        if options.strict_messages and "reasoning_content" in json.dumps(body.get("messages")):
            self.answer(400, error("property 'reasoning_content' is unsupported", 400))
            return
        prompt = prompt_text(body, chat)
        if "@core_dies" in last_user(body, chat):
            self.server.kill_core()
        dies = re.search(r"@dies=([0-9]+)", last_user(body, chat))
        self.dies_after = int(dies[1]) if dies else None
        n_prompt = len(prompt.split())
        self.steered = describe_steering(body.get("vllm_xargs") or {})
        if blocks := re.search(r"@blocks=([0-9]+)", last_user(body, chat)):
            with self.server.loop:
                print("its loop is blocked", flush=True)
                time.sleep(int(blocks[1]))
        if takes := re.search(r"@takes=([0-9]+)", last_user(body, chat)):
            self.server.held += b"x" * (int(takes[1]) << 20)
        if self.dies_after == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if late := re.search(r"@dies_after=([0-9]+)", last_user(body, chat)):
            threading.Timer(int(late[1]) / 1000, os.kill, (os.getpid(), signal.SIGKILL)).start()
        found = dict(re.findall(r"@(tokens|delay|reads)=([0-9.]+)", last_user(body, chat)))
        self.said = said = self.choose_text(body)
        total = int(found.get("tokens", -(-len(said) // 3) or DEFAULT_TOKENS))
        delay_s = float(found.get("delay", options.token_interval))
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        reason = "length" if limit is not None and limit <= total else "stop"
        tokens = min(total, limit) if limit is not None else total
        if limit == 0:
            time.sleep(float(found.get("reads", 0)))
        usage: dict[str, Any] = {
            "prompt_tokens": n_prompt,
            "completion_tokens": tokens,
            "total_tokens": n_prompt + tokens,
        }
        if options.slots:
            text = "".join(f"tok{n} " for n in range(tokens))
            cached = self.take_slot(body, prompt, text, n_prompt + tokens)
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        if body.get("stream"):
            wanted = (body.get("stream_options") or {}).get("include_usage")
            last = usage if wanted and not options.no_usage else None
            self.stream(chat, tokens, delay_s, reason, last)
            return
        for number in range(tokens):
            time.sleep(delay_s)
            self.fault(number)
        self.server.count(tokens=tokens)
        text = said or "".join(f"tok{n} " for n in range(tokens))
        text = self.steered + text
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        kind = "chat.completion" if chat else "text_completion"
        answer = self.head(chat, kind) | {"choices": [choice], "usage": usage}
        if layers := (body.get("vllm_xargs") or {}).get("output_residual_stream"):
            answer |= collect(layers, prompt, text, choice)
        self.answer(200, answer)

    def choose_text(self, body: dict[str, Any]) -> str:
        """Return what it was told to say, up to a stop sequence; "": tokens with numbers."""
        options = self.server.options
        if options.say_held is None:
            return options.say or ""
        is_held = any(body.get(name) for name in ("response_format", "json_schema", "regex"))
        if is_held and options.die_held:
            os.kill(os.getpid(), signal.SIGKILL)
        text = options.say_held if is_held else options.say
        ends = [at for stop in body.get("stop") or () if (at := text.find(stop)) >= 0]
        return text[: min(ends, default=len(text))]

    def head(self, chat: bool, kind: str) -> dict[str, Any]:
        """Return the fields that every chunk and answer begins with."""
        name = ("chatcmpl-" if chat else "cmpl-") + "fake"
        model = self.server.options.model
        return {"id": name, "object": kind, "created": 1_700_000_000, "model": model}

    def stream(
        self,
        chat: bool,
        tokens: int,
        delay_s: float,
        reason: str,
        usage: dict[str, int] | None,
    ) -> None:
        """Send server-sent events."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.server.options.error_after_200:
            self.event(error("the engine failed after its 200", 500))
        else:
            head = self.head(chat, "chat.completion.chunk" if chat else "text_completion")
            for choices in self.until_dead(self.choices(chat, tokens, delay_s, reason)):
                self.event(head | {"choices": choices})
            if usage is not None:
                self.event(head | {"choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def until_dead(self, choices: Iterator[list[dict[str, Any]]]) -> Iterator[list[dict[str, Any]]]:
        """Yield from `choices`; what is not a choice any more is the error of a dead core."""
        try:
            yield from choices
        except CoreDead:
            self.event(error("the core is dead, see above", 500))

    def choices(
        self, chat: bool, tokens: int, delay_s: float, reason: str
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the `choices` of every chunk; faults happen on the way."""

        def choice(delta: dict[str, str], finish: str | None = None) -> list[dict[str, Any]]:
            part = {"delta": delta} if chat else {"text": delta.get("content", "")}
            return [{"index": 0, **part, "logprobs": None, "finish_reason": finish}]

        if chat:
            yield choice({"role": "assistant", "content": ""})
        if self.steered:
            yield choice({"content": self.steered})
        for number in range(tokens):
            if delay_s:
                time.sleep(delay_s)
            self.fault(number)
            said = self.said or None
            text = f"tok{number} " if said is None else said[3 * number : 3 * number + 3]
            yield choice({"content": text})
            self.server.count(tokens=1)
        self.fault(tokens)
        yield choice({}, reason)

    def event(self, value: Any) -> None:
        """Send one event."""
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        """Send one chunk in one write; raises `ClientGone`."""
        self.check_client()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def check_client(self) -> None:
        """Raise `ClientGone` if the client has closed its side."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        if poll.poll(0) and not self.connection.recv(1, socket.MSG_PEEK):
            raise ClientGone

    def fault(self, sent: int) -> None:
        """Stall, reset or die, if it is time to after `sent` tokens."""
        options = self.server.options
        with self.server.loop:
            pass
        if options.stall_after == sent:
            while True:
                self.check_client()
                time.sleep(0.02)
        if options.reset_after == sent:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
            raise ConnectionResetError
        if self.server.core_died.is_set():
            raise CoreDead
        if sent == self.dies_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if options.die_after == sent:
            if options.exit_code is not None:
                os._exit(options.exit_code)
            os.kill(os.getpid(), signal.SIGKILL)

    # --- the rest ------------------------------------------------------------------------

    def embed(self, path: str, body: dict[str, Any]) -> None:
        """Answer with vectors that depend on the text only."""
        given = body.get("input", "")
        single = isinstance(given, str) or (given and isinstance(given[0], int))
        texts = [
            text if isinstance(text, str) else str(text) for text in ([given] if single else given)
        ]
        data: list[dict[str, Any]] = []
        for index, text in enumerate(texts):
            value: Any = vector(text)
            if self.server.options.embed_per_token:
                value = [vector(word) for word in text.split() or [""]]
            elif body.get("encoding_format") == "base64":
                value = base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *value)).decode()
            data.append({"object": "embedding", "index": index, "embedding": value})
        n_tokens = sum(len(text.split()) for text in texts)
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        model = self.server.options.model
        self.answer(200, {"object": "list", "data": data, "model": model, "usage": usage})

    def rerank(self, path: str, body: dict[str, Any]) -> None:
        """Answer with the documents that share most words with the query first."""
        wanted = set(body["query"].split())
        scores = [len(wanted & set(document.split())) for document in body["documents"]]
        order = sorted(range(len(scores)), key=lambda n: (-scores[n], n))
        results = [
            {
                "index": number,
                "relevance_score": scores[number] / len(wanted),
                "document": {"text": body["documents"][number]},
            }
            for number in order[: body.get("top_n")]
        ]
        self.answer(200, {"id": "rerank-1", "model": body["model"], "results": results})

    def make(self, path: str, raw: bytes) -> None:
        """Answer with what was asked for, as bytes that stand for sound or in place of images."""
        if path == "/v1/audio/speech":
            self.send_response(200)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)
        else:
            asked = base64.b64encode(raw).decode()
            self.answer(200, {"created": 0, "data": [{"b64_json": asked}]})

    def transcribe(self, raw: bytes) -> None:
        """Answer with what was sent, as a transcript: fields as text, the file as its size."""
        head = f"content-type: {self.headers['Content-Type']}\r\n\r\n".encode()
        form = email.message_from_bytes(head + raw)
        words = {}
        for part in form.get_payload():
            data = part.get_payload(decode=True)
            name = part.get_param("name", header="content-disposition")
            words[name] = f"{len(data)} bytes" if part.get_filename() else data.decode()
        if words.get("response_format") == "text":
            data = json.dumps(words).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        else:
            self.answer(200, {"text": json.dumps(words)})

    def tokenize(self, path: str, body: dict[str, Any]) -> None:
        """Answer both /extras paths; a token is a code point, or a byte above all of them."""
        if self.server.options.die_reading and "tok0 " in body.get("input", ""):
            os.kill(os.getpid(), signal.SIGKILL)
        if path.endswith("/detokenize"):
            data = b"".join(map(write_token, body.get("tokens", [])))
            self.answer(200, {"text": data.decode(errors="replace")})
        else:
            self.answer(200, {"tokens": [ord(char) for char in body.get("input", "")]})

    def count_messages(self, path: str, body: dict[str, Any]) -> None:
        """Answer a thousand tokens for each message."""
        count = 1000 * len(body["messages"])
        self.answer(200, {"input_tokens": count} if "count" in path else {"count": count})


def count_common(one: str, other: str) -> int:
    """Return how many letters two texts have in common from their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


BYTE = 0x110000


def read_tokens(text: str) -> list[int]:
    """Return tokens of which characters beyond ASCII take several, as in many vocabularies."""
    return [byte if byte < 128 else BYTE + byte for byte in text.encode()]


def write_token(token: int) -> bytes:
    """Return what a token stands for."""
    return bytes([token - BYTE]) if token >= BYTE else chr(token).encode(errors="replace")


def describe_steering(told: dict[str, Any]) -> str:
    """Return the vectors of vllm-lens that a request has, as text: all that they do here."""
    words = ""
    for each in json.loads(told.get("apply_steering_vectors", "[]")):
        data = base64.b64decode(each["activations"]["data"])
        rows, width = each["activations"]["shape"]
        first = struct.unpack(f"<{rows * width}f", data)[::width]
        words += f"{each['scale']:g}*{first}@{each['layer_indices']} "
    return words


def collect(layers: list[int], prompt: str, text: str, choice: dict[str, Any]) -> dict[str, Any]:
    """Return what vllm-lens adds: a number says its layer, its token and its place."""
    asked, choice["token_ids"] = read_tokens(prompt), read_tokens(text)
    count = len(asked) + len(choice["token_ids"]) - 1
    numbers = [
        1000 * layer + token + place / DIMENSIONS
        for layer in sorted(layers)
        for token in range(count)
        for place in range(WIDTH)
    ]
    tensor = {
        "data": base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode(),
        "dtype": "float32",
        "original_dtype": "torch.float32",
        "shape": [len(layers), count, WIDTH],
    }
    return {"activations": {"residual_stream": tensor}, "prompt_token_ids": asked}


def error(message: str, code: int) -> dict[str, Any]:
    """Return an error as OpenAI's API puts it."""
    return {"error": {"message": message, "type": "fake_error", "param": None, "code": code}}


def content_text(content: Any) -> str:
    """Return the text of a message's content, a string or parts."""
    if isinstance(content, list):
        return " ".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content or ""


def prompt_text(body: dict[str, Any], chat: bool) -> str:
    """Return all the text that was sent."""
    if chat:
        return " ".join(
            content_text(message.get("content")) for message in body.get("messages", [])
        )
    prompt = body.get("prompt", "")
    return prompt if isinstance(prompt, str) else " ".join(map(str, prompt))


def last_user(body: dict[str, Any], chat: bool) -> str:
    """Return the text that directives are looked for in."""
    if not chat:
        return prompt_text(body, chat)
    users = [m for m in body.get("messages", []) if m.get("role") == "user"]
    return content_text(users[-1].get("content")) if users else ""


def vector(text: str) -> list[float]:
    """Return a unit vector made of the text's hash."""
    digest = hashlib.sha256(text.encode()).digest()
    raw = [byte / 127.5 - 1.0 for byte in digest[:DIMENSIONS]]
    length = sum(value * value for value in raw) ** 0.5 or 1.0
    return [value / length for value in raw]


if __name__ == "__main__":
    main()
