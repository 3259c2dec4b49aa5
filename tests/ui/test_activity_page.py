"""Requests in the browser: which wait, for what, which run, and how one is stopped."""

from __future__ import annotations

import csv
import json
import re
import threading
import time
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.routes.test_access import command
from tests.server_process import LIMIT_S, Server
from tests.ui.test_accessibility import check

pytestmark = pytest.mark.slow

PHONE = {"width": 390, "height": 844}
ASK = {"model": "plain", "messages": [{"role": "user", "content": "Oslo?"}], "stream": False}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("activity")
    one_slot = {"VLLAMA_NUM_PARALLEL": "1"}
    options = ("--hang-timeout", "0", "--capture", "20", "--context-length", "2048")
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
    expect(waits).to_contain_text("It goes on when this ends or is stopped below.")
    expect(now).to_contain_text("place 1")
    now.get_by_role("row").filter(has_text="running").get_by_role("button", name="Stop").click()
    first.join(LIMIT_S)
    assert b"was stopped" in first.answer
    expect(waits).to_have_count(0)
    now.get_by_role("button", name="Stop").click()
    second.join(LIMIT_S)
    ended = page.get_by_role("region", name="Recent requests")
    expect(ended.get_by_text("the request was stopped")).to_have_count(2)
    expect(page.locator("activity-page")).to_contain_text("No requests are running")


def test_an_ended_request_shows_its_numbers_and_its_bodies(server, open_page):
    server.post("/api/chat", ASK)
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
    server.request("POST", path, ASK | {"stream": True})
    server.request("POST", "/api/chat", {"model": "nothing-like-it", "messages": []})
    server.request("DELETE", "/api/delete", {"model": "nothing-like-it"})
    page = open_page(server, "activity")
    ended = page.get_by_role("region", name="Recent requests")
    failed = ended.get_by_role("row").filter(has_text="nothing-like-it").first
    expect(failed).to_contain_text("error")
    expect(failed.get_by_role("button", name="Open")).to_have_count(0)
    row = ended.get_by_role("row").filter(has_text="plain").first
    row.get_by_role("button", name="Open").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("tok0 tok1 tok2 tok3 tok4 tok5 tok6 tok7")).to_be_visible()
    raw = dialog.locator("details pre")
    expect(raw).to_be_hidden()
    dialog.get_by_text("As sent").click()
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
    expect(waits).to_contain_text("waiting for the previous instance")
    expect(waits).to_contain_text("Ahead of it: 127.0.0.1 (ollama, stalls:latest")
    page.get_by_role("link", name="Models", exact=True).click()
    card = page.get_by_role("article", name="stalls:latest")
    expect(card).to_contain_text("loading")
    expect(card).to_contain_text("1 ending on its previous engine")
    end_all(server, first, second)


def test_what_was_used_today_is_shown_by_key_and_model(server, open_page):
    server.post("/api/chat", ASK)
    used = open_page(server, "activity").get_by_role("region", name="Usage today")
    expect(used.get_by_role("row").filter(has_text="plain:latest")).to_contain_text("no key")


PRICED = """
currency = "EUR"
[groups.team]
[models.plain]
price = { generated = 70000 }
"""


def test_spend_by_key_group_user_and_model_behind_a_proxy(tmp_path, open_page):
    """The proxy adds its key and the user; the page asks for no key."""
    (tmp_path / "config.toml").write_text(PRICED)
    with Server(tmp_path, "--config", str(tmp_path / "config.toml")) as server:
        server.model("plain")
        root = command(server, "keys", "add", "root", "--scope", "admin")
        words = ("--scope", "infer,read", "--group", "team", "--trusts-user", "yes")
        web = command(server, "keys", "add", "web", *words, key=root)
        headers = {"authorization": f"Bearer {web}", "x-forwarded-email": "ann@x.org"}
        assert server.request("POST", "/api/chat", ASK, headers)[0] == 200
        page = open_page(server, "activity", extra_http_headers=headers)
        used = page.get_by_role("region", name="Usage today")
        expect(used.get_by_role("columnheader").filter(has_text="Spend (EUR)")).to_be_visible()
        told = used.get_by_role("row").filter(has_text="plain:latest")
        for text in ("web", "team", "ann@x.org"):
            expect(told).to_contain_text(text)
        spend = told.locator('[data-label^="Spend"]')
        expect(spend).to_have_text(re.compile(r"^0\.\d{4}$"))
        page.get_by_role("link", name="Chat").first.click()
        expect(page.get_by_role("textbox", name="Message")).to_be_visible()


