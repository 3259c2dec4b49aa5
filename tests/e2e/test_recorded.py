"""What a real Ollama answered to the same requests; see `recorded/README.md`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.compare import Answer, find_differences
from tests.e2e.conftest import LLAMA_CPP_PYTHON, find_engine, weights
from tests.e2e.differences import DIFFERENCES
from tests.e2e.vectors import write_vectors_gguf
from tests.routes.openapi.validation import find_errors, find_operation
from tests.server_process import Server

HERE = Path(__file__).parent / "recorded"
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
MODELS = ("plain", "tooled", "thinker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and Ollama's answer. A body that is a text is sent as it is."""

    method: str
    path: str
    body: object
    answer: Answer


def read_exchanges() -> Iterator[Exchange]:
    for line in (HERE / "requests.jsonl").read_text().splitlines():
        row = json.loads(line)
        answer = Answer(status=row["status"], type=row["type"], body=row["answer"])
        yield Exchange(method=row["method"], path=row["path"], body=row["body"], answer=answer)


def ask(server: Server, exchange: Exchange) -> Answer:
    body = exchange.body
    if body is not None:
        text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
        body = text.encode("utf-8", "surrogateescape")
    headers = {} if body is None else {"content-type": "application/json"}
    status, given, data = server.request(exchange.method, exchange.path, body, headers)
    kind = given["content-type"] or ""
    return Answer(status=status, type=kind, body=data.decode(errors="replace"))


@pytest.fixture(params=[LLAMA_CPP_PYTHON, "llama-server"])
def server(request, tmp_path):
    """Return a server with Ollama's models."""
    weights()
    environ, arguments = find_engine(request.param), ("--engine", request.param)
    shown = next(
        json.loads(one.answer.body)["model_info"]
        for one in read_exchanges()
        if one.path == "/api/show" and one.body == {"model": "vectors"}
    )
    with Server(tmp_path, *arguments, fake=False, env=environ) as made:
        write_vectors_gguf(made.models / "vectors.gguf", shown)
        for name in MODELS:
            command = [sys.executable, "-m", "vllama", "create", name, "-f"]
            subprocess.run(
                [*command, str(HERE / f"{name}.Modelfile")],
                env=made.env | {"OLLAMA_HOST": made.url},
                check=True,
                capture_output=True,
            )
        yield made


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_answers_are_ollamas(server):
    unexplained = []
    for number, exchange in enumerate(read_exchanges(), 1):
        answer = ask(server, exchange)
        if exchange.answer.status not in (301, 307, 405) and find_operation(
            exchange.method, exchange.path
        ):
            errors = find_errors(
                exchange.method, exchange.path, answer.status, answer.type, answer.body
            )
            unexplained += [f"#{number} {exchange.method} {exchange.path}: {one}" for one in errors]
        found = find_differences(exchange.answer, answer)
        for said in found:
            if not any(one.explains(exchange.path, exchange.body, said) for one in DIFFERENCES):
                shown = json.dumps(exchange.body, ensure_ascii=False)[:300]
                unexplained.append(f"#{number} {exchange.method} {exchange.path} {shown}: {said}")
    assert not unexplained, "\n".join([f"{len(unexplained)} differences", *unexplained])


def test_the_differences_are_documented():
    """The list of the documentation and the one by which answers are compared are the same."""
    section = DOCS.read_text().partition("## Where vllama differs from Ollama\n")[2]
    section = section.partition("\n## ")[0]
    items = re.findall(r"(?ms)^- (.*?)(?=^- |\Z)", section)
    documented = [" ".join(item.split()) for item in items]
    assert Counter(documented) == Counter({one.reason for one in DIFFERENCES})
