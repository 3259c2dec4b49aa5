"""Where vllama differs from Ollama on purpose; `docs/reference/api.md` has the same list."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference with its reason, in the words of the documentation.

    It explains what `find_differences` says if all three patterns are found: in the path, in the
    request's body and in what was said. Without a `said` it is none that the recording shows.
    """

    reason: str
    said: str = r"\Z.\A"
    path: str = ""
    body: str = ""

    def explains(self, path: str, body: Any, said: str) -> bool:
        """Tell whether this is why `said` was said of a request."""
        text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
        found = (
            re.search(self.path, path),
            re.search(self.body, text, re.DOTALL),
            re.search(self.said, said, re.DOTALL),
        )
        return all(found)


LISTS_AND_CHOICES = (
    "`/v1/completions` accepts a [list of prompts](#completions); it and `/v1/chat/completions` "
    "honor `n`."
)
MORE_ROUTES = (
    "There are more routes, such as `/v1/messages/count_tokens`, `/api/web_search`, `/v1/audio`, "
    "`/v1/images` and `/v1/responses/ID`."
)
DIFFERENCES = (
    Difference(
        reason=(
            "Responses have more keys: cached tokens, a model's store, state and context "
            "lengths, and thinking signatures."
        ),
        said=r"^extra ",
    ),
    Difference(
        reason=LISTS_AND_CHOICES,
        path="^/v1/completions",
        body=r'"prompt": \[',
        said=r"^status 400 → (200|404)|^error ",
    ),
    Difference(
        reason=LISTS_AND_CHOICES,
        path="^/v1/(chat/)?completions",
        body=r'"n": ',
        said=r"index",
    ),
    Difference(
        reason="`tool_choice` is honored; with `none`, the model does not need to support tools.",
        path="^/v1/",
        body=r'"tool_choice": ',
        said=r"^status 400 → 200",
    ),
    Difference(
        reason=(
            "`/v1/responses` reads and returns more of OpenAI's fields: `metadata`, `store`, "
            "`presence_penalty`, `frequency_penalty`, `parallel_tool_calls`, `tool_choice`, "
            "`safety_identifier`, `prompt_cache_key`, `previous_response_id`."
        ),
        path="^/v1/responses",
        said=(
            r"(metadata|store|_penalty|parallel_tool_calls|tool_choice|safety_identifier"
            r"|prompt_cache_key|previous_response_id)\S*($|: )"
        ),
    ),
    Difference(
        reason="`/v1/embeddings` accepts [tokens](#embeddings).",
        path="^/v1/embeddings",
        body=r'"input": \[+\d',
        said=r"^status 400 → (200|404)",
    ),
    Difference(
        reason=MORE_ROUTES,
        path="count_tokens",
        said=r"^status 404 → ",
    ),
    Difference(
        reason=(
            "Chat models also generate embeddings; Ollama returns 501, or 500 on `/api/embeddings`."
        ),
        path="^/(api|v1)/embed",
        said=r"^status 50[01] → 200|does not support embeddings",
    ),
    Difference(
        reason="A `format`, `options` or digest of a wrong type is a 400; Ollama returns 500.",
        said=r"^status 500 → 400",
    ),
    Difference(
        reason=(
            "Errors about a body's JSON or a field's type name the field in vllama's own "
            "words; Ollama returns the messages of Go's decoder."
        ),
        said=r"^error .* → .*(Invalid value for |cannot read the request: |missing request body)",
    ),
    Difference(
        reason="`options.stop` may be a string instead of a list.",
        path="^/api/(chat|generate)",
        body=r'"stop": "',
        said=r"^status 500 → 200",
    ),
    Difference(
        reason=(
            "vllama itself rejects an unusable JSON schema, and names the location of the error."
        ),
        body="nonsense",
        said=r"^error .*JSON schema",
    ),
    Difference(
        reason=(
            'Images or audio for a model that takes none are refused: `"MODEL" does not support '
            "vision`."
        ),
        body="image|audio",
        said=r"^error .*does not support (vision|audio)",
    ),
    Difference(
        reason=(
            "A missing upload is a 404 with the digest of the file instead of its "
            "path on the server."
        ),
        path="^/api/create",
        body=r'": "sha256:',
        said=r"blob sha256:\w+ not found|^status 400 → 404",
    ),
    Difference(
        reason="Pull errors have vllama's own messages and a hint.",
        path="^/api/(create|pull)",
        said=r"cannot (pull|find)|^status 500 → 404",
    ),
    Difference(
        reason=(
            "`/api/ps` shows the models that vllama loaded, with the context lengths that it "
            "planned."
        ),
        path="^/api/ps",
        said=r"^value .models",
    ),
    Difference(
        reason="Tools without a name are dropped; Ollama passes them on.",
        body=r'"tools": \[\{"type": "function"\}\]',
        said=r"^missing .message.tool_calls|^status 200 → 400",
    ),
    Difference(
        reason="A truncated tool call is returned as text.",
        path="^/api/chat",
        body=r'"tools": ',
        said=r"^value \.done: ",
    ),
    Difference(
        reason=(
            "`tools` and `tool_choice` of `/v1/chat/completions` may use the format of another "
            "API:"
            '`{"type": "function", "name": …}`, `input_schema`, `{"type": "any"}`.'
        ),
        path="^/v1/chat",
        body=r'"tools": |"tool_choice": ',
        said=r"^status 400 → 200",
    ),
    Difference(
        reason=(
            "Arguments of earlier tool calls need not be JSON. Unreadable parts "
            "of a tool's result, such as a PDF, become a note to the model."
        ),
        path="^/v1/(chat|responses)",
        body=r'"arguments": "|"tool_calls": \[\{\}',
        said=r"^error .*(invalid tool|parse function) call arguments|^status 400 → (200|404)",
    ),
    Difference(
        reason=(
            "A truncated response of `/v1/responses` has the `status` "
            "`incomplete`, and `incomplete_details`."
        ),
        path="^/v1/responses",
        said=r"^missing \S*incomplete_details$",
    ),
    Difference(
        reason=(
            "A stream of `/v1/responses` or `/v1/messages` with a web search starts with "
            "the model's response and is always an event stream; errors before that have their own "
            "status."
        ),
        path="^/v1/(responses|messages)",
        body=r"web_search",
        said=r"^status (200 → 40[04]|400 → 200)|^type application/x-nd|^(missing|error|value) ",
    ),
    Difference(
        reason="An unusable `format` is rejected before the model thinks, not after.",
        path="^/api/(chat|generate)",
        body=r'"format": ',
        said=r"^status 200 → 400",
    ),
    Difference(
        reason=(
            "With `llama-cpp-python`, responses with log probabilities lack characters that "
            "consist of several tokens: the engine returns neither their text nor their bytes."
        ),
        said=r"logprobs\S*bytes",
    ),
    Difference(
        reason="Integers may be written as `3.0`.",
        body=r'": \d+\.0[,}]',
        said=r"^status 400 → (200|404)|^error .*of type int\b",
    ),
    Difference(
        reason=(
            "`/v1` accepts all kinds of conversation content: responses and results "
            "without content, thinking as parts, calls of custom tools, and arguments as objects. "
            "`x-vllama-ignored` lists items and parts that cannot be passed to the model, and "
            "tools that run only on a vendor's servers."
        ),
        path="^/v1/(chat|responses)",
        body=r'"(assistant|tool|tool_calls|reasoning|thinking|web_search)"|"role": "user"}',
        said=r"^status 400 → (200|404)|^error ",
    ),
    Difference(
        reason=MORE_ROUTES,
        path=r"^/(api/web_|v1/audio|v1/images|v1/responses/)",
        said=r"^status 404 → |^type text/plain|^error 404 page not found",
    ),
    Difference(
        reason=(
            "Requests that only ollama.com can serve (web search, account, recommendations, "
            "pushes) get the responses of an Ollama with `OLLAMA_NO_CLOUD` and no signed-in user."
        ),
        path=r"^/api/(experimental|status|me$|signout|push|web_)",
        said=r"^status 50\d → 40[134]|cloud|recommendations|^(missing|error|value) ",
    ),
    Difference(
        reason=(
            "`/v1/responses` accepts every kind of item. Calls with a "
            "`call_id` (`custom_tool_call`, `local_shell_call`, `apply_patch_call` …) and their "
            "outputs reach the model. Other items are ignored and listed."
        ),
        path="^/v1/responses",
        body=r'"type": "(text|refusal|summary_text|input_audio|\w+_call)"',
        said=r"^status 400 → 200|^error .*(unknown content type|unknown input item type)",
    ),
    Difference(
        reason=(
            "`/v1/messages` never returns null as `content`, and sends messages without text to "
            "the model; Ollama leaves them out."
        ),
        path="^/v1/messages",
        said=r"^value message.content: ",
    ),
    Difference(
        reason="Fields that only vllama uses are also validated: `n`, `logit_bias`, `min_tokens`.",
        path="^/v1/(chat/)?completions",
        body=r'"(n|logit_bias|min_tokens|raw|options|num_ctx|keep_alive|think|shift)": ',
        said=r"^status 200 → 400",
    ),
    Difference(
        reason=(
            "The engine checks options that the newest llama-server rejects, such as "
            "a `repeat_penalty` of 0. vllama returns its error message without the surrounding "
            "JSON."
        ),
        body=r'"repeat_(penalty": 0\b|last_n": -)',
        said=r"^status 400 → 200|^error .*Value must be between",
    ),
    Difference(
        reason="`_debug_render_only` works on `/api` only.",
        path="^/v1/",
        body=r'"_debug_render_only": true',
        said=r"_debug_info|finish_reason|message.role",
    ),
    Difference(
        reason=(
            "`/api/create` checks all settings before it pulls the base model, and "
            "has its own messages for errors in a template."
        ),
        path="^/api/create",
        said=r"^status 200 → 400|template",
    ),
    Difference(
        reason=(
            "With `llama-cpp-python` or another engine, a model's text and tool calls may differ."
        ),
        body=r'"tools"|"model": "thinker"',
        said=r"(tool_calls|thinking|reasoning|summary|encrypted_content|content\[\])",
    ),
)
