"""The state and the requests of a conversation of `vllama run`; knows no keyboard."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from vllama.base.errors import ModelNotFound, VllamaError
from vllama.cli.chat.answer_view import AnswerPrinter, Waiting, show_numbers
from vllama.cli.chat.images import find_images, take_images
from vllama.cli.client import Client, Reply
from vllama.cli.model_view import describe_load, has_prefix
from vllama.cli.output import say_aside, show_warning
from vllama.cli.progress import open_display, read_event
from vllama.models.names.ref import ModelRef

STILL_READING = "the engine may still be processing the canceled message"


@dataclass(slots=True, kw_only=True)
class Session:
    """Settings and history of one conversation; the user changes them as it goes.

    `sees`: the model takes images, so paths of images are looked for in messages. `thinks`: it can
    think, or the server does not say. `earlier`: the model's own messages, which the server puts
    before those of this conversation.
    """

    client: Client
    model: str
    keep_alive: object = None
    format: object = None
    think: bool | str | None = None
    hide_thinking: bool = False
    verbose: bool = False
    wrap: bool = True
    sees: bool = False
    thinks: bool = True
    earlier: list[dict[str, Any]] = field(default_factory=list)
    system: str = ""
    options: dict[str, object] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    _cancelled_unread: bool = False
    """The last message was canceled before its answer began."""

    def describe(self) -> Reply:
        """Ask what the model is, with the system message of this conversation."""
        shown = self.client.post("/api/show", {"model": self.model, "system": self.system})
        capabilities = shown.get("capabilities") or []
        self.sees = "vision" in capabilities
        self.thinks = not capabilities or "thinking" in capabilities
        self.earlier = shown.get("messages") or []
        return shown

    def describe_or_pull(self) -> Reply:
        """Ask what the model is; pull it first if it is missing."""
        try:
            return self.describe()
        except ModelNotFound:
            pull_through(self.client, self.model)
        return self.describe()

    def load(self) -> None:
        """Load the model, and wait until it is ready."""
        waiting = self._wait(f"loading {self.model}")
        try:
            self.client.post("/api/generate", self._common())
        finally:
            waiting.over()

    def generate(self, prompt: str) -> None:
        """Answer one prompt on stdout. Images that it names go with it."""
        text, images = self._with_images(prompt)
        body = self._common() | {"prompt": text}
        if images:
            body["images"] = images
        if self.system:
            body["system"] = self.system
        self._answer("/api/generate", body)

    def chat(self, text: str) -> None:
        """Answer the next message on stdout; both become part of the history.

        Images that it names go with it. A message whose answer failed is removed again. After
        Ctrl-C the part of the answer that has come stays; raises KeyboardInterrupt then.
        """
        content, images = self._with_images(text)
        message: dict[str, Any] = {"role": "user", "content": content}
        if images:
            message["images"] = images
        self.messages.append(message)
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
                self._cancelled_unread = True
            raise
        self._keep(answer)

    def _with_images(self, text: str) -> tuple[str, list[str]]:
        if not self.sees:
            for path in find_images(text):
                show_warning(f"'{self.model}' does not accept images; sending '{path}' as text")
            return text, []
        text, images = take_images(text)
        for path, _ in images:
            say_aside(f"Added image '{path}'")
        return text, [content for _, content in images]

    def _keep(self, answer: list[str]) -> None:
        self.messages.append({"role": "assistant", "content": "".join(answer)})

    def embed(self, text: str, *, truncate: bool | None, dimensions: int | None) -> list[float]:
        """Return the vector of a text."""
        more = _drop_empty(truncate=truncate, dimensions=dimensions, keep_alive=self.keep_alive)
        body = {"model": self.model, "input": text, "options": self.options, **more}
        vectors = self.client.post("/api/embed", body).get("embeddings") or []
        if not vectors:
            raise VllamaError(f"model '{self.model}' returned no embedding")
        return list(vectors[0])

    def _common(self) -> dict[str, object]:
        more = _drop_empty(keep_alive=self.keep_alive, format=self.format, think=self.think)
        return {"model": self.model, "options": dict(self.options), **more}

    def _wait(self, text: str, later: str = "") -> Waiting:
        """Show `text` until an answer begins; before, how far the load is that it waits for.

        `later` is shown once the model is loaded.
        """
        name = ModelRef.parse(self.model).display.removesuffix("latest")

        def look() -> str | None:
            for row in self.client.get("/api/ps").get("models") or ():
                if has_prefix(row, name):
                    is_loading, told = row.get("state") == "loading", describe_load(row)
                    return f"loading {self.model}" + (told and f": {told}") if is_loading else None
            return ""

        return Waiting(text, look, later=later)

    def _answer(self, path: str, body: dict[str, object], kept: list[str] | None = None) -> None:
        """Print an answer as it streams in; `kept` collects its text."""
        printer = AnswerPrinter(wrap=self.wrap, hide_thinking=self.hide_thinking)
        still = STILL_READING if self._cancelled_unread else ""
        waiting = self._wait(still, still or "reading the prompt")
        self._cancelled_unread = False
        last: Reply = {}
        # closing the stream makes the server stop
        with contextlib.closing(self.client.stream(path, body)) as lines:
            try:
                for line in lines:
                    waiting.over()
                    message = line.get("message") or {}
                    text = str(message.get("content") or line.get("response") or "")
                    if text and kept is not None:
                        kept.append(text)  # before it is shown: Ctrl-C may come right then
                    printer.thinking(str(message.get("thinking") or line.get("thinking") or ""))
                    printer.content(text)
                    if line.get("done"):
                        last = line
            finally:
                waiting.over()
                printer.end()
        if not last:
            raise VllamaError("the response ended early", hint="check the server's log")
        if self.verbose:
            show_numbers(last)


def _drop_empty(**fields: object) -> dict[str, object]:
    """Return the fields of a request that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def pull_through(client: Client, model: str) -> None:
    """Pull a model through the server, and show the progress."""
    with open_display() as display:
        for line in client.stream("/api/pull", {"model": model}):
            display(read_event(line))
