"""Calls a server with the client that openapi-generator generated: python FILE URL."""

import json
import sys

import openapi_client as client
import urllib3

URL = sys.argv[1]
api = client.ApiClient()
assert api.configuration.host == URL, "the description says where the server is"
ollama, server = client.OllamaApi(api), client.ServerApi(api)
openai, anthropic = client.OpenAIApi(api), client.AnthropicApi(api)

assert ollama.get_api_version().vllama
assert {one.name for one in ollama.get_api_tags().models} >= {"plain:latest"}
said = client.OllamaMessage(role="user", content="Hi")
asked = client.ChatBody(model="plain", messages=[said], stream=False)
chat = ollama.post_api_chat(asked)
assert chat.message.role == "assistant" and chat.message.content and chat.done
prompt = client.GenerateBody(model="plain", prompt="Hi", stream=False)
assert ollama.post_api_generate(prompt).response
texts = client.EmbedBody(model="vectors", input=client.EmbedBodyInput(["a", "b"]))
assert len(ollama.post_api_embed(texts).embeddings) == 2
assert ollama.post_api_show(client.ShowBody(model="plain")).model_info
assert ollama.post_api_tokenize(client.TokenizeBody(model="plain", text="Hi")).count
assert openai.get_v1_models().data
content = client.OpenAIMessageContent("Hi")
message = client.OpenAIMessage(role="user", content=content)
question = client.ChatCompletionBody(model="plain", messages=[message])
completion = openai.post_v1_chat_completions(question)
assert completion.choices[0].message.content and completion.usage.total_tokens
asked_in_items = client.ResponsesBody(model="plain", input=client.ResponsesBodyInput("Hi"))
assert openai.post_v1_responses(asked_in_items).output[0].content[0].text
turn = client.AnthropicMessage(role="user", content=client.AnthropicMessageContent("Hi"))
wanted = client.MessagesBody(model="plain", max_tokens=9, messages=[turn])
assert anthropic.post_v1_messages(wanted).content[0].actual_instance.text
assert server.get_api_engines().engines
try:
    ollama.post_api_chat(client.ChatBody(model="nope", messages=[said]))
except client.exceptions.NotFoundException as error:
    assert "nope" in error.data.error
else:
    raise AssertionError("a model that is not there is no error")


def list_lines(path, body):
    """Return the lines of a streamed answer that are not empty."""
    answer = urllib3.request("POST", URL + path, json=body)
    return [line for line in answer.data.decode().split("\n") if line]


asked.stream = question.stream = True
lines = [client.ChatAnswer.from_json(line) for line in list_lines("/api/chat", asked.to_dict())]
assert lines[-1].done and "".join(one.message.content for one in lines) == chat.message.content
events = [
    line.removeprefix("data: ") for line in list_lines("/v1/chat/completions", question.to_dict())
]
assert events.pop() == "[DONE]"
chunks = [client.ChatChunk.from_dict(json.loads(event)) for event in events]
text = "".join(part.choices[0].delta.content or "" for part in chunks)
assert text == completion.choices[0].message.content
