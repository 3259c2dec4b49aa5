"""Chat in the browser: answers of one and of two models, their versions, settings, tools, files."""

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
PROSE = "The quick brown fox jumps over the lazy dog. " * 30
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("chat"), "--hang-timeout", "0") as running:
        running.model("plain")
        running.model("stalls", "--stall-after", "2")
        running.model("hostile", "--say", json.dumps(HOSTILE))
        running.model("prose", "--say", json.dumps(PROSE))
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


def open_settings(page):
    page.get_by_role("button", name="Chat settings").click()
    return page.get_by_role("region", name="Conversation settings")


def list_texts(page):
    """Return what the user said on the branch that is shown."""
    return page.locator("article.user .text").all_text_contents()


def test_the_model_of_an_address_is_waited_for(server, open_page):
    """What the last visit has seen, and what runs, is not all that there is."""
    page = open_chat(open_page, server, "plain")
    server.model("newcomer")
    held = []
    page.route("**/api/tags", lambda route: held.append(route))
    page.goto(f"{server.url}/ui/#/chat?model=newcomer:latest")
    page.reload()
    expect(page.get_by_role("heading", name="What can newcomer:latest help with?")).to_be_visible()
    for route in held:
        route.continue_()
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    chosen = page.get_by_role("combobox", name="Model", exact=True)
    expect(chosen).to_have_value("newcomer:latest")
    (server.models / "newcomer.gguf").unlink()


def test_an_answer_with_its_numbers_is_written_again_and_kept(server, open_page):
    page = open_chat(open_page, server, "plain")
    say(page, "Count to ten, please.")
    answer = page.get_by_role("article").nth(1)
    expect(answer).to_contain_text("tok0 tok1")
    expect(answer).to_contain_text(re.compile(r"first token \d"))
    expect(answer).to_contain_text("8 tokens")
    asked = len(server.stats("plain")["bodies"])
    answer.get_by_role("button", name="Regenerate").click()
    expect(answer).to_contain_text("2 of 2")
    expect(answer).to_contain_text("8 tokens")
    assert len(server.stats("plain")["bodies"]) > asked
    answer.get_by_role("button", name="Earlier version").click()
    expect(answer).to_contain_text("1 of 2")
    say(page, "And again?")
    expect(page.get_by_role("article")).to_have_count(4)
    expect(page.get_by_role("article").nth(3)).to_contain_text("8 tokens")
    sent = [message["content"] for message in server.sent("plain")["messages"]]
    assert sent[0] == "Count to ten, please."
    assert sent[1].startswith("tok0")
    assert sent[2] == "And again?"
    page.reload()
    expect(page.get_by_role("article")).to_have_count(4)
    answer.get_by_role("button", name="Later version").click()
    expect(page.get_by_role("article")).to_have_count(2)  # what was said after the other one
    actions = page.get_by_role("button", name="Actions for “Count to ten, please.”")
    actions.click()
    with page.expect_download() as download:
        page.get_by_role("button", name="JSON").click()
    assert "And again?" in Path(download.value.path()).read_text()
    with page.expect_download() as download:
        page.get_by_role("button", name="Markdown").click()
    assert "Count to ten, please." in Path(download.value.path()).read_text()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("article")).to_have_count(0)
    expect(actions).to_have_count(0)


def test_an_edited_message_begins_a_branch(server, open_page):
    page = open_chat(open_page, server, "plain")
    say(page, "First")
    expect(page.get_by_role("article").nth(1)).to_contain_text("8 tokens")
    say(page, "Second")
    expect(page.get_by_role("article").nth(3)).to_contain_text("8 tokens")
    first = page.get_by_role("article").first
    first.get_by_role("button", name="Edit").click()
    field = first.get_by_role("textbox", name="Edit the message")
    expect(field).to_be_focused()
    field.press("Escape")
    expect(first.get_by_role("button", name="Edit")).to_be_focused()
    first.get_by_role("button", name="Edit").click()
    field.fill("Other")
    field.press("Enter")
    expect(first).to_contain_text("2 of 2")
    expect(page.get_by_role("article").nth(1)).to_contain_text("8 tokens")
    assert list_texts(page) == ["Other"]
    assert [message["content"] for message in server.sent("plain")["messages"]] == ["Other"]
    first.get_by_role("button", name="Earlier version").click()
    expect(first).to_contain_text("1 of 2")
    assert list_texts(page) == ["First", "Second"]


