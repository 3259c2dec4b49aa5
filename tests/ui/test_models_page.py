"""Models in the browser: load, pin, unload, failures, plans, downloads, and two hundred of them."""

from __future__ import annotations

import json
import os
import re
import time

import pytest
from playwright.sync_api import expect

from tests.hub import Fault, StandInHub
from tests.hub.large import make_gguf
from tests.server_process import Server
from tests.targets.test_nodes import Cluster
from tests.tiny import write_tiny_gguf

pytestmark = pytest.mark.slow

LOAD = re.compile("^Load")
TINY = "hf.co/test/Tiny-GGUF:Q8_0"
HUGE = "hf.co/test/Huge-GGUF:Q8_0"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("models"), "--strict") as running:
        running.model("plain")
        running.model("broken", "--print", "error: the weights are mouldy", "--exit-before-ready")
        yield running


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repo")
    write_tiny_gguf(folder / "Tiny-Q8_0.gguf", n_ctx=4096)
    with StandInHub() as running:
        running.add_repo("test/Tiny-GGUF", folder)
        huge = make_gguf("Huge-Q8_0.gguf", "Q8_0", 4000.0)
        running.add_repo("test/Huge-GGUF", {huge.name: huge})
        yield running


@pytest.fixture(scope="module")
def server_with_hub(hub, tmp_path_factory):
    with Server(tmp_path_factory.mktemp("pulls"), env={"HF_ENDPOINT": hub.url}) as running:
        yield running


def find_row(page, name):
    """Return the row of a model in the list of those that are not loaded."""
    return page.locator(f'tr[data-model="{name if ":" in name else f"{name}:latest"}"]')


def find_card(page, name):
    """Return the card of a model that is loaded."""
    return page.locator(f'article[data-model="{name}:latest"]')


def open_details(page, name):
    """Open the details of a model, and return them."""
    page.get_by_role("button", name=name, exact=True).click()
    return page.locator(f'[id="details-{name}"]')


def search(page, text):
    """Search for models to download, and return the field."""
    page.get_by_role("button", name="Add a model").or_(
        page.get_by_role("searchbox")
    ).first.wait_for()
    field = page.get_by_label("Model name, or part of it")
    if not field.count():
        page.get_by_role("button", name="Add a model").click()
    field.fill(text)
    return field


def find_offer(page, name):
    """Return the card of a model that can be downloaded."""
    return page.locator("model-card").filter(has=page.get_by_role("heading", name=name, exact=True))


def show_plan(page, name):
    """Have the plan of a model made, and return its card."""
    search(page, name).press("Enter")
    card = find_offer(page, name)
    card.get_by_role("button", name="Plan for").click()
    return card


def test_a_model_is_loaded_pinned_and_unloaded(server, open_page):
    page = open_page(server)
    find_row(page, "plain").get_by_role("button", name=LOAD).click()
    card = find_card(page, "plain")
    expect(card).to_contain_text("ready")
    expect(card).to_contain_text(re.compile(r"in \d"))
    expect(find_row(page, "plain")).to_have_count(0)
    details = open_details(page, "plain:latest")
    details.get_by_role("button", name="Pin").click()
    expect(card).to_contain_text("never (pinned)")
    details.get_by_role("button", name="Unpin").click()
    expect(card).to_contain_text(re.compile(r"in \d"))
    expect(details).to_contain_text("Command")
    card.get_by_role("button", name="Unload").click()
    expect(find_row(page, "plain")).to_be_visible()
    expect(card).to_have_count(0)


def test_what_one_does_with_a_model_looks_like_a_button(server, open_page):
    page = open_page(server)
    row = find_row(page, "plain")
    look = "({ borderColor, color, opacity }) => [borderColor, color, opacity]"
    looks = [
        one.evaluate(f"node => ({look})(getComputedStyle(node))")
        for one in (row.get_by_role("button", name=LOAD), row.get_by_role("link", name="Chat"))
    ]
    assert looks[0] == looks[1]
    assert "rgba" not in looks[0][0]  # its border is no transparent one