def test_a_request_takes_one_line_and_opens_to_all_that_is_known(server, open_page):
    server.post("/v1/chat/completions", ASK)
    missing = "-".join(["unknown"] * 20)
    server.post("/v1/chat/completions", ASK | {"model": missing})
    page = open_page(server, "activity", viewport={"width": 1280, "height": 800})
    ended = page.get_by_role("region", name="Recent requests")
    row = ended.get_by_role("row").filter(has_text=missing).first
    expect(row).to_contain_text("error")
    assert row.bounding_box()["height"] < 44
    row.get_by_role("button", name=missing, exact=True).click()
    details = ended.locator("tr.details")
    expect(details).to_contain_text("invalid model name")
    expect(details).to_contain_text("POST /v1/chat/completions")
    expect(details).to_contain_text("127.0.0.1")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_a_filter_stands_in_the_address_and_finds_old_requests(server, open_page):
    server.request("POST", "/api/chat", ASK)
    server.request("POST", "/api/chat", ASK | {"model": "lost"}, {"x-request-id": "the-old-one"})
    for number in range(110):  # more than a snapshot has
        server.request("DELETE", "/api/delete", {"model": f"none-{number}"})
    page = open_page(server, "activity")
    ended = page.get_by_role("region", name="Recent requests")
    expect(ended.get_by_role("row")).to_have_count(51)  # with the head
    ended.get_by_label("Text").fill("the-old-one")
    expect(ended.get_by_role("row")).to_have_count(2)
    expect(ended.get_by_role("rowheader")).to_have_text("lost")
    assert page.evaluate("location.hash") == "#/activity?text=the-old-one"
    page.reload()
    expect(ended.get_by_role("rowheader")).to_have_text("lost")
    ended.get_by_label("Text").fill("")
    ended.get_by_label("Model").select_option("lost")
    expect(ended.get_by_role("row")).to_have_count(2)  # it waits; several texts fail at once
    expect(ended.get_by_role("rowheader")).to_have_text("lost")
    ended.get_by_label("Model").select_option("plain:latest")
    ended.get_by_label("Errors only").check()
    expect(ended).to_contain_text("No matching requests.")
    ended.get_by_role("button", name="Show all").click()
    expect(ended.get_by_role("row")).to_have_count(51)
    assert page.evaluate("location.hash") == "#/activity"


def test_changes_of_the_filter_before_it_is_drawn_again_all_hold(server, open_page):
    server.request("POST", "/api/chat", ASK | {"model": "quick"})
    page = open_page(server, "activity?text=quick")
    ended = page.get_by_role("region", name="Recent requests")
    expect(ended.get_by_role("rowheader").first).to_have_text("quick")
    page.evaluate("""() => {
      const form = document.querySelector(".filters");
      const change = (field, value, name) => {
        field.value = value;
        field.dispatchEvent(new Event(name, { bubbles: true }));
      };
      change(form.querySelector("select"), "quick", "change");
      change(form.querySelector("input"), "", "input");
    }""")
    expect(ended.get_by_label("Text")).to_have_value("")
    assert page.evaluate("location.hash") == "#/activity?model=quick"
    expect(ended.get_by_role("rowheader").first).to_have_text("quick")


