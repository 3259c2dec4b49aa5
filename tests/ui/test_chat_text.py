"""Texts of answers: Markdown that grows, code in colors, mathematics, and script."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from tests.server_process import Server
from tests.ui.test_accessibility import check

pytestmark = pytest.mark.slow

SHOW = """(text) => {
  const shown = document.querySelector("#shown") ?? document.createElement("markdown-text");
  shown.id = "shown";
  Object.assign(shown, { growing: text.endsWith("…"), text });
  document.querySelector("main").prepend(shown);
}"""
FORMULAS = r"""
$$\boxed{x = \frac{-b\pm\sqrt{b^2-4ac}}{2a}}$$

\[
\begin{pmatrix} a & b \\ c & d \end{pmatrix}\vec{v} = \left\{\cancel{x}\right\}, \color{red}{r}
\]

In a line: \(\mathbb{R} \subset \mathcal{L}\), $E = mc^2$, and $$\int_0^\infty e^{-x^2}\,dx$$.

- $\underbrace{a+b}_{c}$, $\xrightarrow{n \to \infty}$, $\overline{AB}$
- $\fcolorbox{red}{aqua}{x}$, $\rule{1em}{1em}$
- $\unknown{x}$ and $\frac{a$ and $\href{javascript:alert(1)}{x}$
- $\htmlStyle{color:red}{x}$ $\includegraphics{http://192.0.2.1/pixel.png}$
"""


TABLE = """
| Engine | Tokens/s | Notes | Address |
|:---|---:|:---:|---|
| llama.cpp | 2,431.0 | {words} | {words} |
| vLLM | 98.1 | {words} | H~2~O, about ~5 |
| {long} | 1 | {words} | {words} |
""".format(long="x" * 40, words="What one would want to know of it, in many words. " * 4)
BROKEN_WORDS = """(table) => {
  const broken = [];
  const texts = document.createTreeWalker(table, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    for (const { 0: word, index } of texts.currentNode.data.matchAll(/\\S+/g)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, index);
      range.setEnd(texts.currentNode, index + word.length);
      if (new Set([...range.getClientRects()].map(({ top }) => top)).size > 1) broken.push(word);
    }
  }
  return broken;
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("texts")) as running:
        running.model("plain")
        running.model("code", "--say", json.dumps(f"```\n{'x' * 80}\n```"))
        yield running


@pytest.fixture
def show(server, open_page):
    """Return a function that shows a text, and returns its element. One that ends in "…" grows."""
    page = open_page(server, "chat")
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()

    def show(text):
        page.evaluate(SHOW, text)
        return page.locator("#shown")

    return show


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_formulas_of_every_kind_are_drawn_without_a_complaint(show, scheme):
    """`open_page` fails with the first violation of the content's policy."""
    shown = show(FORMULAS)
    expect(shown.locator(".katex-display")).to_have_count(3)
    assert shown.locator(".katex").count() >= 10
    assert shown.locator("a, img").count() == 0
    expect(shown.locator("code.math")).to_have_count(0)
    expect(shown.locator("math").first).to_be_attached()  # for screen readers
    assert shown.locator(".vlist").first.evaluate("node => node.style.height") != ""
    shown.page.emulate_media(color_scheme=scheme)
    check(shown.page)


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $10.",
        "From $5/unit to US$6, or 7$ or 8$.",
        "Set $HOME/$USER and `$x$` in your shell.",
        r"An escaped \$x\$ stays.",
        "Not yet closed: $x + y",
        "```\n$x$\n```",
    ],
)
def test_money_variables_and_code_are_no_formulas(show, text):
    shown = show(text)
    expect(shown).to_contain_text("$")
    assert shown.locator(".katex, code.math").count() == 0


def test_code_is_colored_and_copied(show):
    python = "def f():\n    return '<b>'  # one\n"
    shown = show(f"```python\n{python}```\n\n```ps1\nGet-Item $x\n```\n\n```\nno name\n```")
    expect(shown.locator(".hljs-keyword").first).to_have_text("def")
    expect(shown.locator(".hljs-comment")).to_have_text("# one")
    expect(shown.locator(".hljs-built_in")).to_have_text("Get-Item")  # one of the further languages
    expect(shown.locator(".bar span")).to_have_text(["python", "ps1", "text"])
    assert shown.locator("pre").first.text_content() == python
    assert shown.locator("pre").last.locator("span").count() == 0
    shown.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown.get_by_role("button", name="Copy the code").first.click()
    expect(shown.get_by_role("button", name="Copy the code").first).to_have_text("Copied")
    copied = shown.page.evaluate("navigator.clipboard.readText()")
    assert copied == python


