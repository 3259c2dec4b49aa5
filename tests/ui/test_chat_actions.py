"""Messages deleted and responses edited in the chat, and the shortcuts of all pages."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from tests.server_process import Server
from tests.ui.test_accessibility import check
from tests.ui.test_chat_page import list_texts, open_chat, say

pytestmark = pytest.mark.slow

KEPT = """async () => {
  const main = document.querySelector('script[type=module]').src;
  const { readConversation } = await import(main.replace('main.js', 'chat/store.js'));
  const { turns, answers } = await readConversation(location.hash.split('/').at(-1));
  return [turns.map(({ text }) => text).sort(), answers.length];
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("actions"), "--hang-timeout", "0") as running:
        running.model("plain")
        running.model("other", "--say", json.dumps("Another voice."))
        running.model("stalls", "--stall-after", "2")
        yield running


def say_all(page, *texts):
    """Send messages, each after the response to the one before."""
    for text in texts:
        say(page, text)
        expect(page.get_by_role("article").last).to_contain_text("8 tokens")


def delete(page, text):
    message = page.locator("article.user").filter(has_text=text)
    message.get_by_role("button", name="Delete the message").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()


def test_a_deleted_message_takes_what_follows_and_leaves_its_siblings(server, open_page):
    page = open_chat(open_page, server, "plain")
    say_all(page, "First", "Second", "Third")
    second = page.locator("article.user").nth(1)
    second.get_by_role("button", name="Edit").click()
    second.get_by_role("textbox").fill("Instead")
    second.get_by_role("textbox").press("Enter")
    expect(second).to_contain_text("2 of 2")
    expect(page.get_by_role("article").last).to_contain_text("8 tokens")
    second.get_by_role("button", name="Earlier version").click()
    expect(page.locator("article.user")).to_have_count(3)
    twin = page.context.new_page()
    twin.goto(page.url)
    expect(twin.locator("article.user")).to_have_count(3)
    second.get_by_role("button", name="Delete the message").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.locator("article.user")).to_have_count(3)
    delete(page, "Second")
    for one in (page, twin):
        expect(one.locator("article.user").nth(1)).to_contain_text("Instead")
        assert list_texts(one) == ["First", "Instead"]
        expect(one.get_by_text("of 2", exact=False)).to_have_count(0)
    assert page.evaluate(KEPT) == [["First", "Instead"], 2]
    page.reload()
    expect(page.locator("article.user")).to_have_count(2)
    delete(page, "Instead")
    expect(page.locator("article.user")).to_have_count(1)
    say_all(page, "Afterwards")
    assert [one["content"] for one in server.sent("plain")["messages"]][::2] == [
        "First",
        "Afterwards",
    ]
    delete(page, "First")  # the only beginning: the conversation goes with it
    expect(page.locator("article")).to_have_count(0)
    expect(page.get_by_role("button", name="Actions for “First”")).to_have_count(0)


def test_a_message_is_deleted_while_its_response_is_written(server, open_page):
    page = open_chat(open_page, server, "stalls")
    say(page, "Begin")
    expect(page.get_by_role("article").last).to_contain_text("tok0")
    page.get_by_role("button", name="Stop").click()
    say(page, "More")
    expect(page.get_by_role("article").last).to_contain_text("tok0")
    delete(page, "More")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator("article.user")).to_have_count(1)
    page.wait_for_timeout(1500)  # it would have been saved by now
    assert page.evaluate(KEPT) == [["Begin"], 1]