def test_older_requests_are_on_further_pages(server, open_page):
    for number in range(110):
        server.request("DELETE", "/api/delete", {"model": f"page-{number}"})
    page = open_page(server, "activity?text=page-")
    ended = page.get_by_role("region", name="Recent requests")
    expect(ended.get_by_role("rowheader").first).to_have_text("page-109")
    expect(ended).to_contain_text("1–50 of 110")
    expect(ended.get_by_role("button", name="Newer")).to_be_disabled()
    ended.get_by_role("button", name="Older").click()
    expect(ended.get_by_role("rowheader").first).to_have_text("page-59")
    ended.get_by_role("button", name="Older").click()
    expect(ended).to_contain_text("101–110 of 110")
    expect(ended.get_by_role("button", name="Older")).to_be_disabled()


def test_columns_are_chosen_and_stay_so(server, open_page):
    server.request("DELETE", "/api/delete", {"model": "columns"})
    page = open_page(server, "activity")
    ended = page.get_by_role("region", name="Recent requests")
    expect(ended.get_by_role("columnheader", name="Client")).to_be_visible()
    ended.get_by_text("Columns", exact=True).first.click()
    ended.get_by_label("Client").uncheck()
    ended.get_by_label("Route").check()
    page.keyboard.press("Escape")
    expect(ended.get_by_label("Route")).to_be_hidden()
    expect(ended.get_by_role("columnheader", name="Client")).to_have_count(0)
    page.reload()
    expect(ended.get_by_role("columnheader", name="Route")).to_be_visible()
    expect(ended.get_by_role("columnheader", name="Client")).to_have_count(0)


ROWS = """[
  {id: "a", model: "m", outcome: "ok", started_at: "2026-01-01T00:00:03Z", seconds: 2, client: "b", cached_tokens: null, prompt_tokens_per_s: 9},
  {id: "b", model: "n", outcome: "ok", started_at: "2026-01-01T00:00:02Z", seconds: 30, client: "=x", cached_tokens: 4, prompt_tokens_per_s: 100},
  {id: "c", model: "a", outcome: "error", error: 'no "m"', started_at: "2026-01-01T00:00:01Z", seconds: 0.1, client: "a", cached_tokens: 0, prompt_tokens_per_s: null},
]"""  # noqa: E501


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("", "abc"), ("-started", "abc"), ("started", "cba"), ("-took", "bac"), ("took", "cab"),
        ("-cached", "bca"), ("cached", "cba"), ("-promptrate", "bac"), ("model", "cab"),
        ("-model", "bac"), ("client", "bca"), ("outcome", "cab"), ("nothing", "abc"),
    ],
)  # fmt: skip
def test_rows_are_sorted_by_any_column(server, open_page, order, expected):
    page = open_page(server, "activity")
    module = "/ui/activity/columns.js"
    sort = f"sortRows({ROWS}, '{order}').map(row => row.id)"
    script = f"import('{module}').then(({{ sortRows }}) => {sort})"
    assert "".join(page.evaluate(script)) == expected


def test_the_slowest_request_is_found_and_all_are_exported(server, open_page):
    for number in range(60):  # more than a page
        server.request("DELETE", "/api/delete", {"model": f"sorted-{number}"})
    server.request("POST", "/api/chat", ASK | {"model": '=sorted-"slow"'})
    server.post("/api/chat", ASK)
    page = open_page(server, "activity")
    ended = page.get_by_role("region", name="Recent requests")
    took = ended.get_by_role("columnheader", name="Took")
    took.get_by_role("button").click()
    expect(took).to_have_attribute("aria-sort", "descending")
    assert page.evaluate("location.hash") == "#/activity?sort=-took"
    seconds = sorted((row["seconds"] for row in list_ended(server)), reverse=True)
    with page.expect_download() as download:
        ended.get_by_role("button", name="Export as JSON").click()
    rows = json.loads(Path(download.value.path()).read_text())
    assert [row["seconds"] for row in rows] == seconds
    took.get_by_role("button").click()
    expect(took).to_have_attribute("aria-sort", "ascending")
    ended.get_by_label("Text").fill("sorted-")
    expect(ended).to_contain_text("of 61")
    with page.expect_download() as download:
        ended.get_by_role("button", name="Export as CSV").click()
    with Path(download.value.path()).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 61
    assert {"id", "cached_tokens", "prompt_tokens_per_s"} <= rows[0].keys()
    assert [row["requested"] for row in rows if "slow" in row["requested"]] == ['\'=sorted-"slow"']


