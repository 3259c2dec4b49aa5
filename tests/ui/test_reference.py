"""The reference of the API in a real browser: it is complete, and its forms send requests."""

import json

import pytest
from playwright.sync_api import expect

from tests.server_process import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def reference(open_page):
    """Return a function that opens the reference of a server."""

    def open_reference(server, **options):
        page = open_page(server, **options)
        page.goto(f"{server.url}/docs")
        page.wait_for_selector("details")
        return page

    return open_reference


def open_operation(page, name):
    page.locator(f"#{name} > summary").click()
    operation = page.locator(f"#{name}")
    operation.get_by_role("button", name="Send").wait_for()
    return operation


def read_body(operation):
    return json.loads(operation.get_by_label("Body").input_value())


def test_every_operation_is_there_and_is_found_by_words(server, reference):
    page = reference(server)
    paths = server.request("GET", "/openapi.json")[2]
    described = json.loads(paths)["paths"]
    count = sum(len(set(one) - ({"head"} if "get" in one else set())) for one in described.values())
    assert page.locator("details").count() == count
    page.get_by_label("Search").fill("rank documents")
    expect(page.locator("details")).to_have_count(5)
    page.get_by_label("Search").fill("gibberish")
    page.get_by_text("No routes match “gibberish”").wait_for()


def test_it_leads_to_the_other_pages(server, reference):
    page = reference(server)
    links = page.get_by_role("navigation", name="Pages").get_by_role("link")
    expect(links).to_have_text(["Models", "Chat", "Activity", "Graphs", "Logs", "Settings", "API"])
    links.nth(1).click()
    expect(page.get_by_role("textbox", name="Message", exact=True)).to_be_visible()


def test_an_example_is_sent_and_its_stream_is_shown(server, reference):
    operation = open_operation(reference(server), "post_api_chat")
    names = [model["name"] for model in json.loads(server.request("GET", "/api/tags")[2])["models"]]
    assert read_body(operation)["model"] in names, "the example is made for a model of this server"
    operation.get_by_role("button", name="Send").click()
    operation.get_by_text("Status 200, application/x-ndjson").wait_for()
    answer = operation.get_by_role("region").inner_text()
    assert json.loads(answer.splitlines()[-1])["done"]


def test_a_long_stream_can_be_stopped(server, reference):
    server.model("stalls", "--stall-after", "3")
    operation = open_operation(reference(server), "post_api_generate")
    body = {"model": "stalls", "prompt": "x"}
    operation.get_by_label("Body").fill(json.dumps(body))
    operation.get_by_role("button", name="Send").click()
    operation.get_by_text('"done":false').first.wait_for()
    operation.get_by_role("button", name="Stop").click()
    operation.get_by_text("stopped").wait_for()


def test_an_error_is_shown_as_it_is(server, reference):
    operation = open_operation(reference(server), "get_v1_models_model")
    operation.get_by_label("model:").fill("nosuch/model")
    operation.get_by_role("button", name="Send").click()
    operation.get_by_text("Status 404").wait_for()
    assert "/v1/models/nosuch/model" in operation.locator(".command").inner_text()


def test_a_server_with_keys_is_asked_with_the_key_of_the_field(tmp_path, reference):
    with Server(tmp_path, "--api-key", "a-long-secret-key") as server:
        page = reference(server)
        operation = open_operation(page, "get_api_ps")
        operation.get_by_role("button", name="Send").click()
        operation.get_by_text("Status 401").wait_for()
        page.get_by_label("Key").fill("a-long-secret-key")
        page.get_by_role("button", name="Use this key").click()
        operation.get_by_role("button", name="Send").click()
        operation.get_by_text("Status 200").wait_for()
        assert "a-long-secret-key" not in operation.locator(".command").inner_text()


def test_it_is_accessible_and_fits_a_phone(server, reference):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = reference(server, viewport={"width": 390, "height": 800})
    open_operation(page, "post_v1_chat_completions")
    found = axe.run(page).response["violations"]
    assert not [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found]
    assert page.evaluate("document.documentElement.scrollWidth") == 390
