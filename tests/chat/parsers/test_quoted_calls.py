"""Texts that quote a call are never made into one, in any family's form, wherever they are cut."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.chat.parsers.test_families import FAMILIES, SCHEMAS
from vllama.chat.parsers.call_values import Form, Toolset
from vllama.chat.parsers.quoting import Before
from vllama.chat.parsers.scan import find_markers
from vllama.chat.parsers.thinking import ThinkSplitter
from vllama.chat.tool_calls import CallScanner

CALLS = [(form, text) for _, form, text, _, calls in FAMILIES if calls]


def one_line(text: str) -> str:
    return " ".join(text.replace("`", "").split())


def cut_begin(text: str) -> str:
    """Return a call without the words before it."""
    found = (text.find(marker) for marker in (*find_markers(text), ">>>"))
    return text[min((at for at in found if at >= 0), default=0) :]


WAYS = {
    "a fence": lambda text: f"A call is:\n```\n{text}\n```\nDone.",
    "a fence with a language": lambda text: f"```xml\n{text}\n```",
    "a fence of tildes": lambda text: f"So:\n~~~~\n{text}\n~~~~\n",
    "a longer fence": lambda text: f"````md\n```\n{text}\n```\n{text}\n````\n",
    "a fence that is not closed": lambda text: f"So:\n```\n{text}",
    "a fence in a list": lambda text: f"1. So:\n   ```\n   {one_line(text)}\n   ```\n",
    "a fence that begins a list": lambda text: f"- ```\n  {one_line(text)}\n  ```\n",
    "a fence within a line": lambda text: f"So: ```\n{text.replace('`', '')}\n``` is it.",
    "an indented block": lambda text: f"So:\n\n    {one_line(text)}\n\nDone.",
    "a tabbed block": lambda text: f"So:\n\n\t{one_line(text)}\n",
    "inline code": lambda text: f"A call is `{one_line(text)}` there.",
    "inline code with two ticks": lambda text: f"It is ``{one_line(text)}``.",
    "inline code over lines": lambda text: f"It is `\n{one_line(text)}\n` there.",
    "quotation marks": lambda text: f'It writes "{one_line(text)}" then.',
    "typographic quotation marks": lambda text: f"It writes “{one_line(text)}”.",
    "a sentence": lambda text: f"It writes {one_line(text)} in that place.",
    "brackets": lambda text: f"It writes a call ({one_line(text)}).",
    "a quoted block": lambda text: f"> {one_line(text)}\n",
    "a list": lambda text: f"- {one_line(text)}\n",
    "bold": lambda text: f"**{one_line(text)}** is it.",
    "an HTML comment": lambda text: f"So:\n<!--\n{text}\n-->\n",
    "a comment within a line": lambda text: f"So: <!-- that is\n{text}\n--> it.",
    "preformatted HTML": lambda text: f'<pre class="a">\n{text}\n</pre>\n',
    "code in HTML": lambda text: f"<pre><code>\n{text}\n</code></pre>\n",
    "an example in tags": lambda text: f"<example>\n{text}\n</example>",
    "a table": lambda text: f"| Form | Call |\n|---|---|\n| x | {one_line(text)} |\n",
    "a list item of lines": lambda text: f"- A call:\n  {one_line(cut_begin(text))}\n",
    "a quotation that goes on": lambda text: f"> A call:\n{one_line(cut_begin(text))}\n",
    "quotation marks over lines": lambda text: f'It writes "\n{one_line(text)}\n" then.',
    "a string of Python": lambda text: f'x = """\n{text}\n"""',
    "a code block that begins": lambda text: f"    {one_line(text)}\n",
    "an escaped backtick before code": lambda text: f"A \\` and `{one_line(text)}`.",
}
# what a model says right before a call, if the text before is not to be known
TALK = (
    "I look it up.", "I look it up:", "See `a.py`\n", 'I search for "a".\n', "- a\n- b\n\n",
    "```\na\n```\n", "<!-- a -->\n", "a <code> tag\n", "> a\n\n", "***\n", "It is 5\" wide.\n",
    "<pre>a</pre>\n", "| a | b |\n\n", "It is (so)\n", " ", "\n\n ",
)  # fmt: skip


def make_toolset(form: Form, text: str, *, known: bool) -> Toolset:
    """Return the tools for a model of the family that writes `text`, or of an unknown one."""
    if known:
        return Toolset(schemas=SCHEMAS, form=form, markers=find_markers(text))
    return Toolset(schemas=SCHEMAS, after_text=False)


def scan(tools: Toolset, text: str, seed: int) -> tuple[str, int]:
    chance = random.Random(seed)
    places = sorted(chance.randint(0, len(text)) for _ in range(seed * 3))
    if seed == 1:
        places = [*range(len(text))]  # every character by itself
    scanner = CallScanner(tools)
    ends = [*places, len(text)]
    said = "".join(scanner.feed(text[a:b]) for a, b in zip([0, *places], ends, strict=True))
    calls, rest = scanner.finish()
    return said + rest, len(calls)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_no_quotation_is_a_call_and_the_text_is_unchanged(way: str, known: bool) -> None:
    for form, call in CALLS:
        text = WAYS[way](call)
        for seed in range(4):
            assert scan(make_toolset(form, call, known=known), text, seed) == (text, 0)


@pytest.mark.parametrize("known", [True, False])
def test_a_call_after_quotations_is_one(known: bool) -> None:
    """What quotes the form first and then calls is understood."""
    for form, call in CALLS:
        if not find_markers(call):
            continue  # it is a call only as the whole answer, or begins with a word
        begin = cut_begin(call)
        said = f"As in `{one_line(begin)}` and\n```\n{begin}\n```\nI call:\n"
        for seed in range(4):
            content, calls = scan(make_toolset(form, call, known=known), said + begin, seed)
            assert calls and content.startswith(said), call


def test_a_call_after_any_other_text_is_one() -> None:
    for _, form, call, content, calls in FAMILIES:
        for said in TALK if calls and not content and find_markers(call) else ():
            text = said + cut_begin(call)
            for seed in range(4):
                assert scan(make_toolset(form, call, known=True), text, seed)[1], text
                if said[-1].isspace():
                    assert scan(make_toolset(form, call, known=False), text, seed)[1], text


@pytest.mark.parametrize("sign", ["", "|", "=", "->", "„", "「", "(", "<code>", '{"a": "', "//"])
def test_what_opens_a_quotation_is_no_sentence(sign: str) -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert scan(Toolset(schemas=SCHEMAS), f"So {sign}{call}", 2)[1] == (not sign and 0)
    assert scan(Toolset(schemas=SCHEMAS), f"`a`{sign}{call}", 2)[1] == (not sign)


def test_text_may_be_read_piece_by_piece() -> None:
    chance = random.Random(5)
    signs = [*"` \n\\a>", "```", "~~~", "    ", "<pre>", "</pre>", "<!--", "-->", '"""', "- ", "“"]
    for _ in range(2_000):
        text = "".join(chance.choices(signs, k=12))
        pieces = Before()
        for character in text:
            pieces.feed(character)
            pieces.ends_in_code()
        for tools in (Toolset(), Toolset(after_text=False)):
            assert pieces.find_place(tools) is Before(text).find_place(tools), text