def test_a_model_that_another_client_uses_is_seen_without_a_reload(server, open_page):
    page = open_page(server)
    expect(find_row(page, "plain")).to_be_visible()
    server.post("/api/generate", {"model": "plain"})
    expect(find_card(page, "plain")).to_contain_text("ready")
    server.post("/api/generate", {"model": "plain", "keep_alive": 0})
    expect(find_row(page, "plain")).to_be_visible()


def test_a_card_has_the_speed_of_now_and_of_the_last_answer(server, open_page):
    server.post("/api/generate", {"model": "plain"})
    page = open_page(server)
    card = find_card(page, "plain")
    expect(card).to_contain_text(re.compile(r"RAM\s+[\d.]+ .iB of [\d.]+ .iB"))
    text = "Hello @tokens=100000 @delay=0.02"
    body = {"model": "plain", "messages": [{"role": "user", "content": text}]}
    connection = server.connect()
    connection.request("POST", "/api/chat", json.dumps(body))
    expect(card).to_contain_text(re.compile(r"[1-9][\d.,]* tokens/s now"))
    expect(card).to_contain_text("1 of 1 running")
    connection.close()
    server.post(
        "/api/chat", {**body, "messages": [{"role": "user", "content": "Hi"}], "stream": False}
    )
    expect(card).to_contain_text(re.compile(r"[\d.,]+ tokens/s, last response"))
    server.post("/api/generate", {"model": "plain", "keep_alive": 0})


def test_a_model_is_loaded_with_the_context_that_was_chosen(server, open_page):
    write_tiny_gguf(server.models / "long.gguf", n_ctx=32_768)
    page = open_page(server)
    details = open_details(page, "long:latest")
    expect(details).to_contain_text("a context of 4,096 tokens")
    details.get_by_text("Load options").click()
    choice = details.get_by_label("Context")
    expect(choice).to_contain_text("32,768 tokens")
    expect(choice).not_to_contain_text("65,536 tokens")  # it was trained for less
    choice.select_option("16,384 tokens")
    expect(details).to_contain_text("a context of 16,384 tokens")
    expect(details.locator(".effect")).to_contain_text("context: 4,096 → 16,384")
    details.get_by_role("button", name="Load with these options").click()
    expect(find_card(page, "long")).to_contain_text("ready")
    (row,) = server.get("/api/ps")["models"]
    assert row["context_length"] == 16_384
    server.post("/api/generate", {"model": "long", "keep_alive": 0})
    expect(find_row(page, "long")).to_be_visible()
    (server.models / "long.gguf").unlink()


def test_a_plan_is_made_with_the_engine_that_was_chosen(server, open_page):
    page = open_page(server)
    asked = []

    def add_engine(route):
        """Let the plan have another engine that is installed: here is none but the fake one."""
        asked.append(route.request.post_data_json)
        answer = route.fetch().json()
        other = {"engine": "vllm", "title": "vLLM", "version": "1", "taken": False, "reason": ""}
        rows = [row for row in answer.get("engines", []) if row["engine"] != "vllm"]
        route.fulfill(json={**answer, "engines": [*rows, other]})

    page.route("**/api/plan", add_engine)
    details = open_details(page, "plain:latest")
    details.get_by_text("Load options").click()
    details.get_by_label("Engine").select_option("vLLM")
    expect(details).to_contain_text("Cannot be served here")
    expect(details.get_by_role("button", name="Load with these options")).to_be_disabled()
    assert [one["options"] for one in asked] == [{}, {"engine": "vllm"}]
    details.get_by_label("Engine").select_option("automatic")
    expect(details).to_contain_text("Fits now")


def test_a_failed_load_says_why_and_leads_to_the_log(server, open_page):
    page = open_page(server)
    find_row(page, "broken").get_by_role("button", name=LOAD).click()
    failed = page.get_by_role("region", name="Needs attention")
    expect(failed).to_contain_text("broken")
    expect(failed).to_contain_text("Loading failed")
    failed.get_by_role("link", name="Open the log").click()
    expect(page.get_by_role("region", name="Lines of the log")).to_contain_text("mouldy")


