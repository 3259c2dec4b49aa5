"""Every part of the page, light and dark, without a violation that axe-core knows."""

from __future__ import annotations

import json
import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.server_process import Server
from tests.ui.test_chat_page import HOSTILE, say

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("axe"), "--strict") as running:
        running.model("plain")
        running.model("writes", "--say", json.dumps(HOSTILE))
        running.model("broken", "--print", "error: the weights are mouldy", "--exit-before-ready")
        running.post("/api/generate", {"model": "plain"})
        running.post("/api/generate", {"model": "broken"})
        yield running


def check(page):
    """Fail with what axe has found."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_models(server, open_page, scheme):
    page = open_page(server, color_scheme=scheme)
    page.get_by_role("button", name="plain:latest", exact=True).click()
    expect(page.get_by_text("Command", exact=True)).to_be_visible()
    expect(page.get_by_role("region", name="Needs attention")).to_be_visible()
    for summary in page.locator("summary").all():
        summary.click()
    check(page)
    page.get_by_role("button", name="Add a model").click()
    expect(page.locator("model-card").first).to_be_visible()
    page.locator("model-card").first.get_by_role("button", name="Plan for").click()
    check(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_chat(server, open_page, scheme, width):
    size = {"width": width, "height": 844}
    page = open_page(server, "chat?model=writes:latest", color_scheme=scheme, viewport=size)
    expect(page.get_by_role("list", name="Suggestions")).to_be_visible()
    check(page)
    page.get_by_role("button", name="Compare two models").click()
    say(page, "Hello")
    expect(page.get_by_text(re.compile(r"first token \d"))).to_have_count(2)
    page.get_by_role("button", name="Regenerate").first.click()
    expect(page.get_by_text("2 of 2")).to_be_visible()
    page.get_by_role("button", name="Edit the message").click()
    check(page)
    page.keyboard.press("Escape")
    if width < 800:
        page.get_by_role("button", name="Conversations").click()
    page.get_by_role("button", name="Actions for “Hello”").click()
    expect(page.get_by_role("button", name="Rename")).to_be_visible()
    page.get_by_text("Import and export").click()
    check(page)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Chat settings").click()
    expect(page.get_by_label("Temperature")).to_be_visible()
    check(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("address", ["activity", "graphs", "logs", "settings"])
def test_others(server, open_page, address, scheme):
    page = open_page(server, address, color_scheme=scheme)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    if address == "activity":
        expect(page.get_by_role("region", name="Recent requests")).to_be_visible()
    if address == "graphs":
        page.get_by_text("Values", exact=True).click()
    if address == "settings":
        expect(page.get_by_role("table").first).to_be_visible()
    check(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_questions(tmp_path, open_page, scheme):
    with Server(tmp_path, "--api-key", "key") as server:
        page = open_page(server, color_scheme=scheme)
        page.get_by_label("Key", exact=True).fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog").get_by_role("alert")).to_be_visible()
        check(page)