def list_ended(server):
    """Return the rows of all requests that have ended."""
    rows, more = [], True
    while more:
        before = f"&before={rows[-1]['id']}" if rows else ""
        answer = server.get(f"/api/requests/ended?limit=200{before}")
        rows, more = rows + answer["requests"], answer["more"]
    return rows


def test_the_figures_are_those_of_the_last_minutes(server, open_page):
    page = open_page(server, "activity")
    rows = """[
        {model: "m", started_at: new Date(600000).toISOString(), seconds: 1, first_token_s: 1, tokens_per_s: 10},
        ...Array.from({length: 19}, () => (
            {model: "m", started_at: new Date(800000).toISOString(), seconds: 1, first_token_s: 0.2, tokens_per_s: 20})),
        {model: "m", started_at: new Date(800000).toISOString(), seconds: 1, first_token_s: 9, tokens_per_s: null},
        {model: "", started_at: new Date(800000).toISOString(), seconds: 1, first_token_s: null, tokens_per_s: null},
    ].reverse()"""  # noqa: E501
    measure = (
        f"import('/ui/activity/figures.js').then(({{ measure }}) => measure({rows}, true, 1000))"
    )
    assert page.evaluate(measure) == {
        "number": 20, "minutes": 5, "perMinute": 4,
        "first50": 0.2, "first95": 0.2, "tokensPerS": 20,
    }  # fmt: skip
    server.post("/api/generate", {"model": "plain", "prompt": "hi", "stream": False})
    figures = page.get_by_role("region", name="Last 5 minutes")
    expect(figures).to_contain_text("Requests per minute")


def test_a_capture_that_is_gone_says_so_and_its_button_goes(tmp_path, open_page):
    with Server(tmp_path, "--capture", "1") as server:
        server.model("plain")
        server.post("/api/chat", ASK)
        page = open_page(server, "activity")
        opens = page.get_by_role("button", name="Open the capture")
        expect(opens).to_have_count(1)
        captures = server.home / "data" / "captures"
        while not (first := list(captures.rglob("*.json"))):
            time.sleep(0.01)
        server.post("/api/chat", ASK)
        expect(opens).to_have_count(2)
        while first[0].exists():  # it is removed after the request has ended
            time.sleep(0.01)
        opens.last.click()
        expect(page.get_by_role("alert")).to_contain_text("removed to make room")
        expect(opens).to_have_count(1)


def test_a_capture_is_replayed_and_compared(server, open_page):
    server.request("POST", "/v1/chat/completions", ASK | {"stream": True})
    page = open_page(server, "activity")
    page.get_by_role("button", name="Open the capture").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Replay").click()
    expect(dialog.get_by_role("status")).to_contain_text("Same response.")
    expect(dialog.get_by_role("columnheader", name="Nothing else differs")).to_be_visible()


def test_a_replay_says_what_differs(server, open_page):
    server.post("/api/chat", ASK)
    page = open_page(server, "activity")

    def change(route):
        response = route.fetch()
        told = response.json()
        told["engine"]["context_length"] = 512
        told["texts"][0]["text"] = "tok0 another"
        route.fulfill(response=response, json=told)

    page.route("**/api/captures/*", change, times=1)
    page.get_by_role("button", name="Open the capture").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Replay").click()
    told = dialog.get_by_role("status")
    expect(told).to_contain_text("The responses differ at character 6.")
    expect(told.get_by_role("row").filter(has_text="Context")).to_contain_text("512")


