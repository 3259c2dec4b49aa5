"""The server that the tests here ask for answers."""

from tests.front import server as server