def test_the_arrow_up_edits_the_last_message(server, open_page):
    page = open_chat(open_page, server, "plain")
    say(page, "First")
    expect(page.get_by_role("article").nth(1)).to_contain_text("8 tokens")
    page.get_by_role("textbox", name="Message", exact=True).press("ArrowUp")
    expect(page.get_by_role("textbox", name="Edit the message")).to_have_value("First")


def test_an_answer_that_was_stopped_is_continued(server, open_page):
    page = open_chat(open_page, server, "stalls")
    say(page, "Hello")
    answer = page.get_by_role("article").nth(1)
    expect(answer).to_contain_text("tok0")
    page.get_by_role("button", name="Stop").click()
    expect(answer).to_contain_text("Stopped.")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    with page.expect_request("**/api/chat") as request:
        answer.get_by_role("button", name="Continue").click()
    last = request.value.post_data_json["messages"][-1]
    assert (last["role"], last["content"][:4]) == ("assistant", "tok0")
    page.get_by_role("button", name="Stop").click()
    expect(answer).to_contain_text("Stopped.")


def test_an_answer_of_another_tab_is_stopped_from_here(server, open_page):
    page = open_chat(open_page, server, "stalls")
    say(page, "Hello")
    expect(page.get_by_role("article").nth(1)).to_contain_text("tok0")
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.get_by_text("Being generated in another tab.")).to_be_visible()
    other.locator("message-form").get_by_role("button", name="Stop").click()
    expect(other.get_by_text("Stopped.", exact=True)).to_be_visible()
    expect(page.get_by_text("Stopped.", exact=True)).to_be_visible()


def test_a_conversation_is_renamed_and_found(server, open_page):
    page = open_chat(open_page, server, "plain")
    say(page, "A question about whales")
    expect(page.get_by_role("article").nth(1)).to_contain_text("8 tokens")
    page.get_by_role("link", name="New conversation").click()
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    say(page, "Something else")
    expect(page.get_by_role("article").nth(1)).to_contain_text("8 tokens")
    rows = page.locator("conversation-list li")
    expect(rows).to_have_count(2)
    page.get_by_role("link", name="A question about whales").press("F2")
    title = page.get_by_role("textbox", name="Title")
    expect(title).to_be_focused()
    title.fill("Mammals")
    title.press("Enter")
    renamed = page.get_by_role("link", name="Mammals")
    expect(renamed).to_be_focused()
    search = page.get_by_role("searchbox", name="Search conversations")
    search.fill("WHALES")  # in its text
    expect(rows).to_have_count(1)
    renamed.click()
    expect(page.locator("article.user")).to_contain_text("whales")
    search.fill("nowhere")
    expect(page.get_by_text("No results for “nowhere”.")).to_be_visible()
    search.fill("")
    expect(rows).to_have_count(2)
    page.go_back()
    expect(page.locator("article.user")).to_contain_text("Something else")


