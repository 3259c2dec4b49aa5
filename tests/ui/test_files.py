"""How the files of the page are served, and what they are made of."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

from tests.server_process import Server
from vllama.routes.server.health import accepts_html
from vllama.routes.server.ui import compute_version, read_asset

FOLDER = Path(__file__).parents[2] / "vllama" / "ui"
CHROME = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
LAZY = [FOLDER / "vendor" / name for name in ("katex", "highlight")]
"""What is loaded when it is first needed."""
PDF = FOLDER / "vendor" / "pdfjs"
MOST_BYTES, MOST_LAZY_BYTES, MOST_PDF_BYTES = 600_000, 1_500_000, 2_500_000
MOST_FIRST_BYTES = 80_000
"""Compressed."""


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (CHROME, True),
        ("text/html", True),
        ("TEXT/HTML; charset=utf-8", True),
        ("application/json, text/html;q=0.5", True),
        ("text/html;q=0, */*", False),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("text/plain", False),
    ],
)
def test_only_browsers_are_sent_to_the_page(server, accept, expected):
    assert accepts_html(accept) is expected
    status, headers, body = server.request("GET", "/", headers={"accept": accept})
    if expected:
        assert (status, headers["location"], headers["vary"]) == (307, "ui/", "Accept")
    else:
        assert (status, body) == (200, b"Ollama is running")


def test_a_head_of_the_root_is_no_redirect(server):
    status, headers, _ = server.request("HEAD", "/", headers={"accept": "text/html"})
    assert (status, headers["content-length"]) == (200, "17")


def test_the_page_may_load_nothing_from_elsewhere(server):
    status, headers, body = server.request("GET", "/ui/")
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(
        part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
    )
    assert policy.pop("img-src") == "'self' data: blob:"
    own = ("script-src", "style-src", "connect-src", "font-src", "manifest-src")
    assert {policy.pop(name) for name in own} == {"'self'"}
    assert set(policy.values()) == {"'none'"}
    assert set(policy) == {"default-src", "base-uri", "form-action", "frame-ancestors"}
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert b"<app-shell>" in body


def test_another_policy_is_another_etag():
    """Browsers keep the headers of a page for as long as its ETag is the same."""
    index, version = FOLDER / "index.html", compute_version()
    etags = {
        read_asset(index, version, f"connect-src {one}").etag for one in ("'self'", "https://a")
    }
    assert len(etags) == 2


@pytest.mark.parametrize("page", ["index.html", "docs.html"])
def test_a_page_names_all_its_files_by_their_version(server, page):
    """A browser asks for them side by side, and for each version once."""
    _, headers, body = server.request("GET", f"/ui/{page}")
    assert headers["cache-control"] == "no-cache"
    named = re.findall(r'(?:href|src)="([^#"]+)(?<!\.html)"', body.decode())
    versions = {address.partition("/")[0] for address in named}
    assert len(versions) == 1
    bodies = {}
    for address in named:
        status, headers, bodies[address.partition("/")[2]] = server.request("GET", f"/ui/{address}")
        assert (status, headers["cache-control"]) == (200, "public, max-age=31536000, immutable")
    for name, text in bodies.items():  # each module that one imports is announced
        for address in (
            re.findall(r'from "(\.[^"]+)"', text.decode()) if name.endswith(".js") else ()
        ):
            assert (Path("/", name).parent / address).resolve().as_posix()[1:] in bodies


def test_an_older_version_gets_the_files_of_now(server):
    status, headers, body = server.request("GET", "/ui/v0123456789ab/main.js")
    assert (status, headers["cache-control"]) == (200, "no-cache")
    assert body == (FOLDER / "main.js").read_bytes()


def test_a_browser_keeps_what_has_not_changed(server):
    _, headers, body = server.request("GET", "/ui/main.js")
    assert headers["content-type"] == "text/javascript; charset=utf-8"
    known = {"if-none-match": headers["etag"]}
    status, again, rest = server.request("GET", "/ui/main.js", headers=known)
    assert (status, rest, again["etag"]) == (304, b"", headers["etag"])
    _, headers, packed = server.request("GET", "/ui/main.js", headers={"accept-encoding": "gzip"})
    assert headers["content-encoding"] == "gzip"
    assert len(packed) < len(body)
    assert gzip.decompress(packed) == body
    status, headers, rest = server.request("HEAD", "/ui/main.js")
    assert (status, headers["content-length"], rest) == (200, str(len(body)), b"")


@pytest.mark.parametrize(
    "path",
    [
        "/ui/nothing.js",
        "/ui/vendor",
        "/ui/vendor/vendor.json",
        "/ui/../routes/ui.py",
        "/ui/%2e%2e/__init__.py",
        "/ui//etc/passwd",
        "/ui/main.js/",
    ],
)
def test_nothing_else_is_served(server, path):
    status, headers, _ = server.request("GET", path)
    if status in (301, 307):  # the address in its plain form
        status, _, _ = server.request("GET", headers["location"])
    assert status == 404


def test_the_address_without_a_slash_leads_to_the_page(server):
    status, headers, _ = server.request("GET", "/ui")
    assert (status, headers["location"]) == (307, "ui/")


def test_the_page_can_be_switched_off(tmp_path):
    with Server(tmp_path, "--no-ui") as server:
        status, _, body = server.request("GET", "/", headers={"accept": CHROME})
        assert (status, body) == (200, b"Ollama is running")
        paths = ("/ui", "/ui/", "/ui/main.js", "/docs", "/ui/docs.html")
        assert {server.request("GET", path)[0] for path in paths} == {404}
        assert server.request("GET", "/openapi.json")[0] == 200


def test_the_libraries_are_those_of_the_list():
    listed = json.loads((FOLDER / "vendor" / "vendor.json").read_text())
    expected = {
        file["to"]: file["sha256"] for package in listed.values() for file in package["files"]
    }
    found = {
        path.relative_to(FOLDER / "vendor").as_posix(): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in (FOLDER / "vendor").rglob("*")
        if path.is_file() and path.name != "vendor.json" and path.suffix != ".ts"
    }
    assert found == expected
    assert all(f"{name}/LICENSE.txt" in found for name in listed)


def test_the_libraries_are_checked_with_the_types_of_their_versions():
    listed = json.loads((FOLDER / "vendor" / "vendor.json").read_text())
    tools = json.loads((FOLDER.parents[1] / "package.json").read_text())["devDependencies"]
    typed = {name: package["version"] for name, package in listed.items() if name in tools}
    assert typed and typed == {name: tools[name] for name in typed}


def test_the_page_is_small():
    def measure(*folders):
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        files = [path for path in files if path.suffix != ".ts"]
        return sum(path.stat().st_size for path in files)

    assert measure(*LAZY) < MOST_LAZY_BYTES
    assert measure(PDF) < MOST_PDF_BYTES
    assert measure(FOLDER) - measure(*LAZY, PDF) < MOST_BYTES


def test_the_first_view_is_small(server):
    """Of what `index.html` names, and so of all modules that these import at once."""
    _, _, page = server.request("GET", "/ui/")
    named = set(re.findall(r'(?:href|src)="(v[^"]+)"', page.decode()))
    packed = {"accept-encoding": "gzip"}
    bodies = [server.request("GET", f"/ui/{name}", headers=packed)[2] for name in named]
    assert sum(map(len, bodies)) < MOST_FIRST_BYTES


def test_fonts_are_served_as_they_are(server):
    (font, *_) = sorted((FOLDER / "vendor" / "katex" / "fonts").iterdir())
    path = f"/ui/{font.relative_to(FOLDER).as_posix()}"
    _, headers, body = server.request("GET", path, headers={"accept-encoding": "gzip"})
    assert (headers["content-type"], body) == ("font/woff2", font.read_bytes())
    assert "content-encoding" not in headers


def test_nothing_is_inline_and_nothing_is_loaded_from_elsewhere():
    own = [path for path in FOLDER.rglob("*") if path.is_file() and "vendor" not in path.parts]
    html = (FOLDER / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script>|javascript:", html)
    for path in own:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://", text), path
        if path.suffix == ".js":
            assert not re.search(r"(?<![.\w])style=\"", text), path  # .style= is a property
            for imported in re.findall(r'^import .*?"(\.{1,2}/[^"]+)"', text, re.MULTILINE):
                assert (path.parent / imported).is_file(), (path, imported)
