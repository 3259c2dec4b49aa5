"""What a test needs and a machine may lack: a reason to skip, or to fail where it must be there."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

REQUIRED = "REQUIRE_TEST_TOOLS"


def lacking(reason: str) -> NoReturn:
    """End the test: it fails if the variable REQUIRE_TEST_TOOLS is set, else it is skipped."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{reason} ({REQUIRED} is set: what is missing is not skipped)", pytrace=False)
    pytest.skip(reason)
