"""The chat's conversations in the browser: no reload, crash, second tab or full disk loses them."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Error, expect

from tests.server_process import Server
from tests.ui.conftest import PUBLIC_NAME
from tests.ui.test_chat_page import list_texts, open_chat, say

pytestmark = pytest.mark.slow

SLOW = "@tokens=2000 @delay=0.05"
"""What the fake engine takes for the length and the pace of its answer."""
BROKEN = "This response is incomplete: its page was closed, and the server no longer has the rest."
FULL = "is out of storage"
FILE = {"id": "1-file", "kind": "image", "name": "dot.png"}
WHOLE = {
    "id": "1-whole",
    "title": "From elsewhere",
    "updated": 1_700_000_000_000,
    "models": ["plain:latest"],
    "turns": [],
    "answers": [],
    "files": [],
}
OPEN_OLD = """() => new Promise((resolve, reject) => {
  const request = indexedDB.open("vllama", 1);
  request.onupgradeneeded = () =>
    request.result.createObjectStore("conversations", { keyPath: "id" });
  request.onerror = () => reject(request.error);
  request.onsuccess = () => resolve(void (globalThis.old = request.result));
})"""
# what a transaction does that finds no room; Chromium's own limit holds for whole machines only
FILL = """() => {
  globalThis.put = IDBObjectStore.prototype.put;
  IDBObjectStore.prototype.put = () => { throw new DOMException("full", "QuotaExceededError"); };
}"""
READ = """name => new Promise((resolve, reject) => {
  const request = indexedDB.open("vllama");
  request.onerror = () => reject(request.error);
  request.onsuccess = () => {
    const all = request.result.transaction(name).objectStore(name).getAll();
    all.onsuccess = () => { request.result.close(); resolve(all.result); };
  };
})"""

SAVE_WHEN_ASKED = """(() => {
  const post = BroadcastChannel.prototype.postMessage;
  BroadcastChannel.prototype.postMessage = function (message) {
    const isFirst = message.kind === "who" && !globalThis.saved;
    if (isFirst) indexedDB.open("vllama").onsuccess = (event) => {
      const transaction = event.target.result.transaction(["answers"], "readwrite");
      const answers = transaction.objectStore("answers");
      const all = answers.getAll();
      all.onsuccess = () => answers.put({ ...all.result[0], saved: Date.now() });
      globalThis.saved = true;
    };
    return post.call(this, message);
  };
})()"""

TELL_OLDER = """title => new Promise((resolve, reject) => {
  const request = indexedDB.open("vllama");
  request.onerror = () => reject(request.error);
  request.onsuccess = () => {
    const transaction = request.result.transaction(["conversations", "answers"], "readwrite");
    const conversations = transaction.objectStore("conversations");
    const all = conversations.getAll();
    const answers = transaction.objectStore("answers").getAll();
    answers.onsuccess = () => {
      const [now] = all.result;
      const [first] = answers.result.toSorted((a, b) => a.at - b.at);
      const head = { turn: first.turn, answers: [first.id] };
      conversations.put({ ...now, title, head, updated: now.created });
      transaction.oncomplete = () => {
        request.result.close();
        const message = { kind: "changed", conversation: now.id, turns: [], answers: [] };
        new BroadcastChannel("vllama-chat").postMessage(message);
        resolve();
      };
    };
  };
})"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("store"), "--hang-timeout", "0") as running:
        running.model("plain")
        yield running


def open_beside(page, address=None):
    """Open the same address, or another one, in a second tab of the same browser."""
    beside = page.context.new_page()
    beside.goto(address or page.url)
    return beside


def finish(page, nth=-1):
    """Wait for the end of an answer."""
    last = page.locator("article.assistant").nth(nth)
    expect(last).to_contain_text(re.compile(r"\d tokens(?!/)"))
    return last


def list_all_texts(page):
    """Return what the user said, on all branches of all conversations that are stored."""
    return sorted(turn["text"] for turn in page.evaluate(READ, "turns"))


