"""The text of an HTML page, for a model to read: title, words and links.

Python's parser takes quadratic time for some pages: strangers' pages are read by a template worker.
"""

from __future__ import annotations

from contextlib import suppress
from html.parser import HTMLParser
from typing import Annotated
from urllib.parse import urljoin, urlsplit

import msgspec

from vllama.base.meaning import says

_SKIPPED = frozenset({"script", "style", "noscript", "template", "svg", "head", "nav", "footer"})
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "fieldset",
    "figcaption", "figure", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li",
    "main", "ol", "p", "pre", "section", "table", "td", "th", "tr", "ul",
})  # fmt: skip
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
MAX_LINKS = 500


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What `/api/web_fetch` answers."""

    title: str
    content: Annotated[str, says("the page as text")]
    links: Annotated[list[str], says("the addresses that it links to")]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What was fetched of `url`; `text` is HTML if it `is_html`."""

    url: str
    text: str
    is_html: bool

    def read(self) -> str:
        """Return the page in it as JSON."""
        plain = Page(title="", content=self.text, links=[])
        page = read_page(self.text, self.url) if self.is_html else plain
        return msgspec.json.encode(page).decode()


def read_page(html: str, url: str) -> Page:
    """Return the page at `url`; broken HTML is read as far as it goes."""
    reader = _Reader(url)
    with suppress(AssertionError):  # Python's parser has no other word for some broken declarations
        reader.feed(html)
        reader.close()
    lines = (" ".join(line.split()) for line in "".join(reader.texts).split("\n"))
    content = "\n".join(line for line in lines if line.strip("# -"))
    links = list(dict.fromkeys(reader.links))[:MAX_LINKS]
    return Page(title=" ".join("".join(reader.title).split()), content=content, links=links)


class _Reader(HTMLParser):
    """Collects the texts of a page; what is skipped may be nested."""

    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self.title: list[str] = []
        self.texts: list[str] = []
        self.links: list[str] = []
        self._url = url
        self._skipping: list[str] = []
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title" and not self.title:
            self._in_title = True
        if tag in _SKIPPED:
            self._skipping.append(tag)
        elif tag == "body":
            self._skipping.clear()  # a head that was never closed
        if tag in _BLOCKS:
            self.texts.append("\n" + _HEADINGS.get(tag, "- " if tag == "li" else ""))
        if tag == "a":
            self._link(dict(attrs).get("href"))

    def handle_endtag(self, tag: str) -> None:
        self._in_title = self._in_title and tag != "title"
        if tag in self._skipping:
            while self._skipping.pop() != tag:
                pass
        if tag in _BLOCKS:
            self.texts.append("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._skipping:
            self.texts.append(data)

    def _link(self, target: str | None) -> None:
        try:
            link = urljoin(self._url, (target or "").strip()).partition("#")[0]
            if urlsplit(link).scheme in ("http", "https") and link != self._url:
                self.links.append(link)
        except ValueError:
            pass  # no link that could be followed