def test_a_damaged_file_is_marked_and_says_what_is_wrong(server, open_page):
    whole = (server.models / "plain.gguf").read_bytes()
    (server.models / "torn.gguf").write_bytes(whole[: len(whole) // 2])
    page = open_page(server)
    expect(find_row(page, "torn")).to_contain_text("damaged")
    expect(page.get_by_role("region", name="Needs attention")).to_contain_text("torn")
    expect(open_details(page, "torn:latest")).to_contain_text("it is truncated")


def test_a_load_shows_what_its_engine_has_read(server, open_page):
    server.model("slow", "--print", "Loading weights: 50% Completed | 2/4", "--ready-after", "600")
    page = open_page(server)
    find_row(page, "slow").get_by_role("button", name=LOAD).click()
    row = find_card(page, "slow")
    expect(row.get_by_role("progressbar")).to_be_visible()
    expect(row).to_contain_text(re.compile(r"[\d.]+ .?B of [\d.]+ .?B, \d"))
    row.get_by_role("button", name=re.compile("^Unload|^Stop")).click()
    expect(row.get_by_role("progressbar")).to_have_count(0)


def test_a_path_that_could_not_be_loaded_is_no_model_of_this_server(server, open_page, tmp_path):
    write_tiny_gguf(tmp_path / "ghost.gguf", n_ctx=2048)
    (tmp_path / "ghost.args").write_text("--exit-before-ready")
    page = open_page(server)
    expect(find_row(page, "plain")).to_be_visible()
    status, answer = server.post("/api/generate", {"model": str(tmp_path / "ghost.gguf")})
    assert status >= 400, answer
    failed = page.get_by_role("region", name="Needs attention")
    expect(failed.get_by_role("heading", name="ghost:latest")).to_be_visible()
    expect(find_row(page, "ghost")).to_have_count(0)
    page.get_by_role("link", name="Chat", exact=True).click()
    offered = page.get_by_role("combobox", name="Model", exact=True).get_by_role("option")
    expect(offered.filter(has_text="plain")).to_have_count(1)
    expect(offered.filter(has_text="ghost")).to_have_count(0)


def test_the_plan_of_a_model_that_does_not_fit_says_why(server_with_hub, open_page):
    page = open_page(server_with_hub)
    plan = show_plan(page, HUGE)
    expect(plan).to_contain_text("Cannot be served here")
    expect(plan).to_contain_text(re.compile("GiB|GB"))
    expect(plan).to_contain_text("requires more memory")
    expect(plan.locator(".memory .missing")).to_contain_text(re.compile("missing.*TiB"))
    expect(plan.get_by_role("button", name="Download anyway")).to_be_visible()


@pytest.mark.parametrize("name", [HUGE, "hf.co/test/Huge-GGUF", "test/Huge-GGUF"])
def test_download_anyway_begins_the_download(server_with_hub, open_page, name):
    page = open_page(server_with_hub)
    show_plan(page, name).get_by_role("button", name="Download anyway").click()
    download = page.locator(".downloads li").filter(has_text=HUGE)
    # most disks have no room for it either, which is what the download says
    expect(download).to_contain_text(re.compile("of 4.3 TB|it needs 4.3 TB"))
    expect(download).not_to_contain_text("requires more memory")


def test_another_quantization_is_planned_and_downloaded_by_a_click(
    server_with_hub, hub, open_page, tmp_path
):
    for name in ("Q8_0", "F16"):
        write_tiny_gguf(tmp_path / f"Two-{name}.gguf", n_ctx=4096)
    hub.add_repo("test/Two-GGUF", tmp_path)
    page = open_page(server_with_hub)
    plan = show_plan(page, "hf.co/test/Two-GGUF")
    choices = plan.get_by_role("group", name="Quantization")
    expect(choices.get_by_role("button", pressed=True)).to_have_count(1)
    other = choices.get_by_role("button", pressed=False)
    quantization = other.inner_text().split()[0]
    other.click()
    expect(choices.get_by_role("button", name=quantization, pressed=True)).to_be_visible()
    plan.get_by_role("button", name="Download").click()
    expect(find_row(page, f"hf.co/test/Two-GGUF:{quantization}")).to_be_visible()


def test_names_of_the_hub_and_of_ollama_are_found(server_with_hub, open_page):
    page = open_page(server_with_hub)
    search(page, "tiny-g")
    expect(page.locator("model-card")).to_have_count(1)
    expect(find_offer(page, "test/Tiny-GGUF")).to_contain_text("Q8_0")  # its sizes, unasked
    search(page, "llama3.2-vision")
    expect(page.locator("model-card").get_by_role("heading").first).to_have_text(
        re.compile("^llama3.2-vision:")
    )


def test_a_model_that_the_hub_lacks(server_with_hub, open_page):
    page = open_page(server_with_hub)
    search(page, "hf.co/test/nothing").press("Enter")
    expect(find_offer(page, "hf.co/test/nothing")).to_contain_text("no such repository")


def test_a_download_survives_a_reload_of_the_page(server_with_hub, hub, open_page):
    page = open_page(server_with_hub)
    plan = show_plan(page, TINY)
    expect(plan).to_contain_text("Fits now: needs")
    hub.fault = lambda method, path, headers, origin: (
        Fault(bytes_per_s=2_000) if origin == "cdn" else None
    )
    plan.get_by_role("button", name="Download").click()
    expect(plan.get_by_role("progressbar")).to_be_visible()  # in the card, too
    expect(page.locator(".downloads")).to_contain_text(re.compile(r"/s, .+ left"))
    page.reload()
    expect(page.get_by_role("progressbar")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("progressbar")).to_have_count(0)
    hub.fault = None
    stopped = page.locator(".downloads li").filter(has_text=TINY)
    expect(stopped).to_contain_text("stopped")
    stopped.get_by_role("button", name="Continue").click()
    expect(find_row(page, TINY)).to_be_visible()
    details = open_details(page, TINY)
    details.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(TINY)
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(find_row(page, TINY)).to_be_visible()
    details.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(find_row(page, TINY)).to_have_count(0)


def test_models_that_come_and_go_on_the_disk_are_seen_without_a_reload(server, open_page):
    page = open_page(server)
    expect(find_row(page, "plain")).to_be_visible()
    file = server.models / "copied-by-hand.gguf"
    file.write_bytes((server.models / "plain.gguf").read_bytes())
    expect(find_row(page, "copied-by-hand")).to_be_visible()
    file.unlink()
    expect(find_row(page, "copied-by-hand")).to_have_count(0)
    assert server.post("/api/copy", {"source": "plain", "destination": "twin"})[0] == 200
    expect(find_row(page, "twin")).to_be_visible()
    server.request("DELETE", "/api/delete", {"model": "twin"})
    expect(find_row(page, "twin")).to_have_count(0)


def wait_until(page, is_so, timeout_s=30.0):
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, "it has not come about"
        page.wait_for_timeout(20)


def test_a_change_during_a_list_that_is_under_way_is_not_missed(server, open_page):
    page = open_page(server)
    expect(find_row(page, "plain")).to_be_visible()
    count = """() => {
      const loaded = performance.getEntriesByType("resource").map((entry) => entry.name);
      return import(loaded.find((name) => name.endsWith("/live/state.js"))).then(({ changes }) => {
        globalThis.told = 0;
        changes.addEventListener("disk", () => (globalThis.told += 1));
      });
    }"""
    page.evaluate(count)
    file, another = server.models / "short-lived.gguf", server.models / "another.gguf"
    file.write_bytes((server.models / "plain.gguf").read_bytes())
    expect(find_row(page, "short-lived")).to_be_visible()
    held = []
    page.route("**/api/tags", lambda route: route.continue_() if held else held.append(route))
    another.write_bytes(file.read_bytes())
    wait_until(page, lambda: held)
    answer, told = held[0].fetch(), page.evaluate("told")
    file.unlink()
    wait_until(page, lambda: page.evaluate("told") > told)
    with page.expect_request("**/api/tags"):
        held[0].fulfill(response=answer)
    expect(find_row(page, "short-lived")).to_have_count(0)
    another.unlink()


def test_two_names_of_one_engine_are_shown_as_one_and_unloaded_together(server, open_page):
    assert server.post("/api/copy", {"source": "plain", "destination": "twin"})[0] == 200
    page = open_page(server)
    for name in ("plain", "twin"):
        server.post("/api/generate", {"model": name})
    expect(find_card(page, "plain")).to_contain_text("shared with twin:latest")
    expect(find_row(page, "twin")).to_contain_text("ready")
    expect(find_row(page, "twin")).to_contain_text("shared with plain:latest")
    (row,) = server.get("/api/ps")["models"]
    assert sorted([row["name"], *row["other_names"]]) == ["plain:latest", "twin:latest"]
    find_card(page, "plain").get_by_role("button", name="Unload").click()
    expect(page.get_by_role("status").filter(has_text="which share one engine")).to_be_visible()
    expect(find_row(page, "plain")).to_be_visible()
    expect(find_row(page, "twin")).not_to_contain_text("ready")
    server.request("DELETE", "/api/delete", {"model": "twin"})


def test_a_load_that_was_asked_for_here_can_be_taken_back(server, open_page):
    server.model("endless", "--ready-after", "10000")
    page = open_page(server)
    find_row(page, "endless").get_by_role("button", name=LOAD).click()
    card = find_card(page, "endless")
    expect(card).to_contain_text("loading")
    card.get_by_role("button", name="Unload").click()
    expect(find_row(page, "endless")).to_be_visible()


def test_a_read_only_server_offers_no_downloads_and_no_deletion(tmp_path, open_page):
    with Server(tmp_path, "--read-only") as server:
        server.model("plain")
        page = open_page(server)
        details = open_details(page, "plain:latest")
        expect(details.get_by_role("button", name="Pin")).to_be_visible()
        expect(page.get_by_role("button", name="Delete")).to_have_count(0)
        expect(page.get_by_role("button", name="Add a model")).to_have_count(0)


def test_two_hundred_models_are_listed_and_filtered(tmp_path, open_page):
    with Server(tmp_path) as server:
        server.model("model-000")
        data = (server.models / "model-000.gguf").read_bytes()
        for number in range(1, 200):
            (server.models / f"model-{number:03}.gguf").write_bytes(data)
        page = open_page(server)
        table = page.locator("table.models")
        page.get_by_label("Filter models").fill("model-")
        expect(table.get_by_role("button", name=LOAD)).to_have_count(200)
        page.get_by_label("Filter models").fill("-19")
        expect(table.get_by_role("button", name=LOAD)).to_have_count(10)
        page.get_by_label("Filter models").fill("nothing like it")
        expect(page.locator("models-page")).to_contain_text("No model has")


def test_the_nodes_of_a_cluster(tmp_path, open_page):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with Cluster(tmp_path) as cluster:
        cluster.add("plain")
        names = [cluster.name(cable) for cable in cluster.cables]
        page = open_page(cluster.head)
        rows = {name: page.locator("table.nodes tr", has_text=name) for name in names}
        for row in rows.values():
            expect(row).to_contain_text("up")
        page.get_by_role("button", name="Load plain:latest").click()
        place = find_row(page, "plain").locator("small", has_text="on 127.0.0.1:")
        expect(place).to_be_visible()
        holder = place.inner_text().removeprefix("on ")
        other = next(name for name in names if name != holder)
        expect(rows[holder]).to_contain_text("plain:latest")
        expect(rows[other]).not_to_contain_text("plain:latest")
        page.get_by_role("button", name=f"Drain {other}").click()
        expect(rows[other]).to_contain_text("draining")
        page.get_by_role("button", name=f"Undrain {other}").click()
        expect(rows[other]).to_contain_text("up")
        page.get_by_role("button", name="Unload plain:latest").click()
        expect(place).to_have_count(0)
        cluster.nodes[names.index(other)].process.kill()
        expect(rows[other]).to_contain_text("last seen at")


def write_huge(folder, name="huge"):
    """Write a model that no machine holds; most of its file is a hole."""
    made = make_gguf(f"{name}.gguf", "Q8_0", 4000.0)
    with (folder / made.name).open("wb") as file:
        file.write(made.content)
        file.truncate(made.size)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return a server with models of several kinds."""
    with Server(tmp_path_factory.mktemp("library")) as running:
        running.model("chats")
        template = (
            "{% if tools %}{{ tools }}{% endif %}{% if enable_thinking %}<think></think>{% endif %}"
        )
        write_tiny_gguf(running.models / "able.gguf", n_ctx=32_768, template=template)
        pooling = lambda writer: writer.add_uint32("llama.pooling_type", 1)  # noqa: E731
        write_tiny_gguf(running.models / "embeds.gguf", n_ctx=2048, extra=pooling)
        write_huge(running.models)
        other = make_gguf("another.gguf", "Q4_K_M", 0.01, architecture="qwen3")
        (running.models / other.name).write_bytes(
            other.content + bytes(other.size - len(other.content))
        )
        for age, name in enumerate(("able", "another", "chats", "embeds", "huge")):
            os.utime(running.models / f"{name}.gguf", (1e9 - 1e6 * age,) * 2)
        yield running


def list_names(page):
    """Return the names in the list of models, in their order, but those of the machine's own."""
    rows = page.locator('tr[data-model$=":latest"]')
    names = rows.evaluate_all("rows => rows.map((row) => row.dataset.model)")
    return [name.removesuffix(":latest") for name in names]


def test_what_models_can_do_and_whether_they_fit(library, open_page):
    page = open_page(library)
    expect(find_row(page, "able").get_by_role("img", name="tools")).to_be_visible()
    expect(find_row(page, "able").get_by_role("img", name="thinking")).to_be_visible()
    expect(find_row(page, "able")).to_contain_text("32K context")
    expect(find_row(page, "embeds").get_by_role("img", name="embedding")).to_be_visible()
    expect(find_row(page, "chats").get_by_role("img")).to_have_count(0)
    expect(find_row(page, "chats").locator(".mark")).to_have_text("Fits now")
    expect(find_row(page, "huge").locator(".mark")).to_have_text("Too large")
    expect(find_row(page, "huge").locator(".mark")).to_have_attribute(
        "title", re.compile("requires more")
    )


def test_marks_come_by_one_request(library, open_page):
    page = open_page(library)
    asked = []
    page.on(
        "request", lambda request: asked.append(request.url) if "api/fits" in request.url else None
    )
    expect(find_row(page, "huge").locator(".mark")).to_have_text("Too large")
    for name in ("Activity", "Models"):
        page.get_by_role("link", name=name, exact=True).click()
    expect(find_row(page, "huge").locator(".mark")).to_have_text("Too large")
    assert library.post("/api/generate", {"model": "chats"})[0] == 200  # memory has changed
    expect(find_card(page, "chats")).to_contain_text("ready")
    wait_until(page, lambda: len(asked) >= 2)
    library.post("/api/generate", {"model": "chats", "keep_alive": 0})
    expect(find_row(page, "chats").locator(".mark")).to_have_text("Fits now")
    page.wait_for_timeout(1000)
    assert len(asked) <= 3  # at first, with the model, without it


@pytest.mark.parametrize("status", [403, 404, 500])
def test_models_are_listed_without_marks(library, open_page, status):
    page = open_page(library, "activity")
    asked = []
    page.route(
        "**/api/fits",
        lambda route: (asked.append(route), route.fulfill(status=status, json={"error": "no"})),
    )
    page.get_by_role("link", name="Models", exact=True).click()
    wait_until(page, lambda: asked)
    expect(find_row(page, "huge").get_by_role("button", name=LOAD)).to_be_visible()
    expect(page.locator(".mark")).to_have_count(0)
    assert len(asked) == 1


def test_models_are_grouped_and_sorted(library, open_page):
    page = open_page(library)
    expect(find_row(page, "huge").locator(".mark")).to_have_text("Too large")
    groups = page.locator(".models .group")
    expect(groups).to_have_text(["llama", "qwen3"])
    assert list_names(page) == ["able", "chats", "embeds", "huge", "another"]
    sort = page.get_by_label("Sort by")
    orders = {
        "Name": ["able", "another", "chats", "embeds", "huge"],
        "Newest": ["able", "another", "chats", "embeds", "huge"],
        "Size": ["huge", "another"],
    }
    for label, names in orders.items():
        sort.select_option(label)
        expect(groups).to_have_count(0)
        wait_until(page, lambda: list_names(page)[: len(names)] == names)  # noqa: B023
    sort.select_option("Fit")
    expect(groups).to_have_text(["Fits now", "Too large"])
    assert list_names(page)[-1] == "huge"
    page.reload()
    expect(groups).to_have_text(["Fits now", "Too large"])  # the choice stays


def test_the_machine_is_drawn_with_its_models_and_who_waits(server, open_page):
    page = open_page(server)
    machine = page.get_by_role("region", name="This machine")
    expect(machine).to_contain_text("Idle")
    connections = []
    for text in ("Hello @tokens=100000 @delay=0.02", "wait"):
        body = {"model": "plain", "messages": [{"role": "user", "content": text}]}
        connections.append(server.connect())
        connections[-1].request("POST", "/api/chat", json.dumps(body))
        expect(machine).to_contain_text("1 request running")
    expect(machine.locator(".bar .model")).to_have_attribute(
        "title", re.compile("plain:latest: [1-9]")
    )
    expect(machine.locator(".legend")).to_contain_text("plain:latest")
    expect(machine).to_contain_text("1 waiting")
    expect(machine).to_contain_text("1 request waits")
    for connection in connections:
        connection.close()
    expect(machine).to_contain_text("Idle")
    server.post("/api/generate", {"model": "plain", "keep_alive": 0})


def test_a_card_downloads_without_its_plan_unfolded(server_with_hub, hub, open_page, tmp_path):
    write_tiny_gguf(tmp_path / "Card-Q8_0.gguf", n_ctx=4096)
    hub.add_repo("test/Card-GGUF", tmp_path)
    page = open_page(server_with_hub)
    search(page, "card-g")
    card = find_offer(page, "test/Card-GGUF")
    expect(card.get_by_role("group", name="Quantization").get_by_role("button")).to_have_text(
        [re.compile("Q8_0 .+kB")]
    )
    expect(card.locator(".mark")).to_have_text("Fits now")
    card.get_by_role("button", name="Download").click()
    expect(find_row(page, "hf.co/test/Card-GGUF:Q8_0")).to_be_visible()
    expect(card).to_contain_text("On this server")


def test_a_model_is_found_and_downloaded_with_the_keyboard(
    server_with_hub, hub, open_page, tmp_path
):
    write_tiny_gguf(tmp_path / "Keys-Q8_0.gguf", n_ctx=4096)
    hub.add_repo("test/Keys-GGUF", tmp_path)
    page = open_page(server_with_hub)
    page.get_by_role("button", name="Add a model").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Model name, or part of it")).to_be_focused()
    page.keyboard.type("keys-g")
    card = find_offer(page, "test/Keys-GGUF")
    expect(card.get_by_role("group", name="Quantization")).to_be_visible()
    for name in ("Search", "Q8_0", "Download"):
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name=name).first).to_be_focused()
    page.keyboard.press("Enter")
    expect(find_row(page, "hf.co/test/Keys-GGUF:Q8_0")).to_be_visible()