def test_settings_go_with_each_request_and_into_presets(server, open_page):
    page = open_chat(open_page, server, "plain")
    settings = open_settings(page)
    settings.get_by_label("System prompt").fill("Be brief.")
    for label, value in [
        ("Temperature", "0.3"), ("Top P", "0.9"), ("Top K", "40"), ("Min P", "0.05"),
        ("Repeat penalty", "1.1"), ("Seed", "7"), ("Max tokens", "5"), ("Context length", "2048"),
        ("Stop sequences", "END\nSTOP"),
    ]:  # fmt: skip
        settings.get_by_label(label).fill(value)
    settings.get_by_label("Thinking").select_option("no")
    settings.get_by_role("button", name="Save as").click()
    settings.get_by_label("Preset name").fill("Brief")
    settings.get_by_role("button", name="Save", exact=True).click()
    expect(settings.get_by_label("Preset")).to_contain_text("Brief")
    with page.expect_request("**/api/chat") as request:
        say(page, "Hello")
    body = request.value.post_data_json
    assert body["options"] == {
        "temperature": 0.3, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "repeat_penalty": 1.1,
        "seed": 7, "num_predict": 5, "num_ctx": 2048, "stop": ["END", "STOP"],
    }  # fmt: skip
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["think"] is False
    answer = page.get_by_role("article").nth(1)
    expect(answer).to_contain_text("Stopped: token limit reached.")
    expect(answer.get_by_role("button", name="Continue")).to_be_visible()
    page.get_by_role("link", name="New conversation").click()
    expect(settings.get_by_label("System prompt")).to_have_value("")
    settings.get_by_label("Preset").select_option("Brief")
    expect(settings.get_by_label("System prompt")).to_have_value("Be brief.")
    expect(settings.get_by_label("Temperature")).to_have_value("0.3")
    settings.get_by_role("button", name="Delete").click()
    expect(settings.get_by_label("Preset")).not_to_contain_text("Brief")
    settings.press("Escape")
    expect(settings).to_have_count(0)
    expect(page.get_by_role("button", name="Chat settings")).to_be_focused()


def test_an_empty_conversation_invites(server, open_page):
    page = open_chat(open_page, server, "plain")
    field = page.get_by_role("textbox", name="Message")
    box = field.bounding_box()
    assert 0.3 < box["y"] / page.viewport_size["height"] < 0.7
    expect(page.get_by_role("heading", name="What can plain:latest help with?")).to_be_visible()
    suggestions = page.get_by_role("list", name="Suggestions").get_by_role("button")
    expect(suggestions).to_have_count(3)
    suggestions.nth(1).click()
    expect(field).to_have_value(re.compile("Python"))
    expect(field).to_be_focused()
    page.reload()  # what was typed is not lost
    expect(field).to_have_value(re.compile("Python"))
    field.press("Enter")
    expect(suggestions).to_have_count(0)
    expect(page.get_by_role("article").nth(1)).to_contain_text("8 tokens")


def test_a_server_without_models_says_where_they_come_from(tmp_path, open_page):
    with Server(tmp_path) as empty:
        page = open_page(empty, "settings")
        page.route("**/api/tags", lambda route: route.fulfill(json={"models": []}))
        page.goto("about:blank")
        page.goto(f"{empty.url}/ui/#/chat")
        expect(page.get_by_role("heading", name="No models yet")).to_be_visible()
        expect(page.get_by_role("button", name="Compare two models")).to_be_disabled()
        page.get_by_role("link", name="Add one on the Models page").click()
        expect(page.locator("models-page")).to_be_attached()


def test_a_line_has_about_seventy_characters(server, open_page):
    page = open_chat(open_page, server, "prose")
    say(page, "Hello")
    paragraph = page.locator("markdown-text p")
    expect(paragraph).to_have_text(PROSE.strip())  # so it is not drawn again
    height, line = paragraph.evaluate(
        "node => [node.offsetHeight, parseFloat(getComputedStyle(node).lineHeight)]"
    )
    assert 60 < len(PROSE) / round(height / line) < 82


