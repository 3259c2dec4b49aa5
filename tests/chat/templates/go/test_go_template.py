# ruff: noqa: E501 (tables of exact texts)
"""Go's text/template. The expected texts are those that Go itself gives (checked with Go 1.19)."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.base.errors import BadRequest
from vllama.chat.templates.go.execute import read, render

NOW = datetime(2026, 3, 1, 12)
DATA = {
    "A": "x", "B": "", "N": 3.0, "F": 2.5, "T": True, "Z": None, "L": ["a", "b", "c"], "E": [],
    "M": {"k": "v", "b": 1.0}, "S": "héllo <b>&", "Nest": {"a": {"b": {"c": "deep"}}},
    "Turns": [{"Role": "user", "Content": "hi"}, {"Role": "assistant", "Content": "yo"}],
}  # fmt: skip


def out(source: str, data: object = DATA) -> str:
    return render(read(source), data, NOW)  # type: ignore[arg-type]


VALUES = [
    ("{{ .A }}|{{.B}}|{{ .N }} {{ .F }} {{ .T }}", "x||3 2.5 true"),
    ("{{ .Missing }} {{ .M.nope }} {{ .Z }}", "<no value> <no value> <no value>"),
    ("{{ .L }} {{ .M }} {{ .E }} {{ .Nest }}", "[a b c] map[b:1 k:v] [] map[a:map[b:map[c:deep]]]"),
    ('{{ "raw" }} {{ `raw\\n` }} {{ \'a\' }} {{ 0x1F }} {{ 1_000 }} {{ 1e3 }} {{ -3 }} {{ 017 }} {{ 0b11 }} {{ .5 }} {{ 1.50 }}', "raw raw\\n 97 31 1000 1000 -3 15 3 0.5 1.5"),
    ('{{ "\\u00e9\\x41\\t\\101\\"" }}', 'éA\tA"'),
    ("{{ 1000000.0 }} {{ 123456789.0 }} {{ 1e20 }} {{ 0.0001 }} {{ 0.00001 }} {{ 100000.5 }}", "1e+06 1.23456789e+08 1e+20 0.0001 1e-05 100000.5"),
    ("{{ (index .Turns 0).Role }} {{ (.M).k }} {{ ($).A }} {{ $.M.k }}", "user v x v"),
    ("{{ (.Missing).anything }}", "<no value>"),
    ('{{ "}}" }}{{ `}}` }}', "}}}}"),
]  # fmt: skip
SPACE = [
    ("a {{- .A -}} b", "axb"),
    ("a {{/* one\ntwo */}} b", "a  b"),
    ("a {{- /* one */ -}} b", "ab"),
    ('\n{{- "x" }}\n', "x\n"),
    ("{{if\n .A\n}}x{{end}}", "x"),
    ("{ { }} }", "{ { }} }"),
]
CONTROL = [
    ("{{ if .B }}a{{ else if .A }}b{{ else }}c{{ end }}", "b"),
    ("{{ if .Missing }}a{{ else }}b{{ end }}{{ if .E }}a{{ end }}{{ if .Nest }}n{{ end }}", "bn"),
    ("{{ range .L }}{{ . }},{{ end }}", "a,b,c,"),
    ("{{ range $i, $e := .L }}{{ $i }}{{ $e }}{{ end }}", "0a1b2c"),
    ("{{ range $k, $v := .M }}{{ $k }}={{ $v }};{{ end }}", "b=1;k=v;"),
    ("{{ range .E }}x{{ else }}none{{ end }}{{ range .Missing }}x{{ else }}!{{ end }}", "none!"),
    ('{{ range .L }}{{ if eq . "b" }}{{ break }}{{ end }}{{ . }}{{ end }}', "a"),
    ('{{ range .L }}{{ if eq . "b" }}{{ continue }}{{ end }}{{ . }}{{ end }}', "ac"),
    ("{{ range 3 }}{{ . }}{{ end }}", "012"),  # since Go 1.22
    ("{{ with .M }}{{ .k }}{{ $.A }}{{ else }}no{{ end }}{{ with .B }}x{{ else }}y{{ end }}", "vxy"),
    ("{{ with .B }}x{{ else with .A }}{{ . }}{{ end }}", "x"),  # since Go 1.23
    ("{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ $x := 3 }}{{ $x }}{{ end }}{{ $x }}", "32"),
    ("{{ $n := 0 }}{{ range $i, $e := .L }}{{ $n = $i }}{{ end }}{{ $n }}", "2"),
    ('{{ define "t" }}<{{ . }}>{{ end }}{{ template "t" .A }}{{ template "t" }}', "<x><<no value>>"),
    ('{{ block "b" .M }}[{{ .k }}]{{ end }}', "[v]"),
    ('{{ define "r" }}{{ if . }}{{ template "r" (slice . 1) }}{{ end }}{{ len . }}{{ end }}{{ template "r" .L }}', "0123"),
    ("{{ range $i, $_ := .Turns }}{{ $last := eq (len (slice $.Turns $i)) 1 }}{{ .Role }}{{ if $last }}!{{ end }}{{ end }}", "userassistant!"),
]  # fmt: skip
FUNCTIONS = [
    ("{{ len .S }} {{ len .L }} {{ len .M }}", "11 3 2"),
    ('{{ index .L 1 }} {{ index .M "k" }} {{ index .M "no" }} {{ index .S 1 }} {{ index .Nest "a" "b" "c" }}', "b v <no value> 195 deep"),
    ("{{ slice .L 1 }} {{ slice .L 1 2 }} {{ slice .S 3 5 }} {{ slice .L }}", "[b c] [b] ll [a b c]"),
    ('{{ eq .A "y" "x" }} {{ ne .A "x" }} {{ eq .Missing "x" }} {{ eq .Z nil }} {{ ne .L .Z }}', "true false false true true"),
    ('{{ lt .F 4.0 }} {{ le 3 3 }} {{ gt "b" "a" }} {{ ge 2 3 }}', "true true true false"),
    ("{{ and .A .N }}|{{ or .B .A }}|{{ and .B .Missing.X }}|{{ or .A .Missing.X }}|{{ or .B .Z }}", "3|x||x|<no value>"),
    ("{{ not .A }} {{ not .Missing }}", "false true"),
    ('{{ print 1 2 "a" 3 4 }}|{{ println "a" 1 }}|{{ print "a" "b" true nil }}', "1 2a3 4|a 1\n|abtrue <nil>"),
    ('{{ printf "%s %d %v %q %t %5d|%-5d|%05d %.2f %x %%" "a" 1 .L "q\\"\\n" true 42 42 42 3.14159 255 }}', 'a 1 [a b c] "q\\"\\n" true    42|42   |00042 3.14 ff %'),
    ('{{ printf "%d" "a" }} {{ printf "%d %d" 1 }} {{ printf "%s" .Z }} {{ printf "%d" 1 2 }}', "%!d(string=a) 1 %!d(MISSING) %!s(<nil>) 1%!(EXTRA int=2)"),
    ("{{ json .M }} {{ json .S }} {{ json .L }} {{ json nil }} {{ json 1e21 }} {{ json 0.0000001 }}", '{"b":1,"k":"v"} "héllo \\u003cb\\u003e\\u0026" ["a","b","c"] null 1e+21 1e-7'),
    ('{{ .A | printf "%s-%s" "z" }} {{ "abc" | len }} {{ .B | or .A }}', "z-x 3 x"),
    ('{{ currentDate }} {{ currentDate "x" }} {{ yesterdayDate }}', "2026-03-01 2026-03-01 2026-02-28"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "text"), [*VALUES, *SPACE, *CONTROL, *FUNCTIONS])
def test_what_go_writes(source: str, text: str) -> None:
    assert out(source) == text


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("a\nb {{ .A", "line 2: unclosed action"),
        ("{{ if .A }}\n\n", "line 3: an {{end}} is missing"),
        ("{{ end }}", "unexpected {{end}}"),
        ("{{ else }}", "unexpected {{else}}"),
        ("{{ if .A }}a{{ else }}b{{ else }}c{{ end }}", "unexpected {{else}}"),
        ("{{ if }}x{{ end }}", "a value is missing in if"),
        ("x\n{{ foo .A }}", 'line 2: function "foo" not defined'),
        ("{{ messages[0] }}", "unexpected '['"),
        ("{{ $x }}", "undefined variable $x"),
        ("{{ if true }}{{ $y := 1 }}{{ end }}{{ $y }}", "undefined variable $y"),
        ("{{ $x = 1 }}", "undefined variable $x"),
        ('{{ "abc }}', "unclosed quoted string"),
        ('{{ "\\q" }}', "unknown escape \\q"),
        ("{{ 'ab' }}", "not one character"),
        ("{{ 99999999999999999999 }}", "too large"),
        ("{{ break }}", "outside of {{range}}"),
        ("{{ .A .B", "unclosed"),
        ("{{ (.A }}", "a ) is missing"),
        ("{{ .A) }}", "unexpected ')'"),
        ('{{ .A"x" }}', "is a space missing?"),
        ("{{ $x, $y := 3 }}", "undefined variable $x"),
        ("{{ range $i, $j, $k := .L }}{{ end }}", "too many variables"),
        ("{{ 1 | 2 }}", "only a function can stand after |"),
        ("{{ define .A }}{{ end }}", "a quoted template name is missing"),
        ("{{ range .L }}{{ define \"x\" }}{{ end }}{{ end }}", "inside another block"),
        ('{{ define "a" }}x{{ end }}{{ define "a" }}y{{ end }}', "multiple definition"),
        ("a {{ /* x */ .A }}", "a comment must fill its action"),
        ("{{ if .A }}" * 70, "blocks are nested"),
        ("{{" + "(" * 70 + ".A" + ")" * 70 + "}}", "parentheses are nested"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(source: str, reason: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(source)
    assert reason in caught.value.message
    assert caught.value.message.startswith("cannot use the template: line ")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("a\n\n{{ .A.B }}", "line 3: a string has no field B"),
        ("{{ .Missing.X }}", "nil has no field X"),
        ('{{ .A "x" }}', "argument for a value that is not a function"),
        ("{{ nil }}", "nil is not a command"),
        ("{{ index .L 3 }}", "out of range: 3"),
        ('{{ index .L "a" }}', "an index must be an integer"),
        ("{{ slice .L 2 1 }}", "invalid bounds"),
        ("{{ len 3 }}", "len of int"),
        ("{{ len .Missing }}", "len of <nil>"),
        ("{{ eq .N 3 }}", "cannot compare float64 and int"),
        ("{{ eq .L .L }}", "cannot compare a []interface {}"),
        ("{{ lt .L 1 }}", "cannot order a []interface {}"),
        ("{{ not }}", "wrong number of arguments for not"),
        ("{{ eq 1 }}", "missing argument"),
        ("{{ range .A }}x{{ end }}", "range can't iterate over a string"),
        ('{{ template "no" . }}', 'template "no" not defined'),
        ('{{ define "r" }}{{ template "r" . }}{{ end }}{{ template "r" . }}', "too deeply"),
        ('{{ printf "%9999d" 1 }}', "too wide"),
        ("{{ printf 3 }}", "the format must be a string"),
    ],
)  # fmt: skip
def test_what_goes_wrong_while_it_is_rendered(source: str, reason: str) -> None:
    tree = read(source)
    with pytest.raises(BadRequest) as caught:
        render(tree, DATA, NOW)
    assert reason in caught.value.message
    assert "line " in caught.value.message


@given(st.text(alphabet="{}ab.$|()\"' -/*\n\\rangeifd`0:=,", max_size=60))
def test_any_text_is_read_or_refused(source: str) -> None:
    try:
        tree = read(source)
    except BadRequest as error:
        assert "line " in error.message
        return
    try:
        render(tree, DATA, NOW)
    except BadRequest as error:
        assert "line " in error.message


@given(st.text().filter(lambda text: "{{" not in text))
def test_a_text_without_actions_is_itself(source: str) -> None:
    assert out(source) == source


@given(
    st.text(max_size=30),
    st.text(max_size=30),
    st.sampled_from(["", "- "]),
    st.sampled_from(["", " -"]),
)
def test_trimming_takes_white_space_and_nothing_else(
    before: str, after: str, left: str, right: str
) -> None:
    before, after = before.replace("{", ""), after.replace("{", "")
    opening, closing = "{{" + (left or " "), (right or " ") + "}}"
    shown = before.rstrip(" \t\r\n") if left else before
    follows = after.lstrip(" \t\r\n") if right else after
    assert out(f"{before}{opening}.A{closing}{after}") == f"{shown}x{follows}"


@given(st.lists(st.text(max_size=5), max_size=6))
def test_range_and_slice_see_every_element_once(items: list[str]) -> None:
    data = {"L": items}
    assert out("{{ range .L }}<{{ . }}>{{ end }}", data) == "".join(f"<{item}>" for item in items)
    lengths = "".join(f"{len(items) - n}," for n in range(len(items)))
    assert out("{{ range $i, $_ := .L }}{{ len (slice $.L $i) }},{{ end }}", data) == lengths


@given(st.text(max_size=20))
def test_a_value_is_written_as_it_is(text: str) -> None:
    assert (
        out("{{ .V }}{{ len .V }}", {"V": text}) == f"{text}{len(text.encode('utf-8', 'replace'))}"
    )


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.text(max_size=8)
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        ),
        max_leaves=12,
    )
)
def test_json_says_what_the_value_was(value: object) -> None:
    import json

    text = out("{{ json .V }}", {"V": value})
    assert json.loads(text, parse_int=float) == value
    assert not set("<>&") & set(text)
