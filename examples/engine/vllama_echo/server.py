"""The engine: a chat server that repeats the last message word by word.

It is as particular as real servers are: it answers 422 to a field that it does not know, ends its
streams without `[DONE]`, sends the usage with the last choice, and calls its model by another name.
"""

import argparse
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FIELDS = {"model", "messages", "stream", "most"}
KEY = os.environ.get("ECHO_API_KEY", "")


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def send_json(self, status: int, value: object) -> None:
        """Send a whole answer."""
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def has_key(self) -> bool:
        """Tell whether the client knows the key."""
        return not KEY or self.headers["Authorization"] == f"Bearer {KEY}"

    def do_GET(self) -> None:
        """Say that the server is ready, and to whoever has the key which model it serves."""
        if self.path == "/health":
            self.send_json(200, {})
        elif self.path == "/v1/models" and self.has_key():
            self.send_json(200, {"data": [{"id": "echo-1"}]})
        else:
            self.send_json(404, {})

    def do_POST(self) -> None:
        """Repeat what was said."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.has_key():
            self.send_json(401, {"detail": "wrong key"})
        elif unknown := body.keys() - FIELDS:
            self.send_json(422, {"detail": f"unexpected fields: {sorted(unknown)}"})
        elif self.path != "/v1/chat/completions" or body["model"] != "echo-1":
            self.send_json(404, {"detail": f"no {body['model']} at {self.path}"})
        else:
            self.stream_words(body["messages"][-1]["content"].split(" "), body.get("most"))

    def stream_words(self, said: list[str], limit: int | None) -> None:
        """Stream the first `limit` words, one event each."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        words = said[:limit]
        for number, word in enumerate(words):
            self.send_event({"content": word if number == 0 else f" {word}"})
        usage = {"prompt_tokens": len(said), "completion_tokens": len(words)}
        self.send_event({}, finish_reason="stop" if words == said else "length", usage=usage)

    def send_event(
        self, delta: object, finish_reason: str | None = None, usage: object = None
    ) -> None:
        """Send one event."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        value = {"id": "e", "model": "echo-1@main", "created": 1, "choices": [choice]}
        if usage:
            value["usage"] = usage
        self.wfile.write(b"data: %b\n\n" % json.dumps(value).encode())
        self.wfile.flush()


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--voice", default="plain")
    options = parser.parse_args()
    if options.voice not in ("loud", "plain"):
        sys.exit(f"no such voice: {options.voice}")
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
