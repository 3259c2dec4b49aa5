"""A chat server that repeats the last message word by word, and knows few fields.

It has the manners of some real ones: 422 for a field that it does not know, no `[DONE]`, the usage
beside the last choice, a reply's model under a name of its own.
"""

import argparse
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FIELDS = {"model", "messages", "stream", "most"}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    def log_message(self, format, *args):
        """Say nothing."""

    def answer(self, status, value):
        """Send JSON."""
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        """Answer `/health` only."""
        self.answer(200 if self.path == "/health" else 404, {})

    def do_POST(self):
        """Repeat what was said."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if unknown := body.keys() - FIELDS:
            self.answer(422, {"detail": f"unexpected fields: {sorted(unknown)}"})
            return
        if self.path != "/v1/chat/completions" or body["model"] != "echo-1":
            self.answer(404, {"detail": f"no {body['model']} at {self.path}"})
            return
        said = body["messages"][-1]["content"].split(" ")
        words = said[: body.get("most")]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for number, word in enumerate(words):
            self.event({"content": word if number == 0 else f" {word}"})
        usage = {"prompt_tokens": len(said), "completion_tokens": len(words)}
        self.event({}, finish_reason="stop" if words == said else "length", usage=usage)

    def event(self, delta, finish_reason=None, **more):
        """Send one event."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        value = {"id": "e", "model": "echo-1@main", "created": 1, "choices": [choice], **more}
        self.wfile.write(b"data: %b\n\n" % json.dumps(value).encode())
        self.wfile.flush()


def main():
    """Run the program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--voice", default="plain")
    options = parser.parse_args()
    if options.voice not in ("loud", "plain"):
        sys.exit(f"no such voice: {options.voice}")
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


main()
