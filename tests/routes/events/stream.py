"""A client of `/api/events` that keeps what it is told, as a page would."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable
from typing import Any

from tests.server_process import LIMIT_S, Server


class Stream:
    """A stream of events; `models`, `requests` and so on are what it has told so far."""

    def __init__(
        self, server: Server, query: str = "", headers: dict[str, str] | None = None
    ) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
        self._connection.request("GET", f"/api/events{query}", headers=headers or {})
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()
        assert self._answer.headers["content-type"] == "text/event-stream"
        self.ids: list[int] = []
        self.names: list[str] = []
        self.models: dict[str, dict[str, Any]] = {}
        self.requests: dict[str, dict[str, Any]] = {}
        self.ended: list[dict[str, Any]] = []
        self.pulls: dict[str, dict[str, Any]] = {}
        self.samples: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []
        name, self.snapshot = self.read()
        assert name == "snapshot"

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave, as a closed tab does."""
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._answer.close()
        self._connection.close()

    def read(self) -> tuple[str, dict[str, Any]]:
        """Read the next event and take it over; ("", {}) at the end of the stream."""
        fields: dict[str, str] = {}
        while line := self._answer.readline().decode():
            if line == "\n" and fields:
                break
            if not line.startswith((":", "\n")):
                name, _, value = line.rstrip("\n").partition(": ")
                fields[name] = value
        if not fields:
            return "", {}
        data: dict[str, Any] = json.loads(fields["data"])
        self.ids.append(int(fields["id"]))
        self.names.append(fields["event"])
        self._take(fields["event"], data)
        return fields["event"], data

    def until(self, happened: Callable[[], object]) -> None:
        """Read until something has been told."""
        while not happened():
            name, _ = self.read()
            assert name, "the stream has ended"

    def state(self, name: str) -> str:
        """Return the state of a model as told last, "" for none."""
        return str(self.models.get(f"{name}:latest", {}).get("state", ""))

    def kinds(self, name: str) -> list[str]:
        """Return what has happened to a model."""
        return [mark["kind"] for mark in self.marks if mark["model"] == f"{name}:latest"]

    def _take(self, event: str, data: dict[str, Any]) -> None:
        self.models |= {row["name"]: row for row in data.get("models", ())}
        if event != "sample":
            self.requests |= {row["id"]: row for row in data.get("requests", ())}
        for key in data.get("gone", ()):
            del (self.models if event == "models" else self.requests)[key]
        self.ended += data.get("ended") or ()
        self.pulls |= {row["name"]: row for row in data.get("pulls", ())}
        self.samples += data.get("samples", ()) or ([data] if event == "sample" else [])
        self.marks += data.get("marks", ()) or ([data] if event == "mark" else [])
