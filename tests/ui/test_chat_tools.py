"""Tools of MCP servers in the chat: allowed by the user, called by the browser, shown as text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.routes.test_families import TOOL
from tests.server_process import Server
from tests.ui.mcp_server import SCRIPT, McpServer
from tests.ui.test_accessibility import check
from tests.ui.test_chat_page import open_settings, say

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tools():
    server = McpServer(token="sesame")
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def server(tmp_path_factory, tools):
    home = tmp_path_factory.mktemp("tools")
    file = home / "config.toml"
    file.write_text(f'mcp_origins = ["{tools.url}"]\nupstreams = ["{tools.url}"]\n')
    with Server(home, env={"VLLAMA_CONFIG": str(file)}) as running:
        yield running


def add_server(page, url, name="Test", token="sesame"):
    """Add an MCP server in the settings, and return its row."""
    form = page.get_by_role("form", name="A new MCP server")
    form.get_by_label("Name").fill(name)
    form.get_by_label("URL").fill(url)
    form.get_by_label("Token").fill(token)
    form.get_by_role("button", name="Add the server").click()
    return page.get_by_role("region", name="MCP servers").get_by_role("row").filter(has_text=name)


@pytest.fixture
def chat(server, tools, open_page):
    """Return a page with the server of tools and a new conversation."""
    tools.calls.clear()
    page = open_page(server, "settings", also=(tools.server_port,))
    expect(add_server(page, f"{tools.url}/mcp")).to_contain_text("4 tools")
    page.goto(f"{server.url}/ui/#/chat?model=agent")
    expect(page.get_by_role("combobox", name="Model", exact=True)).to_have_value("agent:latest")
    return page


def permission(page, name):
    return page.get_by_role("group", name=f"Permission to call {name}")


def test_a_tool_is_called_once_it_is_allowed_and_its_result_is_text(chat, tools):
    say(chat, "call script")
    answer = chat.get_by_role("article").nth(1)
    expect(permission(answer, "script")).to_contain_text("Allow Test to run script")
    expect(answer).to_contain_text('"city": "Paris"')
    check(chat)
    assert tools.calls == []
    permission(answer, "script").get_by_role("button", name="Allow once").click()
    expect(answer).to_contain_text(f"I read {len(SCRIPT)} letters")
    assert tools.calls == ["script"]
    expect(permission(answer, "script")).to_have_count(0)
    answer.get_by_text("Result of script").click()
    expect(answer.locator("details pre").nth(1)).to_have_text(SCRIPT)
    assert chat.title() == "Chat · vllama"
    say(chat, "call script")  # once is once
    last = chat.get_by_role("article").last
    permission(last, "script").get_by_role("button", name="Deny").click()
    expect(last).to_contain_text("The user denied this call.")
    assert tools.calls == ["script"]


def test_a_call_is_allowed_with_the_keyboard_alone(chat, tools):
    chat.keyboard.press("Control+Shift+O")
    expect(chat.get_by_role("textbox", name="Message")).to_be_focused()
    chat.keyboard.type("call script")
    chat.keyboard.press("Enter")
    answer = chat.get_by_role("article").nth(1)
    question = permission(answer, "script")
    for name in ("Deny", "Always in this conversation", "Allow once"):
        expect(question).to_be_visible()
        chat.keyboard.press("Shift+Tab")
        expect(question.get_by_role("button", name=name)).to_be_focused()
    chat.keyboard.press("Enter")
    expect(answer).to_contain_text(f"I read {len(SCRIPT)} letters")
    expect(chat.get_by_role("region", name="Messages")).to_be_focused()
    chat.keyboard.press("Control+K")
    expect(chat.get_by_role("searchbox", name="Search conversations")).to_be_focused()


def test_always_holds_for_the_conversation_and_the_description(chat, tools):
    say(chat, "call fails")
    last = chat.get_by_role("article").last
    permission(last, "fails").get_by_role("button", name="Always in this conversation").click()
    expect(last).to_contain_text("The tool failed: No luck.")
    say(chat, "call fails")
    expect(chat.get_by_role("article")).to_have_count(4)
    expect(last).to_contain_text("I read")
    assert tools.calls == ["fails", "fails"]
    tools.descriptions["fails"] = "Another tool than before."
    chat.reload()
    say(chat, "call fails")
    expect(permission(last, "fails")).to_contain_text("Another tool than before.")
    permission(last, "fails").get_by_role("button", name="Deny").click()
    expect(last).to_contain_text("The user denied this call.")
    chat.get_by_role("link", name="New conversation").click()
    say(chat, "call fails")
    expect(permission(last, "fails")).to_be_visible()


def test_a_slow_call_is_shown_and_can_be_stopped(chat, tools):
    tools.released.clear()
    say(chat, "call slow")
    answer = chat.get_by_role("article").nth(1)
    permission(answer, "slow").get_by_role("button", name="Allow once").click()
    expect(answer).to_contain_text("Calling slow …")
    chat.keyboard.press("Escape")
    expect(answer).to_contain_text("Stopped.")
    tools.released.set()
    answer.get_by_role("button", name="Call the tools").click()
    permission(answer, "slow").get_by_role("button", name="Allow once").click()
    expect(answer).to_contain_text("I read 8 letters: At last.")
    expect(answer).not_to_contain_text("Stopped.")


def test_a_long_result_is_cut_and_a_loop_ends(chat, tools):
    say(chat, "loop long")
    answer = chat.get_by_role("article").nth(1)
    permission(answer, "long").get_by_role("button", name="Always in this conversation").click()
    expect(answer.get_by_role("button", name="Call the tools")).to_be_visible()
    assert tools.calls == ["long"] * 20
    results = answer.locator("details pre").filter(has_text="xxx")
    text = results.first.text_content()
    assert len(text) < 66_000 and text.endswith("(the first 64 KB of 196 KB)")


def test_a_tool_is_switched_off_and_what_is_not_there_is_said(chat):
    settings = open_settings(chat)
    switches = settings.get_by_role("group", name="Tools of Test")
    expect(switches.get_by_role("checkbox")).to_have_count(4)
    switches.get_by_label("script").uncheck()
    check(chat)
    say(chat, "hello")
    last = chat.get_by_role("article").last
    expect(last).to_contain_text("Offered: slow fails long.")
    say(chat, "call script")
    expect(last).to_contain_text("No such tool: “script”.")
    chat.reload()
    expect(switches.get_by_label("script")).to_have_count(0)  # the drawer is closed
    expect(open_settings(chat).get_by_label("script")).not_to_be_checked()
    chat.get_by_role("link", name="New conversation").click()
    expect(switches.get_by_label("script")).to_be_checked()  # of another conversation
    chat.get_by_role("link", name="hello").click()
    expect(switches.get_by_label("script")).not_to_be_checked()


def test_the_user_enters_the_results_of_no_other_tools_than_his_own(chat, tools):
    settings = open_settings(chat)
    settings.get_by_label("Tools (JSON)").fill(json.dumps([TOOL]))
    chat.get_by_role("button", name="Close the settings").click()
    say(chat, "call weather script fails")
    answer = chat.get_by_role("article").nth(1)
    permission(answer, "script").get_by_role("button", name="Allow once").click()
    permission(answer, "fails").get_by_role("button", name="Allow once").click()
    expect(answer.get_by_text("Result of fails")).to_be_visible()
    assert tools.calls == ["script", "fails"]
    chat.reload()
    fields = answer.locator("form").get_by_role("textbox")
    expect(fields).to_have_count(1)
    expect(answer.get_by_role("button", name="Call the tools")).to_have_count(0)
    answer.get_by_label("Result of weather").fill("It rains.")
    with chat.expect_request("**/api/chat") as request:
        answer.get_by_role("button", name="Send the results").click()
    results = request.value.post_data_json["messages"][2:]
    assert [one["tool_name"] for one in results] == ["script", "fails", "weather"]
    expect(answer).to_contain_text("I read 9 letters: It rains.")
    expect(fields).to_have_count(0)


def test_a_message_waits_for_no_server_that_hangs(server, tools, open_page):
    tools.hangs = True
    tools.released.clear()
    page = open_page(server, "settings", also=(tools.server_port,))
    add_server(page, f"{tools.url}/mcp")
    page.goto(f"{server.url}/ui/#/chat?model=agent")
    say(page, "hello")
    expect(page.get_by_role("article").last).to_contain_text("Offered: .")
    expect(page.get_by_text("“Test”: it did not respond in time")).to_be_visible()
    tools.hangs = False
    tools.released.set()
    expect(open_settings(page).get_by_label("script")).to_be_checked()
    say(page, "hello again")
    expect(page.get_by_role("article").last).to_contain_text("Offered: slow fails script long.")


def test_a_reload_asks_again_and_a_lost_session_is_renewed(chat, tools):
    say(chat, "call script")
    answer = chat.get_by_role("article").nth(1)
    expect(permission(answer, "script")).to_be_visible()
    chat.reload()
    answer.get_by_role("button", name="Call the tools").click()
    permission(answer, "script").get_by_role("button", name="Allow once").click()
    expect(answer).to_contain_text("I read")
    tools.session = "s-2"  # as after a restart
    say(chat, "call script")
    last = chat.get_by_role("article").last
    permission(last, "script").get_by_role("button", name="Allow once").click()
    expect(last).to_contain_text("I read")
    assert tools.calls == ["script", "script"]


def test_what_is_written_into_the_form_is_not_lost_when_the_settings_come(server, open_page):
    page = open_page(server, "models")
    held = []
    page.route("**/api/config", lambda route: held.append(route))
    page.get_by_role("link", name="Settings").click()
    expect(page.get_by_text("Loading …")).to_be_visible()
    form = page.get_by_role("form", name="A new MCP server")
    expect(form).to_have_count(0)  # it would be another one afterwards
    for route in held:
        route.continue_()
    expect(form).to_be_visible()


def test_tokens_are_in_no_export(chat):
    say(chat, "hello")
    expect(chat.get_by_role("article").last).to_contain_text("Offered: slow fails script long.")
    chat.get_by_text("Import and export").click()
    with chat.expect_download() as download:
        chat.get_by_role("button", name="Export all").click()
    text = Path(download.value.path()).read_text()
    assert json.loads(text)["conversations"] and "sesame" not in text


def test_why_a_server_cannot_be_used_is_said(server, tools, tmp_path, browser):
    closed = McpServer(cors=None)
    (home := tmp_path / "home").mkdir()
    env = {"VLLAMA_MCP_ORIGINS": f"{tools.url},{closed.url},http://127.0.0.1:9"}
    with Server(home, env=env) as other:
        page = browser.new_context().new_page()
        page.goto(f"{other.url}/ui/#/settings")
        cases = [
            (f"{tools.url}/mcp", "", "the token is missing or invalid"),
            (f"{closed.url}/mcp", "", f"does not allow requests from {other.url} (CORS)"),
            ("http://127.0.0.1:9/mcp", "", "cannot reach http://127.0.0.1:9"),
            ("http://127.0.0.1:10/mcp", "", "add it to the setting mcp_origins"),
        ]
        for number, (url, token, text) in enumerate(cases):
            row = add_server(page, url, f"Server {number}", token)
            expect(row.get_by_role("alert")).to_contain_text(text)
            row.get_by_role("button", name=re.compile("Remove")).click()
            expect(row).to_have_count(0)
        page.context.close()
    closed.shutdown()
    closed.server_close()