def lose_streams(context):
    """Let the server have no responses any more, as after its restart."""
    context.route("**/api/streams/*", lambda route: route.fulfill(status=404, body="{}"))


def test_a_reload_during_an_answer_keeps_what_was_read(server, open_page):
    page = open_chat(open_page, server, "plain")
    lose_streams(page.context)
    say(page, f"Tell a long story {SLOW}")
    answer = page.locator("article.assistant")
    expect(answer).to_contain_text("tok5 ")
    assert "#/chat/" in page.url
    page.reload()
    expect(answer).to_contain_text("tok5 ")
    expect(answer).to_contain_text(BROKEN)
    with page.expect_request("**/api/chat") as request:
        answer.get_by_role("button", name="Continue").click()
    last = request.value.post_data_json["messages"][-1]
    assert last["role"] == "assistant" and "tok5" in last["content"]
    page.get_by_role("button", name="Stop").click()
    expect(answer).to_contain_text("Stopped.")


def crash_during_a_response(open_page, server):
    """Return the address of the conversation, and another tab."""
    page = open_chat(open_page, server, "plain")
    lose_streams(page.context)
    say(page, f"Tell a long story {SLOW}")
    expect(page.locator("article.assistant")).to_contain_text("tok40 ")
    address = page.url
    with pytest.raises(Error):
        page.goto("chrome://crash")
    return address, page.context.new_page()


def test_a_crash_of_the_tab_keeps_what_was_read(server, open_page):
    address, after = crash_during_a_response(open_page, server)
    after.goto(address)
    answer = after.locator("article.assistant")
    expect(answer).to_contain_text("tok5 ")
    expect(answer).to_contain_text(BROKEN)
    expect(answer.get_by_role("button", name="Continue")).to_be_visible()


def test_the_last_save_of_a_closed_tab_may_come_late(server, open_page):
    """A page may read an answer before the last save of the tab that wrote it."""
    address, after = crash_during_a_response(open_page, server)
    after.add_init_script(SAVE_WHEN_ASKED)
    after.goto(address)
    expect(after.locator("article.assistant")).to_contain_text(BROKEN)
    assert after.evaluate("globalThis.saved")


def test_two_tabs_show_each_others_messages(server, open_page):
    page = open_chat(open_page, server, "plain")
    say(page, "First")
    finish(page)
    beside = open_beside(page)
    finish(beside)
    say(page, "Second")
    finish(page)
    expect(beside.locator("article.user")).to_have_count(2)
    finish(beside)
    assert list_texts(beside) == ["First", "Second"]
    say(beside, f"Third {SLOW}")
    written = page.locator("article.assistant").nth(2)
    expect(written).to_contain_text("Being generated in another tab")
    page.locator("article.assistant").nth(2).get_by_role("button", name="Stop").press("Enter")
    expect(beside.locator("article.assistant").nth(2)).to_contain_text("Stopped.")
    expect(page.locator("article.assistant").nth(2)).to_contain_text("Stopped.")


def test_two_tabs_that_write_at_once_lose_nothing(server, open_page):
    page = open_chat(open_page, server, "plain")
    say(page, "First")
    finish(page)
    beside = open_beside(page)
    finish(beside)
    beside.get_by_role("textbox", name="Message").press_sequentially("Third")
    say(page, "Second")
    finish(page)
    expect(beside.locator("article.user")).to_have_count(1)  # its own text is being written
    beside.get_by_role("textbox", name="Message").press("Enter")
    finish(beside)
    expect(beside.get_by_text("2 of 2")).to_be_visible()
    beside.get_by_role("button", name="Earlier version of the message").click()
    expect(beside.locator("article.user .text").nth(1)).to_have_text("Second")
    assert list_all_texts(beside) == ["First", "Second", "Third"]


def test_a_record_from_before_the_last_message_does_not_hide_it(server, open_page):
    """Another tab's change may be read before what was said here is stored."""
    page = open_chat(open_page, server, "plain")
    say(page, "First")
    finish(page)
    say(page, "Second")
    finish(page, 1)
    for title in ("Older", "Oldest"):
        page.evaluate(TELL_OLDER, title)
        expect(page.get_by_role("link", name=title, exact=True)).to_be_visible()
    assert list_texts(page) == ["First", "Second"]


def test_a_conversation_is_listed_and_deleted_in_all_tabs(server, open_page):
    page = open_chat(open_page, server, "plain")
    beside = open_beside(page)
    say(page, f"Tell a long story {SLOW}")
    link = beside.get_by_role("link", name="Tell a long story")
    link.click()
    expect(beside.locator("article.assistant")).to_contain_text("tok")
    beside.get_by_role("button", name="Actions for").click()
    beside.get_by_role("button", name="Delete", exact=True).click()
    beside.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(link).to_have_count(0)
    expect(page.get_by_text("was deleted in another tab")).to_be_visible()
    expect(page.locator("article")).to_have_count(0)
    expect(page.get_by_role("link", name="Tell a long story")).to_have_count(0)
    for name in ("conversations", "turns", "answers"):
        assert page.evaluate(READ, name) == []


def test_a_full_disk_is_said_and_nothing_that_was_said_is_lost(server, open_page):
    page = open_chat(open_page, server, "plain")
    say(page, "First")
    finish(page)
    page.evaluate(FILL)
    say(page, "Second")
    finish(page, 1)
    expect(page.locator(".trouble")).to_contain_text(FULL)
    assert list_texts(page) == ["First", "Second"]
    page.evaluate("() => { IDBObjectStore.prototype.put = globalThis.put; }")
    say(page, "Third")
    finish(page, 2)
    expect(page.locator(".trouble")).to_have_count(0)
    page.reload()
    finish(page, 2)
    assert list_texts(page) == ["First", "Second", "Third"]


def test_a_reload_keeps_what_was_not_stored_yet(server, open_page, tmp_path):
    notes = tmp_path / "notes.md"
    notes.write_text("Notes.")
    page = open_chat(open_page, server, "plain")
    say(page, "First")
    finish(page)
    page.evaluate(FILL)
    page.get_by_label("Attach").set_input_files(notes)
    expect(page.locator("message-form")).to_contain_text("notes.md")
    say(page, "Second")
    finish(page, 1)
    page.reload()
    finish(page, 1)
    assert list_texts(page) == ["First", "Second"]
    expect(page.locator("article.user").last).to_contain_text("notes.md")
    expect(page.locator(".trouble")).to_have_count(0)


def test_an_earlier_version_of_the_page_in_another_tab_is_named(server, open_page):
    page = open_page(server, "models")
    page.goto(f"{server.url}/ui/icon.svg")
    page.evaluate(OPEN_OLD)
    beside = open_beside(page, f"{server.url}/ui/#/chat?model=plain:latest")
    beside.on("pageerror", lambda error: pytest.fail(str(error)))
    expect(beside.locator(".trouble")).to_contain_text("an earlier version of this page")
    page.close()
    expect(beside.locator(".trouble")).to_have_count(0)
    say(beside, "First")
    finish(beside)
    beside.reload()
    finish(beside)


def test_a_server_that_ends_during_an_answer_leaves_what_it_said(open_page, tmp_path):
    with Server(tmp_path) as server:
        server.model("plain")
        page = open_chat(open_page, server, "plain")
        say(page, f"Tell a long story {SLOW}")
        answer = page.locator("article.assistant")
        expect(answer).to_contain_text("tok5 ")
        server.process.kill()
        expect(answer.get_by_role("alert")).to_be_visible()
        expect(answer).to_contain_text("tok5 ")
        expect(answer.get_by_role("button", name="Continue")).to_be_visible()


