"""The JSON schema of "exactly one call of one of these tools", for engines that hold to one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllama.translate.safe_schema import is_safe, safe_schema
from vllama.translate.schema import check_size


def call_schema(tools: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Return the schema of `{"name": …, "arguments": {…}}`. Raises BadRequest if it is too large.

    `tools` in OpenAI's form, each with `function.name` and `function.parameters`.
    """
    check_size(tools)
    calls = []
    for tool in tools:
        function = tool["function"]
        parameters = safe_schema(function["parameters"])
        if parameters.get("type") != "object":
            parameters = {"type": "object"}
        name = function["name"]
        calls.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": name} if is_safe(name) else {"type": "string"},
                    "arguments": parameters,
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return calls[0] if len(calls) == 1 else {"anyOf": calls}
