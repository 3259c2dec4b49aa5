"""The text of pages."""

import pytest

from vllama.net.web.page_text import MAX_LINKS, read_page

URL = "https://example.org/dir/page?x=1"


@pytest.mark.parametrize(
    ("html", "content"),
    [
        ("plain", "plain"),
        ("<p>one<p>two", "one\ntwo"),
        ("<h2>Head</h2>text", "## Head\ntext"),
        ("<ul><li>a<li>b</ul>", "- a\n- b"),
        ("a<br>b<br/>c", "a\nb\nc"),
        ("<b>a</b><i>b</i> c", "ab c"),
        ("x<script>alert('<p>no')</script>y", "xy"),
        ("x<style>p{}</style><noscript>no</noscript>y", "xy"),
        ("<nav>menu<div>more</div></nav>text<footer>end</footer>", "text"),
        ("<head><title>T</title><meta x></head><body>b", "b"),
        ("<head><title>T</title><body>b", "b"),
        ("&lt;&amp;&nbsp;&#252;", "<& ü"),
        ("a\n\n  b", "a\nb"),
        ("<div></p></div></div>ok", "ok"),
        ("", ""),
    ],
)
def test_content(html, content):
    assert read_page(html, URL).content == content


def test_the_title_is_the_first_one():
    html = "<title> A\n page </title><svg><title>icon</title></svg>"
    assert read_page(html, URL).title == "A page"


def test_links_are_whole_and_stand_once():
    html = (
        "<a href='/a'>1</a><a href='b#x'>2</a><a href='//other.org/c'>3</a><a href='/a'>4</a>"
        "<a href='mailto:x@y'>5</a><a href='javascript:x()'>6</a><a>7</a><a href='#top'>8</a>"
        "<a href='http://[bad'>9</a>"
    )
    assert read_page(html, URL).links == [
        "https://example.org/a", "https://example.org/dir/b", "https://other.org/c",
    ]  # fmt: skip


def test_links_are_counted():
    html = "".join(f"<a href='/{number}'>" for number in range(MAX_LINKS + 5))
    assert len(read_page(html, URL).links) == MAX_LINKS
