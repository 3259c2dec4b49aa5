"""Everything that can be checked without starting the server."""

from vllama_echo.adapter import ENGINE

from vllama.engines.testing import Recording, check_engine

RECORDED = [
    Recording(lines=("no such voice: hoarse",), cause="it does not have the voice hoarse"),
]


def test_it_conforms() -> None:
    assert check_engine(ENGINE, RECORDED) == []
