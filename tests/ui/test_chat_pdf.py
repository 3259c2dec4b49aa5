"""PDF files in the chat: their text goes along with a message, or why it cannot is said."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.server_process import Server
from tests.ui.pdf_files import make_pdf
from tests.ui.test_chat_page import open_chat, say

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("pdf")) as running:
        running.model("plain")
        yield running


def attach(page, data, name="report.pdf", kind="application/pdf"):
    file = {"name": name, "mimeType": kind, "buffer": data}
    page.get_by_label("Attach").set_input_files([file])


def test_the_text_of_a_pdf_goes_along_with_its_name_and_pages(server, open_page):
    page = open_page(server, "chat?model=plain:latest")
    loaded = []
    page.on("request", lambda request: loaded.append(request.url))
    with page.expect_response("**/settings-page.js"):  # what is loaded last
        page.reload()
    assert loaded and not any("pdf" in url for url in loaded)
    form = page.locator("message-form")
    attach(page, make_pdf("First line\nSecond line", "<script>alert(1)</script>"))
    expect(form).to_contain_text("report.pdf (2 pages)")
    assert any("pdfjs/pdf.worker.min.js" in url for url in loaded)
    attach(page, make_pdf("Another"), "SCAN.PDF", "")  # as some systems name them
    expect(form).to_contain_text("SCAN.PDF (1 page)")
    with page.expect_request("**/api/chat") as request:
        say(page, "What is it?")
    (message,) = request.value.post_data_json["messages"]
    first = "report.pdf (2 pages):\n```\nFirst line\nSecond line\n\n<script>alert(1)</script>\n```"
    assert message["content"] == (
        f"What is it?\n\n{first}\n\nSCAN.PDF (1 page):\n```\nAnother\n```"
    )
    page.get_by_role("article").first.get_by_text("report.pdf (2 pages)").click()
    expect(page.get_by_role("article").first).to_contain_text("Second line")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (make_pdf("Secret", encrypted=True), "it is encrypted; remove its password first"),
        (make_pdf("", ""), "it has no text, so it is probably a scan"),
        (b"%PDF-1.4\nnothing of a PDF", "it is damaged, or not a PDF"),
        (make_pdf(*["page"] * 1001), "it has 1,001 pages, and the limit is 1,000"),
        (
            make_pdf(*["\n".join(["word " * 16] * 50)] * 140),
            "pages already exceeds the limit of a message",
        ),
    ],
    ids=["encrypted", "scanned", "damaged", "pages", "letters"],
)
def test_why_a_pdf_cannot_be_attached_is_said(server, open_page, data, why):
    page = open_chat(open_page, server, "plain")
    attach(page, data)
    form = page.locator("message-form")
    expect(form.get_by_role("alert")).to_contain_text("cannot attach “report.pdf”: ")
    expect(form.get_by_role("alert")).to_contain_text(why)
    expect(form.locator(".preview")).to_have_count(0)


def test_a_message_waits_for_the_pdf_that_is_read(server, open_page):
    page = open_chat(open_page, server, "plain")
    held = []
    page.route("**/chat/pdf.js", lambda route: held.append(route))
    attach(page, make_pdf("Text"))
    form = page.locator("message-form")
    expect(form.get_by_role("status")).to_have_text("Reading report.pdf …")
    say(page, "Hello")
    expect(form.get_by_role("alert")).to_contain_text("is still being read")
    expect(page.locator("article")).to_have_count(0)
    expect(page.get_by_role("textbox", name="Message")).to_have_value("Hello")
    for route in held:
        route.continue_()
    expect(form).to_contain_text("report.pdf (1 page)")
    expect(form.get_by_role("alert")).to_be_hidden()
