"""The page with the real engine and the real model, as a user would have it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import MODEL
from tests.e2e.conftest import counting as counting
from tests.e2e.conftest import real as real
from tests.ui.test_chat_page import open_chat, say

pytestmark = pytest.mark.slow


def test_a_chat_and_what_the_other_pages_say_of_it(real, open_page):
    brief = {"model": "brief", "from": MODEL, "parameters": {"num_predict": 24}, "stream": False}
    assert real.post("/api/create", brief)[0] == 200
    page = open_chat(open_page, real, "brief")  # whose answer ends, whatever the model says
    say(page, "Say hello.")
    answer = page.get_by_role("article").nth(1)
    numbers = re.compile(r"[\d.,]+ tokens/s · first token [\d.]+ s · \d+ tokens")
    expect(answer).to_contain_text(numbers)
    page.get_by_role("link", name="Activity").click()
    ended = page.get_by_role("region", name="Recent requests")
    expect(ended.get_by_role("row").filter(has_text="brief:latest")).to_contain_text("ok")
    page.get_by_role("link", name="Models", exact=True).click()
    page.get_by_role("button", name=MODEL, exact=True).click()
    expect(page.locator("models-page")).to_contain_text("It is loaded.")
    expect(page.get_by_role("list").filter(has_text=MODEL)).to_contain_text(
        re.compile(rf"{MODEL}\s+\d+ MiB")
    )
    page.get_by_role("link", name="Open its log").click()
    expect(page.get_by_role("region", name="Lines of the log")).to_contain_text("llama")
    assert real.request("DELETE", "/api/delete", {"model": "brief"})[0] == 200