def test_graphs_have_their_numbers_as_a_table_and_the_marks(server, open_page):
    page = open_page(server, "graphs")
    server.post("/api/generate", {"model": "plain"})
    expect(page.get_by_role("img", name="CPU: all cores")).to_be_visible()
    expect(page.locator("time-chart canvas")).to_have_count(5)
    marks = page.get_by_role("region", name="Loads and evictions")
    expect(marks.get_by_role("row").filter(has_text="plain").first).to_contain_text("load")
    page.get_by_text("Values", exact=True).click()
    numbers = page.get_by_role("region", name="Values of the time shown")
    expect(numbers.get_by_role("row").nth(1)).to_contain_text(
        re.compile(r"\d\d:\d\d:\d\d.*[MG]iB", re.DOTALL)
    )
    expect(page.get_by_role("img", name="Requests: running")).to_be_visible()


def test_graphs_of_a_day_are_asked_for_when_they_are_shown(server, open_page):
    now = time.time()
    old = {"first_token_s": None, "requests": 0, "queued": 0, "memory": {}, "machine": None}
    hours = (20, 5, 4)
    told = {
        "samples": [old | {"time": now - 3600 * n, "tokens_per_s": n * 1000.0} for n in hours],
        "marks": [{"time": now - 3600 * 20, "kind": "evict", "model": "older", "reason": "room"}],
    }
    asked = []
    page = open_page(server, "graphs")

    def answer(route):
        asked.append(route.fetch().json())  # the server has the same form
        route.fulfill(json=told)

    page.route("**/api/samples", answer)
    tokens = page.locator("[role=img][aria-label^='Tokens per second']")
    expect(tokens).to_be_visible()
    expect(tokens).not_to_have_accessible_name(re.compile("000"))
    assert asked == []
    page.get_by_role("button", name="6 hours").click()
    expect(tokens).to_have_accessible_name(re.compile(r"20,?000.* peak"))  # what held before
    marks = page.get_by_role("region", name="Loads and evictions")
    expect(marks.get_by_role("row").filter(has_text="older")).to_have_count(0)
    page.get_by_role("button", name="24 hours").click()
    expect(marks.get_by_role("row").filter(has_text="older")).to_contain_text("room")
    expect(page.get_by_role("button", name="24 hours")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="5 minutes").click()
    expect(tokens).not_to_have_accessible_name(re.compile("000"))
    assert len(asked) == 2 and asked[0].keys() == told.keys()
    check(page)


def test_how_fast_requests_were_is_drawn_for_those_that_match(server, open_page):
    page = open_page(server, "activity")
    slow = [{"role": "user", "content": "Oslo? @tokens=10 @delay=0.05"}]
    for _ in range(5):
        server.request("POST", "/api/chat", ASK | {"messages": slow, "stream": True})
    figure = page.get_by_role("figure").filter(has_text="Time to first token")
    expect(figure).to_contain_text(re.compile(r"\d+ requests, p50 [\d.]+ s, p95 [\d.]+ s"))
    expect(figure.get_by_role("img")).to_have_accessible_name(
        re.compile("^Time to first token, from")
    )
    expect(page.get_by_role("figure").filter(has_text="Tokens/s of a response")).to_be_visible()
    page.get_by_role("searchbox").fill("nothing like it")
    expect(page.get_by_role("figure")).to_have_count(0)


@pytest.mark.parametrize("options", [{"color_scheme": "dark"}, {"viewport": PHONE}])
def test_nothing_hinders_people_with_disabilities(server, open_page, options):
    server.post("/api/chat", ASK)
    server.post("/api/chat", ASK | {"model": "missing"})
    page = open_page(server, "activity", **options)
    ended = page.get_by_role("region", name="Recent requests")
    ended.get_by_role("button", name="missing", exact=True).first.click()
    ended.get_by_text("Columns", exact=True).first.click()
    check(page)
    page.keyboard.press("Escape")
    ended.get_by_role("button", name="Open the capture of plain").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Replay").click()
    expect(dialog.get_by_role("table")).to_be_visible()
    check(page)
