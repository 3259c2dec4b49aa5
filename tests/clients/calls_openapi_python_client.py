"""Calls a server with the client that openapi-python-client generated: python FILE URL."""

import json
import sys

import httpx
from client import Client, models
from client.api.anthropic import post_v1_messages
from client.api.ollama import (
    get_api_tags,
    get_api_version,
    post_api_chat,
    post_api_embed,
    post_api_generate,
    post_api_show,
    post_api_tokenize,
)
from client.api.open_ai import get_v1_models, post_v1_chat_completions, post_v1_responses
from client.api.server import get_api_engines

URL = sys.argv[1]
CLIENT = Client(base_url=URL, timeout=None)
SAID = models.OllamaMessage(role="user", content="Hi")


def call(route, answer, **arguments):
    """Call a route that answers with this type."""
    found = route.sync(client=CLIENT, **arguments)
    assert type(found) is answer, found
    return found


version = call(get_api_version, models.Version)
assert version.version and version.vllama
assert {one.name for one in call(get_api_tags, models.Tags).models} >= {"plain:latest"}
asked = models.ChatBody(model="plain", messages=[SAID], stream=False, think=False)
chat = call(post_api_chat, models.ChatAnswer, body=asked)
assert chat.message.role == "assistant" and chat.message.content and chat.done
prompt = models.GenerateBody(model="plain", prompt="Hi", stream=False)
assert call(post_api_generate, models.GenerateAnswer, body=prompt).response
texts = models.EmbedBody(model="vectors", input_=["a", "b"])
assert len(call(post_api_embed, models.EmbedAnswer, body=texts).embeddings) == 2
shown = call(post_api_show, models.ShownModel, body=models.ShowBody(model="plain"))
assert shown.model_info.to_dict()
counted = models.TokenizeBody(model="plain", text="Hi")
assert call(post_api_tokenize, models.TokenizedText, body=counted).count
assert call(get_v1_models, models.OpenAIModels).data
message = models.OpenAIMessage(role="user", content="Hi")
question = models.ChatCompletionBody(model="plain", messages=[message])
completion = call(post_v1_chat_completions, models.ChatCompletion, body=question)
assert completion.choices[0].message.content and completion.usage.total_tokens
response = call(
    post_v1_responses,
    models.WholeResponse,
    body=models.ResponsesBody(model="plain", input_="Hi"),
)
assert response.output[0].content[0].text
turn = models.AnthropicMessage(role="user", content="Hi")
wanted = models.MessagesBody(model="plain", max_tokens=9, messages=[turn])
assert call(post_v1_messages, models.Message, body=wanted).content[0].text
assert call(get_api_engines, models.Engines).engines
missing = post_api_chat.sync(client=CLIENT, body=models.ChatBody(model="nope", messages=[SAID]))
assert type(missing) is models.OllamaError and "nope" in missing.error

asked.stream = question.stream = True
with httpx.stream("POST", f"{URL}/api/chat", json=asked.to_dict(), timeout=None) as answer:
    lines = [models.ChatAnswer.from_dict(json.loads(line)) for line in answer.iter_lines()]
assert lines[-1].done and "".join(one.message.content for one in lines) == chat.message.content
assert not any(one.additional_properties for one in lines)
path = f"{URL}/v1/chat/completions"
with httpx.stream("POST", path, json=question.to_dict(), timeout=None) as answer:
    events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
assert events.pop() == "[DONE]"
chunks = [models.ChatChunk.from_dict(json.loads(event)) for event in events]
text = "".join(part.choices[0].delta.content or "" for part in chunks)
assert text == completion.choices[0].message.content
assert not any(one.additional_properties for one in chunks)