def test_a_response_is_edited_and_the_model_reads_the_edited_one(server, open_page):
    page = open_chat(open_page, server, "plain")
    say_all(page, "First")
    answer = page.get_by_role("article").nth(1)
    answer.get_by_role("button", name="Edit the response").click()
    field = answer.get_by_role("textbox", name="Edit the response")
    expect(field).to_be_focused()
    field.press("Escape")
    expect(answer.get_by_role("button", name="Edit the response")).to_be_focused()
    answer.get_by_role("button", name="Edit the response").click()
    field.fill("My own **words**")
    check(page)
    answer.get_by_role("button", name="Save").click()
    expect(answer).to_contain_text("2 of 2")
    expect(answer.locator("strong")).to_have_text("words")
    say_all(page, "Second")
    sent = [one["content"] for one in server.sent("plain")["messages"]]
    assert sent == ["First", "My own **words**", "Second"]
    page.reload()
    expect(answer).to_contain_text("My own words")
    answer.get_by_role("button", name="Earlier version").click()
    expect(answer).to_contain_text("tok0")


def test_another_model_regenerates_one_response(server, open_page):
    page = open_chat(open_page, server, "plain")
    say_all(page, "Hello")
    answer = page.get_by_role("article").nth(1)
    answer.get_by_role("button", name="Use another model").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Model").select_option("other:latest")
    check(page)
    dialog.get_by_role("button", name="Regenerate").click()
    expect(answer).to_contain_text("Another voice.")
    expect(answer).to_contain_text("2 of 2")
    expect(answer.get_by_role("heading")).to_have_text("other:latest")
    chosen = page.get_by_role("combobox", name="Model", exact=True)
    expect(chosen).to_have_value("plain:latest")


def test_shortcuts_work_on_all_pages_and_a_sheet_lists_them(server, open_page):
    page = open_page(server, "chat?model=plain:latest")
    say_all(page, "A question")
    page.get_by_role("link", name="Graphs").click()
    expect(page.get_by_role("heading", name="Graphs")).to_be_visible()
    page.keyboard.press("Control+k")
    search = page.get_by_role("searchbox", name="Search conversations")
    expect(search).to_be_focused()
    page.keyboard.press("?")  # text, in a field
    expect(search).to_have_value("?")
    page.keyboard.press("Control+Shift+O")
    expect(page.locator("article")).to_have_count(0)
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.get_by_role("link", name="Graphs").click()
    expect(page.get_by_role("heading", name="Graphs")).to_be_visible()
    page.keyboard.press("?")
    sheet = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(sheet.get_by_role("row").filter(has_text="Ctrl+K")).to_contain_text("Search")
    check(page)
    page.keyboard.press("Escape")
    expect(sheet).to_have_count(0)
    page.keyboard.press("Control+Shift+O")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()


def test_escape_stops_a_response_from_anywhere_in_the_chat(server, open_page):
    page = open_chat(open_page, server, "stalls")
    say(page, "Hello")
    answer = page.get_by_role("article").nth(1)
    expect(answer).to_contain_text("tok0")
    page.get_by_role("region", name="Messages").focus()
    page.keyboard.press("Escape")
    expect(answer).to_contain_text("Stopped.")


def test_a_phone_finds_the_search_by_shortcut(server, open_page):
    page = open_page(server, "chat?model=plain:latest", viewport={"width": 390, "height": 844})
    say_all(page, "A question")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("searchbox", name="Search conversations")).to_be_focused()


def test_a_mac_is_shown_its_own_keys(server, open_page):
    page = open_page(server, "about")
    page.add_init_script("Object.defineProperty(navigator, 'platform', { value: 'MacIntel' })")
    page.reload()
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("⌘ K")
    page.keyboard.press("Escape")
    page.keyboard.press("Meta+Shift+O")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()


def test_the_page_can_be_installed(server, open_page):
    page = open_page(server)
    session = page.context.new_cdp_session(page)
    found = session.send("Page.getAppManifest")
    assert found["errors"] == []
    manifest = json.loads(found["data"])
    assert (manifest["name"], manifest["display"]) == ("vllama", "standalone")
    assert found["manifest"]["startUrl"] == f"{server.url}/ui/"
    assert found["manifest"]["scope"] == f"{server.url}/ui/"
    refused = session.send("Page.getInstallabilityErrors")["installabilityErrors"]
    assert [one["errorId"] for one in refused if one["errorId"] != "in-incognito"] == []