def test_only_cards_in_view_ask_for_their_plans(server_with_hub, hub, open_page, tmp_path):
    write_tiny_gguf(tmp_path / "Many-Q8_0.gguf", n_ctx=4096)
    for number in range(9):
        hub.add_repo(f"test/Many-{number}-GGUF", tmp_path)
    page = open_page(server_with_hub, viewport={"width": 390, "height": 500})
    asked = []
    page.on(
        "request",
        lambda request: (
            asked.append(request.post_data_json["model"]) if "api/plan" in request.url else None
        ),
    )
    search(page, "many-")
    expect(page.locator("model-card")).to_have_count(9)
    expect(page.locator("model-card").first).to_contain_text("Q8_0")
    last = page.locator("model-card").last
    name = last.get_by_role("heading").inner_text()
    assert name not in asked
    last.scroll_into_view_if_needed()
    expect(last).to_contain_text("Q8_0")
    assert len(asked) == len(set(asked))  # none is asked for twice


def test_without_a_network_the_search_says_so(tmp_path, open_page):
    with Server(tmp_path, env={"HF_ENDPOINT": "http://127.0.0.1:9"}) as server:
        page = open_page(server)
        asked = []
        page.on(
            "request",
            lambda request: asked.append(request.url) if "api/plan" in request.url else None,
        )
        search(page, "")
        expect(page.locator("models-page")).to_contain_text(
            "These models run well on this machine."
        )
        search(page, "llama3.2")
        expect(page.locator("model-search")).to_contain_text("The hub could not be searched")
        expect(find_offer(page, "llama3.2:3b")).to_contain_text("2.0 GB")
        expect(
            find_offer(page, "llama3.2:1b").get_by_role("button", name="Download")
        ).to_be_visible()
        assert not asked


