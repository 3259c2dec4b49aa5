"""Settings and keys in the browser: changed by an administrator, and refused in sentences."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.server_process import Server
from tests.ui.test_accessibility import check

pytestmark = pytest.mark.slow

PLAIN = "sk-of-the-settings"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("settings-page")
    file = home / "config.toml"
    file.write_text('# ours\nkeep_alive = "7m"\n')
    options = ("--api-key", PLAIN, "--max-queue", "77")
    with Server(home, *options, env={"VLLAMA_CONFIG": str(file)}) as running:
        running.file = file
        yield running


def ask(server, method, path, body=None, key=PLAIN):
    shown = {"authorization": f"Bearer {key}"}
    status, _, answer = server.request(method, path, body, shown)
    return status, json.loads(answer)


@pytest.fixture(scope="module")
def ann(server):
    """The secret of an administrator."""
    return ask(server, "POST", "/api/keys", {"name": "ann", "scopes": ["admin"]})[1]["secret"]


@pytest.fixture
def open_settings(server, open_page):
    def open_settings(key, **options):
        page = open_page(server, "settings", **options)
        page.get_by_label("Key", exact=True).fill(key)
        page.get_by_role("button", name="Continue").click()
        page.get_by_role("heading", name="Keys", exact=True).wait_for()
        return page

    return open_settings


def test_a_setting_is_changed_and_a_wrong_value_is_refused(server, ann, open_settings):
    page = open_settings(ann)
    engines = page.get_by_role("region", name="Engines")
    value = engines.get_by_label("keep_alive", exact=True)
    expect(value).to_have_value("7m")
    value.fill("soon")
    engines.get_by_role("button", name="Save keep_alive").click()
    row = engines.get_by_role("row").filter(has_text="keep_alive")
    expect(row.get_by_role("alert")).to_contain_text('cannot set keep_alive to "soon"')
    value.fill("10m")
    engines.get_by_role("button", name="Save keep_alive").click()
    expect(page.get_by_role("status").filter(has_text="keep_alive is 10m now.")).to_be_visible()
    assert server.file.read_text() == '# ours\nkeep_alive = "10m"\n'
    expect(row.get_by_role("alert")).to_have_count(0)
    engines.get_by_label("kv_cache_type", exact=True).select_option("q8_0")
    engines.get_by_role("button", name="Save kv_cache_type").click()
    expect(engines.get_by_role("row").filter(has_text="kv_cache_type")).to_contain_text(
        "config.toml"
    )
    engines.get_by_role("button", name="Use the default of kv_cache_type").click()
    expect(engines.get_by_label("kv_cache_type", exact=True)).to_have_value("auto")
    assert "kv_cache_type" not in server.file.read_text()


def test_what_cannot_be_changed_here_is_shown_only(ann, open_settings):
    page = open_settings(ann)
    for name in ("host", "api_key", "engine_args", "engine_paths", "tls_cert", "max_queue"):
        expect(page.get_by_role("rowheader", name=re.compile(f"^{name} "))).to_be_visible()
        expect(page.get_by_label(name, exact=True)).to_have_count(0)
    expect(page.get_by_role("region", name="Output").get_by_label("debug")).to_be_visible()


def test_a_key_is_added_changed_rotated_and_revoked(server, ann, open_settings):
    page = open_settings(ann)
    keys = page.get_by_role("region", name="Keys")
    keys.get_by_role("button", name="Add a key").click()
    form = keys.get_by_role("form", name="A new key")
    expect(form.get_by_label("Name")).to_be_focused()
    form.get_by_label("Name").fill("team")
    form.get_by_label("Requests", exact=True).fill("often")
    form.get_by_role("button", name="Add the key").click()
    expect(form.get_by_role("alert")).to_contain_text("use the form 60/min")
    form.get_by_label("Requests", exact=True).fill("60/min")
    form.get_by_role("button", name="Add the key").click()
    dialog = page.get_by_role("dialog")
    secret = dialog.locator(".secret").inner_text()
    assert ask(server, "GET", "/api/keys", key=secret)[1]["own"]["name"] == "team"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    dialog.get_by_role("button", name="Copy").click()
    expect(dialog.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == secret
    page.keyboard.press("Escape")
    row = keys.get_by_role("row").filter(has_text="team")
    expect(row).to_contain_text("60 requests/min")
    expect(dialog).to_have_count(0)
    assert secret not in page.content()

    row.get_by_role("button", name="Change team").click()
    form = keys.get_by_role("form", name="Change team")
    form.get_by_label("Requests", exact=True).fill("")
    form.get_by_label("read").check()
    form.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("infer, read")
    expect(row).to_contain_text("none")

    for overlap, status in (("1h", 200), ("", 401)):
        row.get_by_role("button", name="Rotate team").click()
        dialog.get_by_label("Keep the old secret valid for").fill(overlap)
        dialog.get_by_role("button", name="Rotate").click()
        expect(dialog.locator(".secret")).to_have_text(re.compile("^sk-"))
        made = dialog.locator(".secret").inner_text()
        assert made != secret
        assert ask(server, "GET", "/api/keys", key=secret)[0] == status
        secret = made
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)

    row.get_by_role("button", name="Revoke team").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row).to_contain_text("revoked")
    row.get_by_role("button", name="Remove team").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)


def test_the_form_of_one_key_is_not_that_of_another(server, ann, open_settings):
    for name in ("first", "second"):
        ask(server, "POST", "/api/keys", {"name": name, "scopes": ["infer"]})
    keys = open_settings(ann).get_by_role("region", name="Keys")
    keys.get_by_role("button", name="Change first").click()
    form = keys.get_by_role("form", name="Change first")
    form.get_by_label("Requests", exact=True).fill("9/min")
    form.get_by_label("admin").check()
    keys.get_by_role("button", name="Change second").click()
    form = keys.get_by_role("form", name="Change second")
    expect(form.get_by_label("Requests", exact=True)).to_have_value("")
    expect(form.get_by_label("admin")).not_to_be_checked()


def test_the_page_goes_on_with_its_own_rotated_key(server, open_settings):
    secret = ask(server, "POST", "/api/keys", {"name": "own", "scopes": ["admin"]})[1]["secret"]
    page = open_settings(secret)
    keys = page.get_by_role("region", name="Keys")
    row = keys.get_by_role("row").filter(has_text="this page's key")
    expect(row.get_by_role("button", name="Revoke")).to_have_count(0)
    row.get_by_role("button", name="Rotate own").click()
    page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    new = page.get_by_role("dialog").locator(".secret").inner_text()
    page.keyboard.press("Escape")
    page.reload()
    expect(row).to_contain_text(new[-4:])


def test_a_key_that_is_no_administrators_sees_its_own_row_only(server, open_settings):
    body = {"name": "reader", "scopes": ["read"]}
    page = open_settings(ask(server, "POST", "/api/keys", body)[1]["secret"])
    expect(page.get_by_text("Only keys with the scope admin can see the settings.")).to_be_visible()
    keys = page.get_by_role("region", name="Keys")
    expect(keys.get_by_role("row")).to_have_count(2)  # with the head
    expect(keys.get_by_role("button")).to_have_count(0)


def test_a_server_that_requires_no_key_says_where_the_first_is_made(tmp_path, open_page):
    with Server(tmp_path, "--read-only") as server:
        page = open_page(server, "settings")
        keys = page.get_by_role("region", name="Keys")
        expect(keys).to_contain_text("vllama keys add NAME --scope admin")
        expect(keys.get_by_role("button")).to_have_count(0)
        expect(page.get_by_text("This server is read-only")).to_be_visible()
        expect(page.get_by_label("keep_alive", exact=True)).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_hinders_people_with_disabilities(ann, open_settings, scheme):
    page = open_settings(ann, color_scheme=scheme)
    page.get_by_label("keep_alive", exact=True).fill("soon")
    page.get_by_role("button", name="Save keep_alive").click()
    expect(page.get_by_role("alert").filter(has_text="soon")).to_be_visible()
    page.get_by_role("button", name="Add a key").click()
    check(page)


def test_targets_on_a_phone_are_large_enough(ann, open_settings):
    page = open_settings(ann, viewport={"width": 390, "height": 844})
    page.get_by_role("button", name="Add a key").click()
    heights = page.evaluate(
        """[...document.querySelectorAll("settings-page :is(button, select, input:not([type=checkbox]))")]
            .map((one) => one.getBoundingClientRect().height)"""  # noqa: E501
    )
    assert min(heights) >= 40
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
