"""The server without tracing."""

from tests.front import server as server
