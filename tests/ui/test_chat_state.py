"""The state of the chat: what it shows is in force, and stays where one leaves it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.routes.test_families import TEMPLATE, THOUGHT, TOOL
from tests.server_process import Server
from tests.ui.test_chat_page import PIXEL, list_texts, open_chat, open_settings, say

pytestmark = pytest.mark.slow

SLOW = "@tokens=2000 @delay=0.05"
GO_AND_DRAW = """() => {
  location.hash = document.querySelector("conversation-list li a").hash;
  document.querySelector("chat-page").rendered();
}"""
SECOND_CALL = """async () => {
  const main = document.querySelector("script[src$='main.js']").src;
  const load = (name) => import(main.replace("main.js", name));
  const { answerTemplate } = await load("chat/answer-view.js");
  const { render } = await load("vendor/lit-html/lit-html.js");
  const box = document.createElement("div");
  const call = {role: "assistant", tool_calls: [{function: {name: "weather", arguments: {}}}]};
  const show = (...messages) => {
    const answer = {id: "a", model: "m", messages, state: "done", error: ""};
    render(answerTemplate(answer, {versions: ["a"], isLast: true}), box);
    return box.querySelector("textarea");
  };
  show(call).value = "It rains.";
  return show(call, {role: "tool", tool_name: "weather", content: "It rains."}, call).value;
}"""
ARABIC = "مرحبا بالعالم"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("state"), "--hang-timeout", "0") as running:
        running.model("plain")
        running.model("other")
        running.model("arabic", "--say", json.dumps(f"{ARABIC}\n\n```\nx = 1\n```\n"))
        running.model("bare-thinks", "--say", json.dumps(THOUGHT), template=TEMPLATE)
        yield running


def save_preset(page, name, prompt):
    """Save a preset with a system prompt; return the drawer."""
    settings = open_settings(page)
    settings.get_by_label("System prompt").fill(prompt)
    settings.get_by_role("button", name="Save as").click()
    settings.get_by_label("Preset name").fill(name)
    settings.get_by_role("button", name="Save", exact=True).click()
    expect(read_choice(settings)).to_have_text(name)
    return settings


def read_choice(settings):
    """Return the option of the preset that is shown."""
    return settings.get_by_label("Preset").locator("option:checked")


def wait_for_end(page):
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator("article.assistant").last).to_contain_text("tok7")


def paste(page, text):
    """Paste a text into the composer, as Ctrl+V would."""
    page.get_by_role("textbox", name="Message").evaluate(
        """(area, text) => {
          const clipboardData = new DataTransfer();
          clipboardData.setData("text/plain", text);
          const event = {clipboardData, bubbles: true, cancelable: true};
          area.dispatchEvent(new ClipboardEvent("paste", event));
        }""",
        text,
    )


def sent_by(page, act):
    """Return the body of the chat that `act` sends."""
    with page.expect_request("**/api/chat") as request:
        act()
    return request.value.post_data_json


# -- what is shown is what is in force


def test_the_preset_that_is_shown_is_the_one_that_is_sent(server, open_page):
    page = open_chat(open_page, server, "plain")
    settings = save_preset(page, "pirate", "Pirate.")
    system = settings.get_by_label("System prompt")
    page.get_by_role("link", name="New conversation").click()
    expect(read_choice(settings)).to_have_text("none")
    expect(system).to_have_value("")
    body = sent_by(page, lambda: say(page, "First"))
    assert [one["role"] for one in body["messages"]] == ["user"]
    wait_for_end(page)
    settings.get_by_label("Preset").select_option("pirate")
    expect(system).to_have_value("Pirate.")
    body = sent_by(page, lambda: say(page, "Second"))
    assert body["messages"][0] == {"role": "system", "content": "Pirate."}
    wait_for_end(page)
    settings.get_by_label("Temperature").fill("0.5")
    system.click()
    expect(read_choice(settings)).to_have_text("none")  # it would send something else
    settings.get_by_label("Temperature").fill("")
    system.click()
    expect(read_choice(settings)).to_have_text("pirate")
    settings.get_by_label("Preset").select_option("none")
    expect(system).to_have_value("")
    page.reload()
    expect(page.locator("article.user")).to_have_count(2)
    assert "system" not in str(sent_by(page, lambda: say(page, "Third"))["messages"])


def test_an_old_conversation_does_not_show_the_preset_of_another(server, open_page):
    page = open_chat(open_page, server, "plain")
    say(page, "Without")
    wait_for_end(page)
    page.get_by_role("link", name="New conversation").click()
    settings = save_preset(page, "poet", "In verse.")
    page.get_by_role("link", name="Without").click()
    expect(read_choice(settings)).to_have_text("none")
    expect(settings.get_by_label("System prompt")).to_have_value("")


def test_an_address_that_is_not_opened_yet_stays(server, open_page):
    """News of the server may be drawn between a click on a link and the event that tells of it."""
    page = open_chat(open_page, server, "plain")
    say(page, "Without")
    wait_for_end(page)
    page.get_by_role("link", name="New conversation").click()
    expect(page.locator("article")).to_have_count(0)
    page.evaluate(GO_AND_DRAW)
    expect(page.locator("article.user")).to_contain_text("Without")


def test_tools_that_cannot_be_read_do_not_go_along_to_a_new_conversation(server, open_page):
    page = open_chat(open_page, server, "plain")
    settings = open_settings(page)
    tools = settings.get_by_label("Tools")
    tools.fill("[{")
    settings.get_by_label("System prompt").click()
    expect(settings.get_by_role("alert")).to_contain_text("cannot read the tools")
    page.get_by_role("link", name="New conversation").click()
    expect(settings.get_by_role("alert")).to_be_empty()
    expect(tools).to_have_value("")


def test_the_form_of_a_second_tool_call_is_empty(server, open_page):
    page = open_chat(open_page, server, "bare-thinks")
    open_settings(page).get_by_label("Tools").fill(json.dumps([TOOL]))
    page.get_by_role("button", name="Close the settings").click()
    say(page, "Weather?")
    answer = page.locator("article.assistant")
    result = answer.get_by_label("Result of weather")
    result.fill("It rains.")
    answer.get_by_role("button", name="Send the results").click()
    expect(answer.get_by_text("Calls weather")).to_have_count(2)
    expect(result).to_have_value("")
    assert page.evaluate(SECOND_CALL) == ""  # however fast it comes


# -- "Chat" comes back where one was


def test_the_link_chat_comes_back_where_one_was(server, open_page):
    page = open_chat(open_page, server, "plain")
    say(page, f"Tell a story {SLOW}")
    expect(page.locator("article.assistant")).to_contain_text("tok5")
    field = page.get_by_role("textbox", name="Message")
    field.fill("And then")
    address = page.url
    page.get_by_role("link", name="Activity").click()
    expect(page.locator("activity-page")).to_contain_text("running")
    page.get_by_role("link", name="Chat", exact=True).click()
    expect(page.locator("article.user")).to_contain_text("Tell a story")
    expect(field).to_have_value("And then")
    expect(page).to_have_url(address)
    expect(page.locator("article.assistant")).to_contain_text("tok9")  # it has gone on
    expect(page.locator("article.assistant .stats")).to_have_text(re.compile(r"^[\d.,]+ tokens/s$"))
    field.press("Enter")
    expect(page.locator("message-form")).to_contain_text("still being generated")
    expect(field).to_have_value("And then")
    page.get_by_role("button", name="Stop").click()


def test_the_link_chat_comes_back_to_a_conversation_that_has_not_begun(server, open_page, tmp_path):
    picture = tmp_path / "pixel.png"
    picture.write_bytes(PIXEL)
    page = open_chat(open_page, server, "plain")
    open_settings(page).get_by_label("System prompt").fill("Brief.")
    model = page.get_by_role("combobox", name="Model", exact=True)
    model.select_option("other:latest")
    page.get_by_label("Attach").set_input_files(picture)
    expect(page.get_by_role("img", name="image to send")).to_be_visible()
    page.get_by_role("link", name="Models", exact=True).click()
    page.get_by_role("link", name="Chat", exact=True).click()
    expect(model).to_have_value("other:latest")
    expect(page.get_by_role("img", name="image to send")).to_be_visible()
    body = sent_by(page, lambda: say(page, "Hello"))
    assert body["messages"][0]["content"] == "Brief."
    assert body["messages"][1]["images"]


def test_files_stay_with_the_conversation_that_they_were_attached_to(server, open_page, tmp_path):
    notes = tmp_path / "notes.md"
    notes.write_text("Notes.")
    page = open_chat(open_page, server, "plain")
    say(page, "First")
    wait_for_end(page)
    form = page.locator("message-form")
    page.get_by_label("Attach").set_input_files(notes)
    expect(form).to_contain_text("notes.md")
    page.get_by_role("link", name="New conversation").click()
    expect(form).not_to_contain_text("notes.md")
    page.get_by_role("link", name="First").click()
    expect(form).to_contain_text("notes.md")
    form.get_by_role("button", name="Remove notes.md").click()
    expect(form).not_to_contain_text("notes.md")


def test_a_draft_stays_also_where_the_browser_has_no_room(server, open_page):
    page = open_chat(open_page, server, "plain")
    full = "Storage.prototype.setItem = function () { throw new DOMException('full'); }"
    page.evaluate(f"() => {{ {full}; }}")
    field = page.get_by_role("textbox", name="Message")
    field.fill("Words")
    page.get_by_role("link", name="Models", exact=True).click()
    page.get_by_role("link", name="Chat", exact=True).click()
    expect(field).to_have_value("Words")


def test_markdown_has_the_files_and_the_results_of_tools(server, open_page, tmp_path):
    notes = tmp_path / "notes.md"
    notes.write_text("It is warm.")
    page = open_chat(open_page, server, "bare-thinks")
    open_settings(page).get_by_label("Tools").fill(json.dumps([TOOL]))
    page.get_by_role("button", name="Close the settings").click()
    page.get_by_label("Attach").set_input_files(notes)
    expect(page.locator("message-form")).to_contain_text("notes.md")
    say(page, "Weather?")
    answer = page.locator("article.assistant")
    answer.get_by_label("Result of weather").fill("It rains.")
    answer.get_by_role("button", name="Send the results").click()
    expect(answer.get_by_text("Calls weather")).to_have_count(2)
    page.get_by_role("button", name="Actions for").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Markdown").click()
    text = Path(download.value.path()).read_text()
    assert "Weather?\n\nnotes.md:\n```\nIt is warm.\n```" in text
    assert "Calls weather:\n```\n{" in text
    assert "Result of weather:\n```\nIt rains.\n```" in text


# -- long texts


def test_a_long_paste_becomes_a_file(server, open_page):
    page = open_chat(open_page, server, "plain")
    form = page.locator("message-form")
    paste(page, "line of text\n" * 10_000)
    expect(form).to_contain_text("pasted.txt")
    paste(page, "x" * 5000)
    expect(form).to_contain_text("pasted-2.txt")
    expect(page.get_by_role("textbox", name="Message")).to_have_value("")
    body = sent_by(page, lambda: say(page, "Sum it up"))
    assert body["messages"][0]["content"].startswith(
        "Sum it up\n\npasted.txt:\n```\nline of text\n"
    )
    wait_for_end(page)
    assert page.locator(".column").bounding_box()["height"] < 1500


def test_a_long_message_is_folded_and_its_code_is_set_as_code(server, open_page):
    page = open_chat(open_page, server, "plain")
    page.get_by_role("textbox", name="Message").fill("Why?\n```py\nx  =  1\n```\n" + "word " * 2000)
    page.get_by_role("button", name="Send").click()
    wait_for_end(page)
    said = page.locator("article.user .text")
    expect(said.locator("pre")).to_have_text("x  =  1")
    assert said.bounding_box()["height"] < 300
    page.get_by_role("button", name="Show all").click()
    expect(page.get_by_role("button", name="Show less")).to_be_visible()
    assert said.bounding_box()["height"] > 300


def test_a_title_ends_with_a_whole_character(server, open_page):
    page = open_chat(open_page, server, "plain")
    say(page, "a" * 59 + "😀😀")
    expect(page.get_by_role("link", name="a" * 59 + "😀", exact=True)).to_be_visible()


# -- places


def test_a_notice_moves_nothing_and_covers_nothing(server, open_page):
    page = open_chat(open_page, server, "plain")
    say(page, "Hello")
    wait_for_end(page)
    for size in (
        {"width": 390, "height": 844},
        {"width": 800, "height": 600},
        {"width": 1280, "height": 800},
    ):
        page.set_viewport_size(size)
        bar, copy = (
            page.locator(".chat .bar").first,
            page.get_by_role("button", name="Copy the response"),
        )
        before = bar.bounding_box()
        copy.click()
        notice = page.locator(".notice:visible")
        expect(notice).to_have_text("Response copied. ✕", use_inner_text=True)
        assert bar.bounding_box() == before
        box, main = notice.bounding_box(), page.get_by_role("main").bounding_box()
        assert box["y"] + box["height"] <= main["y"]
        last = page.get_by_role("navigation", name="Pages").get_by_role("link").last.bounding_box()
        assert size["width"] < 800 or box["x"] >= last["x"] + last["width"]
        notice.get_by_role("button", name="Dismiss").click()
        expect(notice).to_have_count(0)
        live = page.get_by_text("Live", exact=True).bounding_box()
        assert live["x"] + live["width"] <= size["width"]
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


@pytest.mark.parametrize("size", [(390, 430), (844, 390), (640, 430), (320, 300)])
def test_an_empty_chat_on_a_low_screen_covers_nothing(server, open_page, size):
    viewport = dict(zip(("width", "height"), size, strict=True))
    page = open_page(server, "chat?model=plain:latest", viewport=viewport)
    greeting = page.get_by_role("heading", name="What can plain:latest help with?")
    field = page.get_by_role("textbox", name="Message")
    expect(field).to_be_visible()
    bar = page.locator(".chat .bar").bounding_box()
    assert greeting.bounding_box()["y"] >= bar["y"] + bar["height"]
    field.click()
    page.get_by_role("list", name="Suggestions").get_by_role("button").last.click()
    expect(field).to_be_focused()
    expect(field).to_be_in_viewport()


def test_text_from_right_to_left_begins_at_the_right(server, open_page):
    page = open_chat(open_page, server, "arabic")
    field = page.get_by_role("textbox", name="Message")
    field.fill(ARABIC)
    direction = "node => getComputedStyle(node).direction"
    assert field.evaluate(direction) == "rtl"
    field.press("Enter")
    paragraph = page.locator("markdown-text p")
    expect(paragraph).to_have_text(ARABIC)
    assert paragraph.evaluate(direction) == "rtl"
    assert page.locator("article.user .text").evaluate(direction) == "rtl"
    assert page.locator("markdown-text pre").evaluate(direction) == "ltr"
    title = page.get_by_role("link", name=ARABIC, exact=True)
    assert title.evaluate(direction) == "rtl"
    assert list_texts(page) == [ARABIC]
    open_settings(page).get_by_label("System prompt").fill(ARABIC)
    assert page.get_by_label("System prompt").evaluate(direction) == "rtl"