def test_a_line_that_goes_on_is_a_sentence() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    unknown = Toolset(schemas=SCHEMAS, after_text=False)
    for text in (f"So:\n{call}, {call}.", f"{call} is a call.", f"{call}: a call"):
        assert scan(unknown, text, 3) == (text, 0)
    assert scan(Toolset(schemas=SCHEMAS), f"{call}.", 3) == (f"{call}.", 0)


def test_forms_of_other_families_are_text() -> None:
    for form, call in CALLS:
        own = find_markers(call)
        for other, text in CALLS:
            if not own or find_markers(text) & own or form in (Form.ACTION, Form.RECIPIENT):
                continue
            if form is Form.NAMED and not find_markers(text):
                continue  # the same families without their token
            tools = make_toolset(form, call, known=True)
            assert scan(tools, text, 3) == (text, 0), (call, other)


@pytest.mark.parametrize("form", [Form.BARE, Form.NAMED])
def test_json_is_a_call_only_as_the_whole_answer(form: Form) -> None:
    tools = Toolset(schemas=SCHEMAS, form=form)
    call = '{"name": "weather", "arguments": {"city": "Paris"}}'
    assert scan(tools, f" {call}\n", 3)[1] == 1
    for text in (
        f"{call} is a call.", f"{call}\n\nThat was one.", f"```json\n{call}\n```", f"So: {call}",
        f"`{call}`", f'"{call}"', f"[{call}] is one",
    ):  # fmt: skip
        assert scan(tools, text, 3) == (text, 0)
    assert scan(replace(tools, form=Form.TAGGED), call, 3) == (call, 0)
    assert scan(Toolset(schemas=SCHEMAS, after_text=False), call, 3) == (call, 0)


