"""Chat in the browser: answers of one and of two models, Markdown, thinking, tools, images."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.routes.test_families import TEMPLATE, THOUGHT, TOOL
from tests.server_process import Server

pytestmark = pytest.mark.slow

HOSTILE = """# Title

**bold** and <b>also bold</b>

<img src=x onerror="document.title='hacked'"> <script>document.title='hacked'</script>
<p style="position:fixed">text</p>

[a link](javascript:document.title='hacked') and ![a picture](http://192.0.2.1/pixel.png)

| a | b |
|---|---|
| 1 | 2 |

- [x] done

```python
print("hi")
```
"""
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("chat"), "--hang-timeout", "0") as running:
        running.model("plain")
        running.model("stalls", "--stall-after", "2")
        running.model("hostile", "--say", json.dumps(HOSTILE))
        running.model("bare-thinks", "--say", json.dumps(THOUGHT), template=TEMPLATE)
        yield running


def open_chat(open_page, server, model):
    """Return a page with a new conversation."""
    page = open_page(server, f"chat?model={model}:latest")
    expect(page.get_by_role("combobox", name="Model", exact=True)).to_have_value(f"{model}:latest")
    return page


def say(page, text):
    """Send a message."""
    field = page.get_by_role("textbox", name="Message")
    field.fill(text)
    field.press("Enter")


def test_an_answer_with_its_numbers_is_written_again_and_kept(server, open_page):
    page = open_chat(open_page, server, "plain")
    say(page, "Count to ten, please.")
    answer = page.get_by_role("article").nth(1)
    expect(answer).to_contain_text("tok0 tok1")
    expect(answer).to_contain_text("first token")
    expect(answer).to_contain_text("8 tokens")
    asked = len(server.stats("plain")["bodies"])
    answer.get_by_role("button", name="Regenerate").click()
    expect(answer).to_contain_text("8 tokens")
    assert len(server.stats("plain")["bodies"]) > asked
    say(page, "And again?")
    expect(page.get_by_role("article")).to_have_count(4)
    expect(page.get_by_role("article").nth(3)).to_contain_text("8 tokens")
    sent = [message["content"] for message in server.sent("plain")["messages"]]
    assert sent[0] == "Count to ten, please."
    assert sent[1].startswith("tok0")
    assert sent[2] == "And again?"
    page.reload()
    page.get_by_role("button", name="Count to ten, please.", exact=True).click()
    expect(page.get_by_role("article")).to_have_count(4)
    with page.expect_download() as download:
        page.get_by_role("button", name="Export “Count").click()
    exported = json.loads(Path(download.value.path()).read_text())
    assert exported["conversations"][0]["turns"][1]["text"] == "And again?"
    page.get_by_role("button", name="Delete “Count").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("article")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("button", name="New conversation")).to_be_visible()
    expect(page.get_by_role("button", name="Count to ten")).to_have_count(0)


def test_two_models_answer_one_message_side_by_side(server, open_page):
    page = open_chat(open_page, server, "plain")
    page.get_by_role("button", name="Compare two").click()
    page.get_by_label("Model 2").select_option("hostile:latest")
    say(page, "Hello")
    left, right = page.get_by_role("article").nth(1), page.get_by_role("article").nth(2)
    expect(left).to_contain_text("tok7")
    expect(right).to_contain_text("also bold")
    assert left.bounding_box()["y"] == right.bounding_box()["y"]
    assert left.bounding_box()["x"] < right.bounding_box()["x"]


def test_an_answer_can_be_stopped(server, open_page):
    page = open_chat(open_page, server, "stalls")
    say(page, "Hello")
    answer = page.get_by_role("article").nth(1)
    expect(answer).to_contain_text("tok0")
    page.get_by_role("button", name="Stop").click()
    expect(answer).to_contain_text("Stopped.")
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_what_a_model_writes_can_do_nothing(server, open_page):
    page = open_chat(open_page, server, "hostile")
    say(page, "Hello")
    answer = page.get_by_role("article").nth(1)
    expect(answer).to_contain_text("tokens/s")
    expect(answer.get_by_role("heading", name="Title")).to_be_visible()
    expect(answer.get_by_role("cell", name="2")).to_be_visible()
    expect(answer.locator("pre")).to_contain_text('print("hi")')
    expect(answer.locator("strong, b")).to_have_count(2)
    assert answer.locator("img, script, input, [style], [onerror]").count() == 0
    links = answer.locator("markdown-text a")
    assert [link.get_attribute("href") for link in links.all()] == [
        None,
        "http://192.0.2.1/pixel.png",
    ]
    assert page.title() == "Chat · vllama"


def test_thinking_is_folded_and_tools_are_answered_by_the_user(server, open_page):
    page = open_chat(open_page, server, "bare-thinks")
    page.get_by_text("Options").click()
    page.get_by_label("Tools").fill(json.dumps([TOOL]))
    page.get_by_label("System message").fill("Be brief.")
    page.get_by_text("Options").click()
    say(page, "Weather?")
    answer = page.get_by_role("article").nth(1)
    expect(answer).to_contain_text("Calls weather")
    expect(answer).to_contain_text('"city": "Paris"')
    expect(answer.get_by_text("I look.")).to_be_hidden()
    answer.get_by_text("Thinking").click()
    expect(answer.get_by_text("I look.")).to_be_visible()
    answer.get_by_label("Result of weather").fill("It rains.")
    answer.get_by_role("button", name="Send the results").click()
    expect(answer).to_contain_text("Result of weather")
    expect(answer.get_by_text("Calls weather")).to_have_count(2)
    prompt = server.sent("bare-thinks")["prompt"]
    assert "[system]Be brief." in prompt
    assert "[tool]It rains." in prompt


def test_an_image_is_attached_and_sent(server, open_page, tmp_path):
    picture = tmp_path / "pixel.png"
    picture.write_bytes(PIXEL)
    page = open_chat(open_page, server, "plain")
    page.get_by_label("Attach").set_input_files(picture)
    expect(page.get_by_role("img", name="image to send")).to_be_visible()
    expect(page.locator("message-form")).to_contain_text("plain:latest cannot see images")
    with page.expect_request("**/api/chat") as request:
        say(page, "What is it?")
    sent = request.value.post_data_json["messages"][0]
    assert base64.b64decode(sent["images"][0]) == PIXEL
    expect(page.get_by_role("article").nth(1).get_by_role("alert")).to_be_visible()


def test_a_text_file_goes_along_and_other_files_are_refused_with_a_reason(
    server, open_page, tmp_path
):
    text, archive = tmp_path / "notes.md", tmp_path / "data.zip"
    text.write_text("Use ``` for code.\n")
    archive.write_bytes(b"PK\x03\x04\xff\xfe\x00")
    page = open_chat(open_page, server, "plain")
    form = page.locator("message-form")
    page.get_by_label("Attach").set_input_files([text, archive])
    expect(form.get_by_role("alert")).to_contain_text("cannot attach “data.zip”: it is neither")
    expect(form).to_contain_text("notes.md")
    say(page, "Sum it up.")
    expect(page.get_by_role("article").nth(1)).to_contain_text("tok7")
    (sent,) = server.sent("plain")["messages"]
    assert sent["content"] == "Sum it up.\n\nnotes.md:\n````\nUse ``` for code.\n````"
    expect(form.get_by_role("alert")).to_be_hidden()
    page.get_by_text("notes.md").click()
    expect(page.get_by_text("Use ``` for code.")).to_be_visible()


def test_a_message_that_failed_is_not_sent_again_with_later_ones(server, open_page, tmp_path):
    picture = tmp_path / "pixel.png"
    picture.write_bytes(PIXEL)
    page = open_chat(open_page, server, "plain")
    page.get_by_label("Attach").set_input_files(picture)
    expect(page.get_by_role("img", name="image to send")).to_be_visible()
    say(page, "What is it?")
    expect(page.get_by_role("article").nth(1).get_by_role("alert")).to_be_visible()
    say(page, "Then without it.")
    expect(page.get_by_role("article").nth(3)).to_contain_text("tok7")
    expect(page.get_by_role("article").nth(1)).to_contain_text("sent without this one")
    sent = [message["content"] for message in server.sent("plain")["messages"]]
    assert sent == ["Then without it."]


def test_tools_that_are_no_json_leave_the_focus_where_it_is(server, open_page):
    page = open_chat(open_page, server, "plain")
    page.get_by_text("Options").click()
    page.get_by_label("Tools").fill("[{")
    page.get_by_label("System message").click()
    options = page.locator(".options")
    expect(options.get_by_role("alert")).to_contain_text("cannot read the tools")
    expect(page.get_by_label("Tools")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Tools")).to_have_value("[{")
    expect(page.get_by_label("System message")).to_be_focused()
    page.get_by_label("Tools").fill("[]")
    page.get_by_label("System message").click()
    expect(options.get_by_role("alert")).to_be_empty()


def test_a_conversation_begins_with_a_model_that_is_there(server, open_page):
    page = open_page(server, "chat?model=gone")
    field = page.get_by_role("combobox", name="Model", exact=True)
    expect(field).not_to_have_value("gone")
    expect(field).to_have_value(re.compile(r"\w"))


@pytest.mark.parametrize("model", ["stalls", "hostile"])  # not both are the first of the list
def test_an_address_may_leave_the_tag_of_a_model_out(server, open_page, model):
    page = open_page(server, f"chat?model={model}")
    field = page.get_by_role("combobox", name="Model", exact=True)
    expect(field).to_have_value(f"{model}:latest")