def test_eighty_columns_of_code_can_be_read(server, open_page):
    page = open_page(server, "chat?model=code:latest", viewport={"width": 1280, "height": 800})
    field = page.get_by_role("textbox", name="Message")
    field.fill("Code?")
    field.press("Enter")
    pre = page.locator("markdown-text pre")
    expect(pre).to_contain_text("x" * 80)
    assert pre.evaluate("pre => pre.scrollWidth <= pre.clientWidth")
    box, turn = pre.bounding_box(), page.locator("chat-turn").bounding_box()  # which clips it
    assert turn["x"] <= box["x"] and box["x"] + box["width"] <= turn["x"] + turn["width"]


def test_what_is_complete_stays_while_a_text_grows(show):
    """So that a selection stays, and a long answer costs little."""
    shown = show("# One\n\n```js\nlet x\n```\n\nThe last …")
    expect(shown.locator(".hljs-keyword")).to_have_text("let")
    shown.locator("h3").evaluate("node => (node.mark = 1)")
    shown.locator("pre").evaluate("node => (node.mark = 1)")
    show("# One\n\n```js\nlet x\n```\n\nThe last line, and `more` …")
    expect(shown).to_contain_text("and more")
    assert shown.locator("h3").evaluate("node => node.mark") == 1
    assert shown.locator("pre").evaluate("node => node.mark") == 1
    show("# Two")
    expect(shown.locator("h3")).to_have_text("Two")
    expect(shown.locator("pre")).to_have_count(0)


@pytest.mark.parametrize("width", [390, 1280])
def test_a_table_scrolls_and_breaks_no_word(show, width):
    shown = show(TABLE)
    table = shown.get_by_role("table")
    shown.page.set_viewport_size({"width": width, "height": 844})
    expect(table).to_contain_text("H~2~O, about ~5")
    assert shown.locator("del").count() == 0
    assert table.evaluate(BROKEN_WORDS) == []
    aligned = "cell => getComputedStyle(cell).textAlign"
    cells = table.locator("tbody tr").first.locator("td")
    assert [cell.evaluate(aligned) for cell in cells.all()] == ["left", "right", "center", "start"]
    color = "cell => getComputedStyle(cell).color"
    assert table.locator("th").first.evaluate(color) == cells.first.evaluate(color)
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    if width < 800:
        box = shown.locator(".scroll")
        assert box.evaluate("box => box.scrollWidth > box.clientWidth")


def test_a_definition_at_the_end_makes_a_link_above(show):
    shown = show("See [the page][1].\n\nText …")
    expect(shown).to_contain_text("[the page][1]")
    show("See [the page][1].\n\nText\n\n[1]: https://example.com/")
    expect(shown.get_by_role("link", name="the page")).to_have_attribute(
        "href", "https://example.com/"
    )


@pytest.mark.parametrize(
    "text",
    [
        "<img src=x onerror=document.title='hacked'>",
        "<script>document.title='hacked'</script>",
        "```<img/src=x/onerror=document.title='hacked'>\nx\n```",
        "```python\n<img src=x onerror=document.title='hacked'>\n```",
        "$<img src=x onerror=document.title='hacked'>$",
        "$$\\text{<img src=x onerror=document.title='hacked'>}$$",
        "\\[ </code><img src=x onerror=document.title='hacked'> \\]",
        "| <svg onload=document.title='hacked'> |\n|---|\n| [x](javascript:alert(1)) |",
        "<b onclick=document.title='hacked'>b</b>",
        '[x](https://example.com "onmouseover=1") ![x](data:text/html,<script>)',
    ],
)
def test_script_stays_text(show, text):
    shown = show(text)
    expect(shown.locator("*").first).to_be_attached()
    shown.page.wait_for_function("document.querySelector('#shown').textContent.trim() !== ''")
    assert shown.locator("img, script, svg:not(.katex svg), [onerror], [onclick]").count() == 0
    assert shown.locator("[href^='javascript'], [href^='data']").count() == 0
    assert shown.page.title() == "Chat · vllama"
