"""Fetching pages: what comes back, and what is never fetched."""

import ipaddress
import ssl

import pytest
import trustme

from tests.net.web.site import run_site
from vllama.base.errors import BadRequest, UpstreamError
from vllama.net.web.fetch import (
    MAX_PAGE_BYTES,
    MAX_REDIRECTS,
    fetch_page,
    is_public,
    resolve_public,
)

HTML = {"Content-Type": "text/html; charset=utf-8"}


def to_this_machine(host, port):
    """Stand for the look-up of names: the site of the tests is the whole internet."""
    return "127.0.0.1"


def fetch(url, **more):
    return fetch_page(url, to_this_machine, **more)


def test_a_page(site):
    body = "<title>T</title><body><h1>Grüße</h1><a href='/b'>b</a>".encode()
    site.pages["/a"] = (200, HTML, body)
    page = fetch(f"{site.url}/a")
    assert (page.url, page.text, page.is_html) == (f"{site.url}/a", body.decode(), True)


def test_the_host_is_the_one_that_was_asked_for(site):
    site.pages["/"] = (200, HTML, b"x")
    fetch(f"http://example.org:{site.server_port}")
    assert site.hosts == [f"example.org:{site.server_port}"]


def test_https_is_checked(tmp_path, monkeypatch):
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("example.org").configure_cert(context)
    with run_site(context) as site:
        site.pages["/"] = (200, HTML, b"secure")
        url = f"https://example.org:{site.server_port}/"
        with pytest.raises(UpstreamError, match="CERTIFICATE_VERIFY_FAILED"):
            fetch(url)
        authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        assert fetch(url).text == "secure"
        with pytest.raises(UpstreamError, match="CERTIFICATE_VERIFY_FAILED"):
            fetch(url.replace("example.org", "example.com"))
        assert site.hosts == [f"example.org:{site.server_port}"]


@pytest.mark.parametrize("charset", ["iso-8859-1", '"ISO-8859-1"', "iso-8859-1; q=1"])
def test_a_charset(site, charset):
    headers = {"Content-Type": f"text/plain; charset={charset}"}
    site.pages["/"] = (200, headers, "Grüße".encode("latin-1"))
    assert fetch(site.url).text == "Grüße"


@pytest.mark.parametrize("charset", ["punycode", "nonsense", ""])
def test_an_odd_charset_is_read_as_utf_8(site, charset):
    site.pages["/"] = (200, {"Content-Type": f"text/plain; charset={charset}"}, "Grüße".encode())
    assert fetch(site.url).text == "Grüße"


def test_redirects_are_followed(site):
    site.pages["/a"] = (302, {"Location": "b"}, b"")
    site.pages["/b"] = (200, HTML, b"there")
    assert fetch(f"{site.url}/a").text == "there"


def test_redirects_come_to_an_end(site):
    site.pages["/a"] = (301, {"Location": "/a"}, b"")
    with pytest.raises(UpstreamError, match=f"more than {MAX_REDIRECTS} redirects"):
        fetch(f"{site.url}/a")
    assert len(site.hosts) == MAX_REDIRECTS + 1


def test_every_redirect_is_checked(site):
    asked = []

    def resolve(host, port):
        asked.append((host, port))
        return "127.0.0.1" if host == "public.example" else resolve_public(host, port)

    site.pages["/a"] = (302, {"Location": f"{site.url}/secret"}, b"")
    site.pages["/secret"] = (200, HTML, b"secret")
    with pytest.raises(BadRequest, match=r"'127\.0\.0\.1' is not on the public internet"):
        fetch_page(f"http://public.example:{site.server_port}/a", resolve)
    assert asked == [("public.example", site.server_port), ("127.0.0.1", site.server_port)]
    assert len(site.hosts) == 1


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://example.org/", "http://", "http://[::1", "http://x:99999/",
     "gopher://example.org", "javascript://x"],
)  # fmt: skip
def test_what_is_no_page(url):
    with pytest.raises(BadRequest, match="cannot fetch the page"):
        fetch(url)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((404, HTML, b"no"), "answers with 404"),
        ((200, {"Content-Type": "application/pdf"}, b"%PDF"), "its type is 'application/pdf'"),
        ((200, HTML, b"x" * (MAX_PAGE_BYTES + 1)), "more than"),
        ((302, {}, b""), "answers with 302"),
    ],
)
def test_what_cannot_be_read(site, answer, text):
    site.pages["/"] = answer
    with pytest.raises(UpstreamError, match=text):
        fetch(site.url)


def test_nobody_answers(site):
    free = site.server_port
    site.server_close()
    with pytest.raises(UpstreamError, match="cannot fetch the page"):
        fetch(f"http://127.0.0.1:{free}")


def test_a_page_that_never_ends_is_cut(site):
    with pytest.raises(UpstreamError, match="it takes too long"):
        fetch(f"{site.url}/drips", limit_s=0.2)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::1]", "169.254.169.254"])
def test_this_machine_is_never_fetched_from(site, host):
    with pytest.raises(BadRequest, match="is not on the public internet"):
        fetch_page(f"http://{host}:{site.server_port}/")
    assert site.hosts == []


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True), ("2606:4700::1111", True), ("::ffff:8.8.8.8", True),
        ("64:ff9b::808:808", True),
        ("10.0.0.1", False), ("172.16.0.1", False), ("192.168.1.1", False), ("127.8.8.8", False),
        ("100.64.0.1", False), ("169.254.169.254", False), ("0.0.0.0", False),
        ("224.0.0.1", False), ("255.255.255.255", False), ("192.0.2.1", False),
        ("::", False), ("::1", False), ("fe80::1", False), ("fc00::1", False), ("ff02::1", False),
        ("::ffff:127.0.0.1", False), ("64:ff9b::7f00:1", False), ("2002:7f00:1::", False),
        ("2002:a9fe:a9fe::", False),
    ],
)  # fmt: skip
def test_public_addresses(address, public):
    assert is_public(ipaddress.ip_address(address)) is public


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1", "017700000001"])
def test_other_spellings_of_this_machine(host):
    with pytest.raises((BadRequest, UpstreamError)):
        resolve_public(host, 80)
