"""Prompts, and a client that sends them to a server greedily, with log probabilities.

Prompts are raw text, so that no chat template takes part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vllama.base.errors import BadRequest, ConfigError, UpstreamError
from vllama.observe.captures.answer import Response, lacks_text, read_answer

PATH = "/v1/completions"
TOP = 10
GREEDY = {
    "temperature": 0,
    "top_p": 1,
    "min_p": 0,
    "repeat_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "stop": [],
}
"""All that could end an answer early, or make a choice another than the likeliest token, whatever
the parameters of the model say."""


class Asker:
    """Asks one model; `post` sends a body to a path of the server and returns the answer.

    `tells_logprobs` is False as soon as the engine has refused to tell log probabilities: then
    texts are all that can be compared.
    """

    def __init__(
        self,
        post: Callable[[str, Mapping[str, object]], dict[str, Any]],
        model: str,
        max_tokens: int,
    ) -> None:
        self.tells_logprobs = True
        self._post = post
        self._body: dict[str, object] = {
            "model": model,
            "raw": True,
            "stream": False,
            "max_tokens": max_tokens,
            "temperature": 0,
            "top_p": 1,
            "options": GREEDY,
        }

    def ask(self, prompt: str) -> Response:
        """Return the answer to one prompt, which is sent as it is. Raises VllamaError."""
        body = self._body | {"prompt": prompt}
        if not self.tells_logprobs:
            return read_answer(self._choice(body))
        try:
            choice = self._choice(body | {"logprobs": TOP})
        except BadRequest as refusal:
            if "logprobs" not in refusal.message:
                raise
            self.tells_logprobs = False
            return self.ask(prompt)
        return read_answer(choice, self._choice(body) if lacks_text(choice) else None)

    def _choice(self, body: Mapping[str, object]) -> dict[str, Any]:
        choices = self._post(PATH, body).get("choices")
        if not choices:
            raise UpstreamError("the engine did not respond")
        choice: dict[str, Any] = choices[0]
        return choice


BUILT_IN = (
    "The capital of France is",
    "Water boils at a lower temperature on a mountain because",
    "Here is a short story about a lighthouse keeper and her cat.\n\nOne stormy evening",
    'def is_prime(n: int) -> bool:\n    """Tell whether n is a prime number."""\n',
    "Monday, Tuesday, Wednesday,",
    'Three facts about whales, as JSON:\n[\n  {"fact": "',
    "Question: A train leaves at 9:40 and arrives at 11:15. How long is the journey?\nAnswer:",
    "English: Good morning, how are you today?\nFrançais :",
)
"""Prose, code, lists, data, sums and a second language: where engines differ is not the same."""


def parse_prompts(data: bytes, name: str) -> tuple[str, ...]:
    """Read prompts of a file called `name`. Raises ConfigError.

    A JSON array of strings; or JSON lines, each a string or an object with "prompt"; else one
    prompt a line. Blank lines are none.
    """
    try:
        text = data.decode("utf-8-sig")
        stripped, lines = text.strip(), [line for line in text.split("\n") if line.strip()]
        if stripped.startswith("["):
            found = _prompts(json.loads(stripped), name)
        elif stripped.startswith(("{", '"')):
            found = _prompts((json.loads(line) for line in lines), name)
        else:
            found = tuple(line.rstrip("\r") for line in lines)
    except ValueError as error:
        raise ConfigError(
            f"cannot read the prompts in '{name}': {error}",
            hint='use a JSON array of strings, JSON lines with "prompt", or one prompt per line',
        ) from None
    if not found:
        raise ConfigError(f"cannot use the prompts in '{name}': the file has none")
    return found


def _prompts(values: Iterable[object], name: str) -> tuple[str, ...]:
    found = []
    for number, value in enumerate(values, 1):
        prompt = value.get("prompt") if isinstance(value, dict) else value
        if not isinstance(prompt, str) or not prompt:
            raise ValueError(f"number {number} has no text")
        found.append(prompt)
    return tuple(found)