def test_behind_an_unknown_server_a_call_begins_a_line() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    unknown = Toolset(schemas=SCHEMAS, after_text=False)
    known = Toolset(schemas=SCHEMAS)
    for text, here, there in (
        (f"I look.{call}", 1, 0), (f"I look. {call}", 1, 0), (f"I look: {call}", 0, 0),
        (f"I look.{call} So.", 0, 0), (f"I look.\n{call}\nSo.", 1, 1), (f"  {call}", 1, 1),
        (f"I look.\n{call}{call}", 2, 2), (f"\n\n    {call}", 0, 0),
    ):  # fmt: skip
        assert (scan(known, text, 2)[1], scan(unknown, text, 2)[1]) == (here, there), text


def test_what_follows_a_call_is_unchanged_too() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    said = f"So, `<tool_call>`  is a tag.\n\n```\n  {call}\n```\n  `</tool_call>`  ends it."
    assert scan(Toolset(schemas=SCHEMAS), f"{call}\n{said}", 3) == (said, 1)


def test_an_answer_of_quotations_takes_no_long() -> None:
    text = "`<tool_call>` and ```\n<tool_call>{}</tool_call>\n```\n" * 5_000
    assert scan(Toolset(schemas=SCHEMAS), text, 2) == (text, 0)


def test_the_text_before_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many markers a text quotes: to read all before each takes seconds."""
    read = 0
    feed = Before.feed

    def count(self: Before, text: str) -> None:
        nonlocal read
        read += len(text)
        feed(self, text)

    monkeypatch.setattr(Before, "feed", count)
    text = "`a`\n" * 10_000 + "a `<tool_call>` b " * 100
    assert scan(Toolset(schemas=SCHEMAS), text, 2) == (text, 0)
    assert 0 < read <= len(text)


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("", False), ("a `b` c", False), ("a `b", True), ("a ``b`", True), ("a ``b`c``", False),
        ("a `b\n\nc", False), ("```\na", True), ("```\na\n```", False), ("```\na\n~~~", True),
        ("````\na\n```", True), ("```\na\n````\n", False), ("   ```\na", True),
        ("> ```\n> a", True),
        ("```a```", False), ("~~~ a`b\nc", True), ("```js", True), ("```\na\n``` b", True),
        ("a ```\nb\n\nc", True), ("a ```\nb\n\n``` c", False), ("```\r\na\r\n```\r\nb", False),
    ],
)  # fmt: skip
def test_code(text: str, inside: bool) -> None:
    assert Before(text).ends_in_code() is inside
    before = Before()
    for character in text:
        before.feed(character)
        before.ends_in_code()
    assert before.ends_in_code() is inside


def test_a_message_of_gpt_oss_may_quote_one() -> None:
    call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"
    said = f"A call is `{call}` there."
    text = f"<|channel|>analysis<|message|>Hm.<|end|><|channel|>final<|message|>{said}"
    for size in (1, 3, len(text)):
        splitter, scanner, shown = ThinkSplitter(), CallScanner(Toolset(schemas=SCHEMAS)), ""
        for at in range(0, len(text), size):
            shown += scanner.feed(splitter.feed(text[at : at + size])[1])
        shown += scanner.feed(splitter.finish()[1])
        calls, rest = scanner.finish()
        assert (shown + rest, calls) == (said, [])
