"""Machines and findings that several tests of the doctor want, and a server that answers."""

from __future__ import annotations

import json
from dataclasses import replace
from http.server import BaseHTTPRequestHandler

from vllama.machine.types import Accelerator, Platform, Vendor

GIB = 1024**3
H100 = Accelerator(vendor=Vendor.NVIDIA, index=0, name="H100", total_bytes=80 * GIB,
                   free_bytes=79 * GIB, driver="570.86")  # fmt: skip
CPU = Platform(os="linux", arch="x86_64", cores=2, ram_total_bytes=8 * GIB,
               ram_available_bytes=4 * GIB)  # fmt: skip
GPU = replace(CPU, accelerators=(H100,))


def statuses(found) -> list[str]:
    """Return the status of each finding."""
    return [str(finding.status) for finding in found]


class Ollama(BaseHTTPRequestHandler):
    """Answers with what the test puts into the server's `answer`: path → (status, JSON)."""

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("authorization")))
        status, body = self.server.answer.get(self.path, (404, {}))
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass
