"""Responses outlive their page: a reload takes them up again, other devices read and stop them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.server_process import Server
from tests.ui.test_chat_page import say
from tests.ui.test_chat_store import SLOW, finish

pytestmark = pytest.mark.slow

KEY = "sk-of-both-devices"
TOKENS = 60
ASKED = f"Tell @tokens={TOKENS} @delay=0.05"
WHOLE = re.compile(r"\s+".join(f"tok{number}" for number in range(TOKENS)) + r"\s")
AUTHORIZED = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    options = ("--hang-timeout", "0", "--api-key", KEY)
    with Server(tmp_path_factory.mktemp("streams"), *options) as running:
        for name in ("plain", "asked-once", "stopped", "late"):
            running.model(name, *(("--ready-after", "2") if name == "late" else ()))
        yield running


def open_chat(open_page, server, model):
    """Return a page with a new conversation of a browser of its own, which has the key."""
    page = open_page(server, f"chat?model={model}:latest")
    page.get_by_role("dialog").get_by_label("Key").fill(KEY)
    page.keyboard.press("Enter")
    expect(page.get_by_role("combobox", name="Model", exact=True)).to_have_value(f"{model}:latest")
    return page


def note_chats(page):
    """Return a list to which each chat that the page sends is added."""
    sent = []
    page.on("request", lambda one: sent.append(one) if one.url.endswith("/api/chat") else None)
    return sent


@pytest.mark.parametrize(("model", "begun"), [("asked-once", "tok5 "), ("late", "Loading")])
def test_a_reload_takes_a_response_up_again(server, open_page, model, begun):
    page = open_chat(open_page, server, model)
    sent = note_chats(page)
    say(page, ASKED)
    answer = page.locator("article.assistant")
    expect(answer).to_contain_text(begun)
    page.reload()
    expect(answer).to_have_attribute("aria-busy", "true")
    expect(answer).to_contain_text(WHOLE)
    expect(finish(page)).to_contain_text(f"{TOKENS} tokens")
    assert answer.locator("markdown-text").inner_text().split().count("tok7") == 1
    assert len(sent) == 1
    page.reload()
    expect(finish(page)).to_contain_text(WHOLE)


def test_another_tab_takes_up_what_a_closed_one_has_begun(server, open_page):
    page = open_chat(open_page, server, "plain")
    say(page, ASKED)
    expect(page.locator("article.assistant")).to_contain_text("tok5 ")
    beside = page.context.new_page()
    beside.goto(f"{server.url}/ui/icon.svg")
    beside.evaluate("key => sessionStorage.setItem('vllama-key', key)", KEY)
    sent = note_chats(beside)
    address = page.url
    page.close()
    beside.goto(address)
    expect(finish(beside)).to_contain_text(WHOLE)
    assert not sent


def test_a_lost_connection_is_made_again(server, open_page):
    page = open_chat(open_page, server, "plain")
    sent = note_chats(page)
    say(page, ASKED)
    answer = page.locator("article.assistant")
    expect(answer).to_contain_text("tok5 ")
    page.context.set_offline(True)
    page.context.set_offline(False)
    expect(finish(page)).to_contain_text(WHOLE)
    assert len(sent) == 1


def test_a_stop_stops_it_also_after_a_reload(server, open_page):
    page = open_chat(open_page, server, "stopped")
    say(page, SLOW)
    answer = page.locator("article.assistant")
    expect(answer).to_contain_text("tok5 ")
    page.reload()
    expect(answer).to_have_attribute("aria-busy", "true")
    page.get_by_role("button", name="Stop").click()
    expect(answer).to_contain_text("Stopped.")
    server.wait_for(r"/api/chat.* 200.*stopped by another client")
    assert server.request("GET", "/api/requests", headers=AUTHORIZED)[2] == b'{"requests":[]}'
    page.reload()
    with page.expect_response("**/api/streams") as listed:
        page.get_by_role("link", name="New conversation").click()
    assert "stopped:latest" in listed.value.text()
    expect(page.locator("stream-list", has_text="stopped:latest")).to_have_count(0)


def test_another_device_reads_and_stops_it(server, open_page):
    page, other = (open_chat(open_page, server, "plain") for _ in range(2))
    say(page, SLOW)
    answer = page.locator("article.assistant")
    expect(answer).to_contain_text("tok5 ")
    listed = other.get_by_role("list", name="On other devices").get_by_role("listitem")
    expect(listed.filter(has_text="running")).to_have_count(1)
    listed.first.get_by_role("button", name="Read").click()
    dialog = other.get_by_role("dialog")
    expect(dialog).to_contain_text("tok0 tok1")
    expect(dialog).to_contain_text("tok20 ")
    dialog.get_by_role("button", name="Close").click()
    expect(answer).to_have_attribute("aria-busy", "true")
    other.get_by_role("button", name="Stop the response of plain").click()
    expect(answer.get_by_role("alert")).to_contain_text("stopped by another client")
    expect(listed.first).to_contain_text("ended")
    listed.first.get_by_role("button", name="Read").click()
    expect(dialog).to_contain_text("tok20 ")
    expect(dialog.get_by_role("alert")).to_contain_text("stopped by another client")
