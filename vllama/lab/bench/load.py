"""Prompts, and a load of several clients at once; each client measures its own times.

All prompts differ from their first words on, so that a server gains nothing from its prompt cache.
All servers get the same prompts.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from vllama.base.errors import VllamaError
from vllama.cli.client import Client


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientView:
    """A client's view of one answer; `tokens` and `prompt_tokens` are the server's own counts."""

    first_token_s: float
    pieces: int
    tokens: int
    prompt_tokens: int


def ask(server: Client, body: Mapping[str, object]) -> ClientView:
    """Send a chat and read its stream to the end. Raises VllamaError, also for an empty answer."""
    begun = time.perf_counter()
    first_s, pieces, last = 0.0, 0, {}
    for last in server.stream("/api/chat", {**body, "stream": True}):
        message = last.get("message") or {}
        if message.get("content") or message.get("thinking"):
            first_s = first_s or time.perf_counter() - begun
            pieces += 1
    if not pieces:
        raise VllamaError("the model's response is empty", hint="use another model")
    return ClientView(
        first_token_s=first_s,
        pieces=pieces,
        tokens=int(last.get("eval_count") or pieces),
        prompt_tokens=int(last.get("prompt_eval_count") or 0),
    )


def ask_all(
    server: Client, bodies: Sequence[Mapping[str, object]], clients: int
) -> dict[str, float]:
    """Send `bodies` from `clients` clients at once, and summarize the answers.

    Each client sends one request after another. Raises the first error of any client, without
    waiting for the others.
    """
    answers: list[ClientView] = []
    errors: list[Exception] = []
    left = iter(bodies)
    turn = threading.Condition()

    def run_client() -> None:
        while True:
            with turn:
                body = None if errors else next(left, None)
            if body is None:
                return
            try:
                answer = ask(server, body)
            except Exception as error:
                with turn:
                    errors.append(error)
                    turn.notify()
                return
            with turn:
                answers.append(answer)
                turn.notify()

    begun = time.perf_counter()
    # daemon threads, so that Ctrl-C does not wait for the end of an answer
    for _ in range(clients):
        threading.Thread(target=run_client, daemon=True).start()
    with turn:
        turn.wait_for(lambda: errors or len(answers) == len(bodies))
        if errors:
            raise errors[0]
    return summarize(answers, time.perf_counter() - begun)


def summarize(answers: Sequence[ClientView], wall_s: float) -> dict[str, float]:
    """Return the tokens/s of all clients together, the median first token, and means per answer."""
    return {
        "tokens_per_s": sum(answer.tokens for answer in answers) / wall_s,
        "first_token_s": median(answer.first_token_s for answer in answers),
        "prompt_tokens": fmean(answer.prompt_tokens for answer in answers),
        "tokens": fmean(answer.tokens for answer in answers),
        "pieces": fmean(answer.pieces for answer in answers),
    }


LENGTHS = {"short": 24, "long": 800}
"""The number of words in each kind of prompt; there are slightly more tokens than words."""

TASK = "Write a very long story that uses all of these words. Go on and on, without an end."
WORDS = (
    "apple arrow autumn basket bell bird boat bread bridge brother candle castle cat cloud coat "
    "corn daughter desert door dream dust evening farm feather field fire fish flower forest "
    "friend garden gate glass gold grass hammer harbour hill honey horse house island journey "
    "kitchen ladder lake lamp letter light market meadow milk mirror moon morning mountain music "
    "night ocean orange paper path pepper piano pocket rain river road rope salt school shadow "
    "ship silver snow song spring star stone storm street summer table thunder tower train tree "
    "valley village wagon wall water wheat wheel wind window winter wolf wood"
)


def make_messages(kind: str, key: str) -> list[dict[str, str]]:
    """Return a conversation of a length in `LENGTHS`; each `key` gives another one.

    Some templates add a system message where there is none. Servers with different templates
    would then compute prompts of different lengths, so the conversation has one already.
    """
    mark = hashlib.sha256(key.encode()).hexdigest()[:8]
    words = random.Random(key).choices(WORDS.split(), k=LENGTHS[kind])
    return [
        {"role": "system", "content": f"{mark}: you tell long stories."},
        {"role": "user", "content": f"{' '.join(words)}.\n\n{TASK}"},
    ]
