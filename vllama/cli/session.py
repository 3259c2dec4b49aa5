"""What a conversation knows and asks: the requests of `vllama run`. No keyboard here."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from vllama.cli.answer import AnswerPrinter, Waiting, show_numbers
from vllama.cli.client import Client, Reply
from vllama.cli.progress import PullDisplay, event_of
from vllama.errors import ModelNotFound, VllamaError


@dataclass(slots=True, kw_only=True)
class Session:
    """Settings and history of one conversation; the user changes them as it goes."""

    client: Client
    model: str
    keep_alive: object = None
    format: object = None
    think: bool | str | None = None
    hide_thinking: bool = False
    verbose: bool = False
    wrap: bool = True
    system: str = ""
    options: dict[str, object] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)

    def describe(self, model: str | None = None, *, verbose: bool = False) -> Reply:
        """Ask what the model is; a model that is not here is pulled first."""
        name = model or self.model
        request: dict[str, object] = {"model": name, "verbose": verbose}
        try:
            return self.client.post("/api/show", request)
        except ModelNotFound:
            self._pull(name)
        return self.client.post("/api/show", request)

    def _pull(self, model: str) -> None:
        with PullDisplay() as display:
            for line in self.client.stream("/api/pull", {"model": model}):
                display(event_of(line))

    def load(self) -> None:
        """Load the model, and wait until it is ready."""
        waiting = Waiting(f"loading {self.model}")
        try:
            self.client.post("/api/generate", self._common())
        finally:
            waiting.over()

    def generate(self, prompt: str) -> None:
        """Answer one prompt on stdout."""
        body = self._common() | {"prompt": prompt}
        if self.system:
            body["system"] = self.system
        self._answer("/api/generate", body)

    def chat(self, text: str) -> None:
        """Answer the next message on stdout; both become part of the history.

        A message whose answer failed is taken back; of an answer that was stopped by Ctrl-C the
        part that came stays. Raises KeyboardInterrupt then.
        """
        self.messages.append({"role": "user", "content": text})
        system = [{"role": "system", "content": self.system}] if self.system else []
        body = self._common() | {"messages": [*system, *self.messages]}
        answer: list[str] = []
        try:
            self._answer("/api/chat", body, answer)
        except VllamaError:
            self.messages.pop()
            raise
        except KeyboardInterrupt:
            if answer:
                self._keep(answer)
            else:
                self.messages.pop()
            raise
        self._keep(answer)

    def _keep(self, answer: list[str]) -> None:
        self.messages.append({"role": "assistant", "content": "".join(answer)})

    def embed(self, text: str, *, truncate: bool | None, dimensions: int | None) -> list[float]:
        """Return the vector of a text."""
        body: dict[str, object] = {"model": self.model, "input": text, "options": self.options}
        for key, value in (
            ("truncate", truncate),
            ("dimensions", dimensions),
            ("keep_alive", self.keep_alive),
        ):
            if value is not None:
                body[key] = value
        vectors = self.client.post("/api/embed", body).get("embeddings") or []
        if not vectors:
            raise VllamaError(
                f"the model '{self.model}' gave no vector",
                hint="give a text as an argument or on stdin",
            )
        return list(vectors[0])

    def _common(self) -> dict[str, object]:
        body: dict[str, object] = {"model": self.model, "options": dict(self.options)}
        for key, value in (
            ("keep_alive", self.keep_alive),
            ("format", self.format),
            ("think", self.think),
        ):
            if value is not None:
                body[key] = value
        return body

    def _answer(self, path: str, body: dict[str, object], kept: list[str] | None = None) -> None:
        """Print an answer as it streams in; `kept` collects its text."""
        printer = AnswerPrinter(wrap=self.wrap, hide_thinking=self.hide_thinking)
        waiting = Waiting("")
        last: Reply = {}
        with _closing(self.client.stream(path, body)) as lines:
            try:
                for line in lines:
                    waiting.over()
                    message = line.get("message") or {}
                    text = str(message.get("content") or line.get("response") or "")
                    if text and kept is not None:
                        kept.append(text)  # before it is shown: Ctrl-C may come right after
                    printer.thinking(str(message.get("thinking") or line.get("thinking") or ""))
                    printer.content(text)
                    if line.get("done"):
                        last = line
            finally:
                waiting.over()
                printer.end()
        if not last:
            raise VllamaError(
                "the answer ended before it was complete", hint="look into the server's log"
            )
        if self.verbose:
            show_numbers(last)


@contextlib.contextmanager
def _closing(lines: Any) -> Generator[Any, None, None]:
    """Close the stream however it ends: that is what makes the server stop."""
    try:
        yield lines
    finally:
        lines.close()