def test_a_phone_shows_everything_and_can_be_used_with_a_thumb(server, open_page):
    page = open_page(server, "chat?model=hostile:latest", viewport={"width": 390, "height": 844})
    say(page, "Hello")
    expect(page.get_by_role("article").nth(1)).to_contain_text(re.compile(r"first token \d"))
    assert find_small(page) == []
    page.get_by_role("button", name="Conversations").click()
    expect(page.get_by_role("link", name="New conversation")).to_be_focused()
    page.get_by_role("button", name="Actions for “Hello”").click()
    expect(page.get_by_role("button", name="Rename")).to_be_visible()
    assert find_small(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="New conversation")).to_be_hidden()
    settings = open_settings(page)
    expect(settings.get_by_label("Temperature")).to_be_visible()
    assert find_small(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


FIND_SMALL = """chat => [
  ...chat.querySelectorAll("a, button, summary, select, input, label.button")]
  .filter((one) => one.checkVisibility({ visibilityProperty: true }))
  .filter((one) => !one.matches(".hidden, markdown-text a"))
  .map((one) => [one.getBoundingClientRect(), one.outerHTML])
  .filter(([{ width, height }]) => height < 39.5 || width < 39.5)
  .map(([, text]) => text)"""


def find_small(page):
    """Return what can be pressed in the chat, and is smaller than a finger."""
    return page.locator("chat-page").evaluate(FIND_SMALL)


def test_a_long_conversation_renders_only_what_changes(server, open_page, tmp_path):
    text = "**Answer**\n\n" + "Words. " * 80
    turns, answers = [], []
    for n in range(150):
        after = [f"answer-{n - 1}"] if n else []
        turn = {"id": f"turn-{n}", "after": after, "at": n, "text": f"Question {n}", "files": []}
        answer = {
            "id": f"answer-{n}", "turn": f"turn-{n}", "pane": 0, "model": "plain:latest", "at": n,
            "saved": n, "state": "done", "error": "",
            "messages": [{"role": "assistant", "content": text, "stats": {"done": True}}],
        }  # fmt: skip
        turns.append(turn)
        answers.append(answer)
    long = {
        "id": "long", "title": "Long", "updated": 1, "models": ["plain:latest"], "system": "",
        "think": "", "tools": "", "turns": turns, "answers": answers, "files": [],
        "head": {"turn": "turn-149", "answers": ["answer-149"]},
    }  # fmt: skip
    path = tmp_path / "long.json"
    path.write_text(json.dumps({"format": 2, "conversations": [long]}))
    page = open_chat(open_page, server, "plain")
    page.get_by_text("Import and export").click()
    page.get_by_label("Import", exact=True).set_input_files(path)
    page.get_by_role("link", name="Long").click()
    expect(page.locator("chat-turn")).to_have_count(150)
    expect(page.get_by_text("Question 149")).to_be_in_viewport()
    page.evaluate("""() => {
      globalThis.rendered = new Set();
      const turn = customElements.get("chat-turn").prototype, template = turn.template;
      turn.template = function () { rendered.add(this); return template.call(this); };
    }""")
    say(page, "One more @tokens=30")
    expect(page.locator("article.assistant").last).to_contain_text("30 tokens")
    expect(page.locator("chat-turn")).to_have_count(151)
    assert (
        page.evaluate("rendered.size") <= 2
    )  # the new turn, and the one that is no longer the last
    expect(page.locator("article.assistant").last).to_be_in_viewport()
    page.locator(".messages").evaluate("log => { log.scrollTop = 0; }")
    expect(page.get_by_text("Question 0")).to_be_in_viewport()
    page.get_by_role("button", name="Newest").click()
    expect(page.locator("article.assistant").last).to_be_in_viewport()


def test_two_models_answer_one_message_side_by_side(server, open_page):
    page = open_chat(open_page, server, "plain")
    page.get_by_role("button", name="Compare two models").click()
    page.get_by_label("Model 2").select_option("hostile:latest")
    say(page, "Hello")
    left, right = page.get_by_role("article").nth(1), page.get_by_role("article").nth(2)
    expect(left).to_contain_text("tok7")
    expect(right).to_contain_text("also bold")
    assert left.bounding_box()["y"] == right.bounding_box()["y"]
    assert left.bounding_box()["x"] < right.bounding_box()["x"]
    right.get_by_role("button", name="Regenerate").click()
    expect(right).to_contain_text("2 of 2")
    expect(left).not_to_contain_text("of 2")
    page.get_by_role("button", name="One model").click()
    say(page, "And you alone?")
    expect(page.get_by_role("article")).to_have_count(5)


def test_what_a_model_writes_can_do_nothing(server, open_page):
    page = open_chat(open_page, server, "hostile")
    say(page, "Hello")
    answer = page.get_by_role("article").nth(1)
    expect(answer).to_contain_text(re.compile(r"first token \d"))
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


def test_what_a_user_writes_can_do_nothing_either(server, open_page):
    hostile = "<img src=x onerror=\"document.title='hacked'\"> {{x}} ${x}"
    page = open_chat(open_page, server, "plain")
    settings = open_settings(page)
    settings.get_by_label("System prompt").fill(hostile)
    settings.get_by_role("button", name="Save as").click()
    settings.get_by_label("Preset name").fill(hostile[:60])
    settings.get_by_role("button", name="Save", exact=True).click()
    expect(settings.get_by_label("Preset")).to_contain_text("<img")
    say(page, hostile)
    expect(page.get_by_role("article").nth(1)).to_contain_text("8 tokens")
    assert list_texts(page) == [hostile]
    expect(page.get_by_role("link", name=hostile[:50])).to_be_visible()
    page.get_by_role("searchbox", name="Search conversations").fill(f"no {hostile}")
    expect(page.get_by_text("No results for")).to_contain_text("<img")
    assert page.locator("chat-page img").count() == 0
    assert page.title() == "Chat · vllama"


def test_everything_can_be_reached_with_the_keyboard(server, open_page):
    page = open_chat(open_page, server, "plain")
    page.get_by_role("textbox", name="Message").focus()
    page.keyboard.type("First")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("line")
    page.keyboard.press("Enter")
    answer = page.get_by_role("article").nth(1)
    expect(answer).to_contain_text("8 tokens")
    assert list_texts(page) == ["First\nline"]

    def go_back_to(name):
        button = page.get_by_role("button", name=name).last
        for _ in range(30):
            if button.evaluate("node => node === document.activeElement"):
                break
            page.keyboard.press("Shift+Tab")
        expect(button).to_be_focused()
        expect(button).to_be_visible()
        page.keyboard.press("Enter")

    go_back_to("Regenerate")
    expect(answer).to_contain_text("2 of 2")
    go_back_to("Edit the message")
    expect(page.get_by_role("textbox", name="Edit the message")).to_be_focused()
    page.keyboard.press("Escape")
    go_back_to("Chat settings")
    expect(page.get_by_label("Preset")).to_be_focused()
    page.keyboard.press("Escape")
    go_back_to("Actions for")
    expect(page.get_by_role("button", name="Rename")).to_be_visible()


def test_thinking_is_folded_and_tools_are_answered_by_the_user(server, open_page):
    page = open_chat(open_page, server, "bare-thinks")
    settings = open_settings(page)
    settings.get_by_label("Tools").fill(json.dumps([TOOL]))
    settings.get_by_label("System prompt").fill("Be brief.")
    settings.get_by_role("button", name="Close").click()
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
    sent = [(one["role"], one["content"]) for one in server.sent("bare-thinks")["messages"]]
    assert ("system", "Be brief.") in sent
    assert ("tool", "It rains.") in sent


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
    page.reload()
    picture = page.get_by_role("article").first.get_by_role("img")
    expect(picture).to_be_visible()
    page.wait_for_function("image => image.naturalWidth === 1", arg=picture.element_handle())


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
    settings = open_settings(page)
    tools, system = settings.get_by_label("Tools"), settings.get_by_label("System prompt")
    tools.fill("[{")
    system.click()
    expect(settings.get_by_role("alert")).to_contain_text("cannot read the tools")
    expect(tools).to_have_attribute("aria-invalid", "true")
    expect(tools).to_have_value("[{")
    expect(system).to_be_focused()
    tools.fill("[]")
    system.click()
    expect(settings.get_by_role("alert")).to_be_empty()


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


def test_an_address_chooses_another_model_while_the_chat_is_shown(server, open_page):
    page = open_chat(open_page, server, "plain")
    page.evaluate("location.hash = '#/chat?model=hostile:latest'")
    field = page.get_by_role("combobox", name="Model", exact=True)
    expect(field).to_have_value("hostile:latest")