def test_plain_http_on_a_network_keeps_conversations_too(browser, tmp_path):
    with Server(tmp_path, "--host", "0.0.0.0", "--api-key", "key-of-the-test") as server:
        server.model("plain")
        page = browser.new_page()
        page.goto(f"http://{PUBLIC_NAME}:{server.port}/ui/#/chat?model=plain:latest")
        page.get_by_role("dialog").get_by_label("Key").fill("key-of-the-test")
        page.keyboard.press("Enter")
        assert not page.evaluate("isSecureContext")
        say(page, "First")
        finish(page)
        page.reload()
        finish(page)
        assert list_texts(page) == ["First"]
        page.close()


def test_an_export_can_be_imported(server, open_page, tmp_path):
    page = open_chat(open_page, server, "plain")
    say(page, "First")
    finish(page)
    page.locator("article.assistant").get_by_role("button", name="Regenerate").click()
    expect(page.get_by_text("2 of 2")).to_be_visible()
    finish(page)
    page.get_by_role("button", name="Actions for").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="JSON").click()
    file = tmp_path / "export.json"
    download.value.save_as(file)
    other = open_page(server, "chat")
    other.get_by_text("Import and export").click()
    other.locator("input[accept='.json']").set_input_files(str(file))
    other.get_by_role("link", name="First", exact=True).click()
    expect(other.get_by_text("2 of 2")).to_be_visible()
    other.locator("input[accept='.json']").set_input_files(__file__)
    expect(
        other.get_by_role("alert").filter(has_text="it is not a conversation export")
    ).to_be_visible()


def import_file(page, file):
    """Import a file in the chat of a page."""
    details = page.locator("conversation-list details.all")
    if details.get_attribute("open") is None:
        details.locator("summary").click()
    page.locator("input[accept='.json']").set_input_files(str(file))


def test_an_import_adds_what_is_newer(server, open_page, tmp_path):
    page = open_chat(open_page, server, "plain")
    say(page, "First")
    finish(page)
    page.get_by_role("button", name="Actions for").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="JSON").click()
    older, newer = tmp_path / "older.json", tmp_path / "newer.json"
    download.value.save_as(older)
    other = open_page(server, "chat")
    import_file(other, older)
    expect(other.get_by_text("1 conversation imported.")).to_be_visible()
    other.get_by_role("link", name="First", exact=True).click()
    say(other, "Second")
    finish(other, 1)
    other.get_by_role("button", name="Actions for").click()
    with other.expect_download() as download:
        other.get_by_role("button", name="JSON").click()
    download.value.save_as(newer)
    import_file(page, newer)
    expect(page.get_by_text("1 conversation updated.")).to_be_visible()
    assert list_texts(page) == ["First", "Second"]
    import_file(page, older)
    expect(page.get_by_text("All conversations in the file already exist.")).to_be_visible()
    page.reload()
    finish(page, 1)
    assert list_texts(page) == ["First", "Second"]


@pytest.mark.parametrize(
    ("read", "told"),
    [
        ({"format": 2, "conversations": [{"id": "x", "title": "t"}]}, "1 of 1 is damaged"),
        ({"format": 2, "conversations": [None]}, "1 of 1 is damaged"),
        ({"format": 2, "conversations": [{**WHOLE, "tools": "nonsense"}]}, "1 of 1 is damaged"),
        ({"format": 2, "conversations": [WHOLE, {**WHOLE, "id": 7}]}, "2 of 2 is damaged"),
        (
            {"format": 2, "conversations": [{**WHOLE, "files": [{**FILE, "data": "data:,%"}]}]},
            "1 of 1 is damaged",
        ),
        ({"conversations": [WHOLE]}, "it is not a conversation export"),
        ({"format": 3, "conversations": []}, "a newer vllama"),
        ([], "it is not a conversation export"),
    ],
)
def test_an_import_is_refused_as_a_whole_and_with_its_own_reason(
    server, open_page, tmp_path, read, told
):
    page = open_chat(open_page, server, "plain")
    file = tmp_path / "damaged.json"
    file.write_text(json.dumps(read))
    import_file(page, file)
    refusal = page.get_by_role("alert").filter(has_text="cannot import “damaged.json”")
    expect(refusal).to_contain_text(told)
    expect(page.locator("conversation-list li")).to_have_count(0)
