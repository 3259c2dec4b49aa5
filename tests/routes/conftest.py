"""The server that the tests here talk to."""

from tests.front import server as server
