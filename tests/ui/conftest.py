"""A server with the fake engine, and a real browser to look at its page."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from tests.lacking import lacking

EXPECTED = "Failed to load resource"
"""What a browser writes into its console for every answer of 400 or more; the page shows those."""
PATIENCE_S = 60.0
"""For what the page shows by itself, on the slowest of machines; only a failure takes so long."""
PUBLIC_NAME = "llm.example.com"
"""A name that anybody may own; in the browser it leads to this machine."""
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser():
    """Return a running Chromium.

    Not for the whole session: while Playwright runs it holds an event loop in this thread, in which
    the tests of other modules could start none of their own.
    """
    program = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if program is None:
        lacking("there is no Chromium; install it (Debian, Ubuntu: apt install chromium)")
    api = pytest.importorskip("playwright.sync_api", reason="make dev installs playwright")
    api.expect.set_options(timeout=PATIENCE_S * 1000)
    with api.sync_playwright() as playwright:
        # Chromium's own sandbox does not work for root, as whom tests run in containers
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        arguments.append(f"--host-resolver-rules=MAP {PUBLIC_NAME} 127.0.0.1")
        running = playwright.chromium.launch(executable_path=program, args=arguments)
        yield running
        running.close()


@pytest.fixture
def open_page(browser):
    """Return a function that opens the page of a server, at an address within it.

    At the end: nothing went to another server, but for the ports in `also`, and the browser had
    nothing to complain about.
    """
    contexts, servers, problems = [], {}, []

    def open_page(server, address="models", also=(), **options):
        servers[server.port] = server
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()

        def note_request(request):
            url = urlsplit(request.url)
            if url.scheme.startswith("http") and url.port not in (server.port, *also):
                problems.append(f"a request to {request.url}")

        page.on("request", note_request)
        page.on("pageerror", lambda error: problems.append(f"an error: {error}"))
        page.on("console", lambda message: note_message(problems, message))
        page.goto(f"{server.url}/ui/#/{address}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    for server in servers.values():
        stop_requests(server)
    assert not problems


def stop_requests(server):
    """Stop the responses that go on without their pages, if the server runs and requires no key."""
    with suppress(OSError):
        for row in json.loads(server.request("GET", "/api/requests")[2]).get("requests", ()):
            server.request("DELETE", f"/api/requests/{row['id']}")


def note_message(problems, message):
    """Note warnings and errors of the console, such as violations of the content's policy."""
    if message.type in ("error", "warning") and EXPECTED not in message.text:
        problems.append(f"{message.type} in the console: {message.text}")
