"""Schemas that libraries and public MCP servers produce; `make.py` made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NO_TYPES = {  # TypeBox's own, which no engine and no other server takes
    "TypeBox 0.34.52: strings": '#/properties/bytes/type: "Uint8Array" is not a type',
    "TypeBox 0.34.52: numbers": '#/properties/big/type: "bigint" is not a type',
    "TypeBox 0.34.52: any": '#/properties/undefined/type: "undefined" is not a type',
}


def read_schemas() -> dict[str, dict[str, Any]]:
    """Return them by library or server, its version, and a name."""
    found: dict[str, dict[str, Any]] = json.loads(
        Path(__file__).with_name("schemas.json").read_text()
    )
    return found
