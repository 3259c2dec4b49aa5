"""A server whose config file changes while it runs, and a site that notes who asks it."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.routes.test_ollama_chat import ENDLESS, until, user
from tests.server.test_reload import Configured


class Site(ThreadingHTTPServer):
    """A hub, a registry or an upstream that has nothing, and notes who asks."""

    daemon_threads = True

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []  # path, key
        super().__init__(("127.0.0.1", 0), Asked)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Asked(BaseHTTPRequestHandler):
    """Answers everything with an empty list and 404."""

    server: Site

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("authorization", "")))
        self.send_response(404)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Reloaded(Configured):
    """A server whose command line and variables hide nothing that the file says."""

    base: str

    def __init__(self, home: Path) -> None:
        self.base = f'port = 0\ndata_dir = "{home}/data"\nfolders = ["{home}/models"]\n'
        self.base += 'cache_disk = "10MB"\n'
        variables = {"VLLAMA_FOLDERS": "", "VLLAMA_DATA_DIR": "", "HF_HOME": ""}
        super().__init__(home, self.base, **variables, KEY_RIGHT="sesame", KEY_WRONG="wrong")

    @property
    def command(self) -> list[str]:
        return [self.python, "-m", "vllama", "serve"]

    def use(self, text: str) -> str:
        """Have the server read `text` after the base; return what it has told of that."""
        before = len(self.output)
        # tables come last in a file, and of a key that both have the text's holds
        keys = re.findall(r"^(\w+) =", text.partition("[")[0], re.MULTILINE)
        base = "".join(
            line for line in self.base.splitlines(True) if line.partition(" ")[0] not in keys
        )
        self.reload(base + text, "(settings reloaded|are unchanged): [^\n]*\n")
        told = self.output[before:]
        assert "are unchanged" not in told
        return told

    def show(self, key: str) -> dict[str, Any]:
        return next(row for row in self.get("/api/config")["settings"] if row["key"] == key)

    # -- what is looked at --

    def chat(self, model: str = "plain", **more: Any) -> dict[str, Any]:
        status, answer = self.post("/api/chat", {"model": model, **user(), "stream": False, **more})
        return {"status": status, **answer}

    def status(self, method: str, path: str, body: Any = None, **headers: str) -> int:
        return self.request(method, path, body, headers)[0]

    def names(self) -> set[str]:
        return {row["name"].removesuffix(":latest") for row in self.get("/api/tags")["models"]}

    def rows(self) -> dict[str, Any]:
        found = self.get("/api/ps")["models"]
        return {row["name"].removesuffix(":latest"): row for row in found}

    def unload(self) -> None:
        for name in self.rows():
            self.post("/api/generate", {"model": name, "keep_alive": 0})
        until(lambda: not self.rows())

    def load(self, *names: str, **more: Any) -> None:
        for name in names:
            self.post("/api/generate", {"model": name, **more})

    def started(self, model: str = "plain") -> dict[str, Any]:
        """Return what the engine of a model was started with."""
        self.load(model)
        until(lambda: all(row["state"] == "ready" for row in self.rows().values()))
        arguments = self.engine(model).cmdline()
        return json.loads(arguments[arguments.index("--started-with") + 1])

    def evict_by(self, name: str) -> set[str]:
        self.load(name)
        return set(self.rows()) - {name}

    def queue_one(self) -> int:
        """Return the status of a request that comes while the only slot is taken."""
        busy = {"model": "slow", "messages": [{"role": "user", "content": f"@tokens={ENDLESS}"}]}
        with ThreadPoolExecutor(1) as pool:
            with self.open("/api/chat", busy) as answer:
                answer.readline()
                second = pool.submit(self.chat, "slow")
                until(lambda: second.done() or self.rows()["slow"]["queued"])
            return second.result()["status"]

    def pull(self, name: str) -> dict[str, Any]:
        status, answer = self.post("/api/pull", {"model": name, "stream": False})
        return {"status": status, **answer}