def test_load_options_say_what_they_change_and_hold(server, open_page):
    page = open_page(server)
    details = open_details(page, "plain:latest")
    details.get_by_text("Load options").click()
    load = details.get_by_role("button", name="Load with these options")
    expect(load).to_be_disabled()
    for label, value, effect in (
        ("Threads", "1", "1 thread, as requested"),
        ("Parallel requests", "3", ""),
    ):
        field = details.get_by_label(label)
        field.fill(value)
        field.press("Tab")
        expect(details.locator("label").filter(has_text=label).locator(".effect")).to_contain_text(
            effect or re.compile(".")
        )
    details.get_by_label("KV cache").select_option("q8_0")
    with page.expect_request("**/api/generate") as sent:
        load.click()
    options = {"num_thread": 1, "num_parallel": 3, "kv_cache_type": "q8_0"}
    assert sent.value.post_data_json == {"model": "plain:latest", "options": options}
    expect(find_card(page, "plain")).to_contain_text("ready")
    assert "1 thread, as requested" in server.get("/api/plan?model=plain")["reasons"]
    details.get_by_label("Threads").fill("2")  # they stay open when the model gets a card
    details.get_by_role("button", name="Reload with these options").click()
    wait_until(
        page,
        lambda: "2 threads, as requested" in server.get("/api/plan?model=plain").get("reasons", []),
    )
    server.post("/api/generate", {"model": "plain", "keep_alive": 0})
    expect(find_row(page, "plain")).to_be_visible()


def test_a_key_that_is_no_admins_sees_no_options_beyond_ollamas(tmp_path, open_page):
    with Server(tmp_path, "--api-key", "admin-0123456789") as server:
        server.model("plain")
        headers = {"authorization": "Bearer admin-0123456789"}
        made = server.request(
            "POST", "/api/keys", {"name": "app", "scopes": ["infer", "read"]}, headers
        )[2]
        page = open_page(server)
        page.get_by_label("Key", exact=True).fill(json.loads(made)["secret"])
        page.keyboard.press("Enter")
        details = open_details(page, "plain:latest")
        details.get_by_text("Load options").click()
        expect(details.get_by_label("Threads")).to_be_visible()
        expect(details.get_by_label("Parallel requests")).to_have_count(0)
