"""One prompt after another to a server with one model, greedily, with log probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vllama.errors import BadRequest, UpstreamError
from vllama.verify.answer import Answer, answer_of, lacks_text

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

    def ask(self, prompt: str) -> Answer:
        """Return the answer to one prompt, which is sent as it is. Raises VllamaError."""
        body = self._body | {"prompt": prompt}
        if not self.tells_logprobs:
            return answer_of(self._choice(body))
        try:
            choice = self._choice(body | {"logprobs": TOP})
        except BadRequest as refusal:
            if "logprobs" not in refusal.message:
                raise
            self.tells_logprobs = False
            return self.ask(prompt)
        return answer_of(choice, self._choice(body) if lacks_text(choice) else None)

    def _choice(self, body: Mapping[str, object]) -> dict[str, Any]:
        choices = self._post(PATH, body).get("choices")
        if not choices:
            raise UpstreamError("the engine gave no answer")
        choice: dict[str, Any] = choices[0]
        return choice
