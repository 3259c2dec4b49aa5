"""Keeps what was asked of models, body by body, each with a command that asks it again.

For finding errors only, and only if the user wants it (`OLLAMA_DEBUG_LOG_REQUESTS`): the files have
everything that users have written.
"""

from __future__ import annotations

import itertools
import logging
import re
import shlex
import time
from pathlib import Path

from vllama.base import executors, private
from vllama.base.errors import QueueFull
from vllama.net.http.request import Request

log = logging.getLogger(__name__)


class RequestLog:
    """A folder with the requests of one run."""

    def __init__(self, folder: Path) -> None:
        """`folder` is made with the first request."""
        self._folder = folder
        self._numbers = itertools.count(1)
        log.warning("requests to models are kept in %s, with all that users write", folder)

    async def keep(self, request: Request) -> None:
        """Read a request's body, write it down, and leave it to be read again."""
        body = await request.body()
        request.put_back(body)
        started = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        route = re.sub(r"\W", "_", request.path.strip("/"))
        name = f"{started}-{next(self._numbers):06d}_{route}"
        encoding = request.header(b"content-encoding")
        url = f"http://{request.header(b'host') or 'localhost'}{request.path}"
        try:
            await executors.storage.run(self._write, name, body, encoding, url)
        except (OSError, QueueFull) as error:
            log.warning("cannot keep a request in %s: %s", self._folder, error)

    def _write(self, name: str, body: bytes, encoding: str, url: str) -> None:
        private.make_folder(self._folder)
        path = self._folder / f"{name}_body.json"
        with private.create(path) as file:
            file.write(body)
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        words = ["curl", "--request", "POST", "--url", url]
        for header, value in headers.items():
            words += ["--header", f"{header}: {value}"] if value else []
        words += ["--data-binary", f"@{path}"]
        script = self._folder / f"{name}_request.sh"
        with private.create(script) as file:
            file.write(f"#!/bin/sh\n{shlex.join(words)}\n".encode())
        log.info("request kept in %s; to repeat it: sh %s", path, script)
