from __future__ import annotations

import json
import math
from typing import Any

import pytest

from vllama.base.errors import BadRequest
from vllama.dialects.openai.extras import Extras, add_effort, take_extras
from vllama.dialects.openai.read import parse_openai

FIELDS = ("options", "keep_alive", "think", "num_ctx", "truncate")


def parse(body: dict[str, Any]) -> tuple[dict[str, Any], Extras]:
    return take_extras(parse_openai(json.dumps(body).encode()))


@pytest.mark.parametrize(
    ("body", "rest", "extras"),
    [
        ({"model": "m"}, {"model": "m"}, Extras()),
        (dict.fromkeys(FIELDS), {}, Extras()),
        ({"keep_alive": "1m"}, {}, Extras(keep_alive=60.0)),
        ({"keep_alive": -1}, {}, Extras(keep_alive=math.inf)),
        ({"think": False, "truncate": False}, {}, Extras(think=False, truncate=False)),
        ({"think": "low"}, {}, Extras(think="low")),
        ({"num_ctx": 5}, {}, Extras(options={"num_ctx": 5})),
        (
            {"num_ctx": 5, "options": {"num_ctx": 7, "top_k": 1}},
            {},
            Extras(options={"num_ctx": 7, "top_k": 1}),
        ),
        (
            {"options": {"temperature": 0.1, "top_p": 0.2}, "top_p": 0.9},
            {"temperature": 0.1, "top_p": 0.9},
            Extras(options={"temperature": 0.1, "top_p": 0.2}),
        ),
        (
            {"options": {"temperature": None}},
            {},
            Extras(options={"temperature": None}),
        ),
    ],
)
def test_taken(body: dict[str, Any], rest: dict[str, Any], extras: Extras) -> None:
    given_before = dict(body)
    assert take_extras(body) == (rest, extras)
    assert body == given_before


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"options": []}, "Invalid value for 'options': expected an object, got an array."),
        ({"keep_alive": "300"}, "time: missing unit in duration"),
        ({"keep_alive": True}, "Invalid value for 'keep_alive': expected a number of seconds"),
        ({"think": "often"}, 'invalid think value: "often"'),
        ({"think": 1}, "Invalid value for 'think': expected a boolean or a string"),
        ({"num_ctx": "5"}, "Invalid value for 'num_ctx': expected a decimal"),
        ({"truncate": "no"}, "Invalid value for 'truncate': expected a boolean"),
    ],
)
def test_refused(body: dict[str, Any], text: str) -> None:
    with pytest.raises(BadRequest, match=text.replace("[", r"\[")):
        parse(body)


@pytest.mark.parametrize(
    ("body", "think", "effort"),
    [
        ({}, None, None),
        ({}, True, None),
        ({}, False, "none"),
        ({}, "high", "high"),
        ({"reasoning_effort": "low"}, False, "low"),
        ({"reasoning_effort": None}, False, "none"),
        ({"reasoning": {"effort": "low"}}, False, None),
        ({"reasoning": {"summary": "auto"}}, "max", "max"),
    ],
)
def test_effort(body: dict[str, Any], think: Any, effort: str | None) -> None:
    assert add_effort(body, think).get("reasoning_effort") == effort
