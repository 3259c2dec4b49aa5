"""Requests in the browser: which wait, for what, which run, and how one is stopped."""

from __future__ import annotations

import re
import threading

import pytest
from playwright.sync_api import expect

from tests.server_process import LIMIT_S, Server

pytestmark = pytest.mark.slow

COUNT_LINES = """cell => {
    const count = (range) => new Set([...range.getClientRects()].map(({ top }) => top)).size;
    const address = document.createRange(), route = document.createRange();
    address.setStart(cell, 0);
    address.setEndBefore(cell.querySelector("small"));
    route.selectNodeContents(cell.querySelector("small"));
    return { address: count(address), route: count(route) };
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("activity")
    one_slot = {"VLLAMA_NUM_PARALLEL": "1"}
    options = ("--hang-timeout", "0", "--capture", "20", "--ctx", "2048")
    with Server(home, *options, env=one_slot) as running:
        running.model("stalls", "--stall-after", "2")
        running.model("plain")
        yield running


class Client(threading.Thread):
    """A client that waits for an answer."""

    def __init__(self, server, model, **more):
        super().__init__(daemon=True)
        self.server, self.model, self.more = server, model, more
        self.answer = b""
        self.start()

    def run(self):
        body = {"model": self.model, "messages": [{"role": "user", "content": "hi"}]} | self.more
        _, _, self.answer = self.server.request("POST", "/api/chat", body)


def end_all(server, *clients):
    """End the requests of all clients, whether they wait or run."""
    for row in server.get("/api/requests")["requests"]:
        server.request("DELETE", f"/api/requests/{row['id']}")
    for client in clients:
        client.join(LIMIT_S)


def test_it_says_who_blocks_a_queue_and_can_stop_it(server, open_page):
    page = open_page(server, "activity")
    first = Client(server, "stalls")
    now = page.get_by_role("region", name="Now")
    expect(now.get_by_text("running", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="Activity")).to_contain_text("1")
    second = Client(server, "stalls")
    waits = page.get_by_role("region", name="Queues")
    expect(waits).to_contain_text(re.compile(r"1 request waits\s+\(for .*\) for a free slot\."))
    expect(waits).to_contain_text("Its only slot is in use by 127.0.0.1 (ollama")
    expect(now).to_contain_text("place 1")
    now.get_by_role("row").filter(has_text="running").get_by_role("button", name="Stop").click()
    first.join(LIMIT_S)
    assert b"was ended" in first.answer
    expect(waits).to_have_count(0)
    now.get_by_role("button", name="Stop").click()
    second.join(LIMIT_S)
    ended = page.get_by_role("region", name="Recent requests")
    expect(ended.get_by_text("the request was ended")).to_have_count(2)
    expect(page.locator("activity-page")).to_contain_text("No request is running")


def test_an_ended_request_shows_its_numbers_and_its_bodies(server, open_page):
    ask = {"model": "plain", "messages": [{"role": "user", "content": "Oslo?"}], "stream": False}
    server.post("/api/chat", ask)
    page = open_page(server, "activity")
    ended = page.get_by_role("region", name="Recent requests")
    row = ended.get_by_role("row").filter(has_text="plain").first
    expect(row).to_contain_text(re.compile(r"ok\s"))
    row.get_by_role("button", name="Open").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Oslo?")
    expect(dialog).to_contain_text("tok7")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_a_captured_stream_is_shown_put_together_and_raw_on_demand(server, open_page, path):
    ask = {"model": "plain", "messages": [{"role": "user", "content": "Oslo?"}], "stream": True}
    server.request("POST", path, ask)
    server.request("POST", "/api/chat", {"model": "nothing-like-it", "messages": []})
    server.request("DELETE", "/api/delete", {"model": "nothing-like-it"})
    page = open_page(server, "activity")
    ended = page.get_by_role("region", name="Recent requests")
    failed = ended.get_by_role("row").filter(has_text="/api/delete").first
    expect(failed).to_contain_text("error")
    expect(failed.get_by_role("button", name="Open")).to_have_count(0)
    row = ended.get_by_role("row").filter(has_text=path).filter(has_text="plain").first
    row.get_by_role("button", name="Open").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("tok0 tok1 tok2 tok3 tok4 tok5 tok6 tok7")).to_be_visible()
    raw = dialog.locator("details pre")
    expect(raw).to_be_hidden()
    dialog.get_by_text("As it was sent").click()
    expect(raw).to_contain_text('"done":true' if path == "/api/chat" else "[DONE]")


def test_a_queue_of_a_shared_engine_says_who_holds_it_whatever_the_name(server, open_page):
    assert server.post("/api/copy", {"source": "stalls", "destination": "stalls-copy"})[0] == 200
    page = open_page(server, "activity")
    now = page.get_by_role("region", name="Now")
    first = Client(server, "stalls")
    expect(now.get_by_text("running", exact=True)).to_be_visible()
    second = Client(server, "stalls-copy")
    waits = page.get_by_role("region", name="Queues")
    expect(waits.get_by_role("heading", name="stalls-copy")).to_be_visible()
    expect(waits).to_contain_text("Its only slot is in use by 127.0.0.1 (ollama, stalls:latest")
    end_all(server, first, second)
    server.request("DELETE", "/api/delete", {"model": "stalls-copy"})


def test_a_model_that_is_loaded_again_says_what_its_previous_engine_still_answers(
    server, open_page
):
    page = open_page(server, "activity")
    now = page.get_by_role("region", name="Now")
    first = Client(server, "stalls")
    expect(now.get_by_text("running", exact=True)).to_be_visible()
    second = Client(server, "stalls", options={"num_ctx": 4096})
    waits = page.get_by_role("region", name="Queues")
    expect(waits).to_contain_text("waiting for its previous instance to end")
    expect(waits).to_contain_text("Ahead of it: 127.0.0.1 (ollama, stalls:latest")
    page.get_by_role("link", name="Models", exact=True).click()
    page.get_by_role("heading", name="On this server").wait_for()
    row = page.get_by_role("row").filter(has_text="stalls:latest")
    expect(row).to_contain_text("loading")
    expect(row).to_contain_text("1 ending on its previous engine")
    end_all(server, first, second)


def test_what_was_used_today_is_shown_by_key_and_model(server, open_page):
    ask = {"model": "plain", "messages": [{"role": "user", "content": "hi"}], "stream": False}
    server.post("/api/chat", ask)
    used = open_page(server, "activity").get_by_role("region", name="Usage today")
    expect(used.get_by_role("row").filter(has_text="plain:latest")).to_contain_text("no key")


def test_addresses_and_routes_are_not_broken_into_pieces(server, open_page):
    ask = {"model": "plain", "messages": [{"role": "user", "content": "Oslo?"}], "stream": False}
    server.post("/v1/chat/completions", ask)
    server.post("/v1/chat/completions", {**ask, "model": "-".join(["unknown"] * 20)})
    page = open_page(server, "activity", viewport={"width": 1280, "height": 800})
    ended = page.get_by_role("region", name="Recent requests")
    client = ended.get_by_role("rowheader").filter(has_text="/v1/chat/completions").first
    expect(client).to_contain_text("127.0.0.1")
    lines = client.evaluate(COUNT_LINES)
    assert lines == {"address": 1, "route": 1}
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_graphs_have_their_numbers_as_a_table_and_the_marks(server, open_page):
    page = open_page(server, "graphs")
    server.post("/api/generate", {"model": "plain"})
    expect(page.locator("time-chart canvas")).to_have_count(4)
    marks = page.get_by_role("region", name="Loads and evictions")
    expect(marks.get_by_role("row").filter(has_text="plain").first).to_contain_text("load")
    page.get_by_text("The numbers, minute by minute").click()
    numbers = page.get_by_role("region", name="Numbers of the last hour")
    expect(numbers.get_by_role("row").nth(1)).to_contain_text(
        re.compile(r"\d\d:\d\d:\d\d.*[MG]iB", re.DOTALL)
    )
    expect(page.get_by_role("img", name="Requests: running")).to_be_visible()
