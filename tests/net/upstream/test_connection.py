"""An answer whose head is known means what it meant to the parser, wherever its reads end."""

from collections.abc import Mapping

import pytest

from vllama.base.errors import EngineError
from vllama.net.upstream import connection as module
from vllama.net.upstream.connection import Connection
from vllama.net.upstream.pool import Upstream
from vllama.supervise.spec import Endpoint

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
CLOSING = b"HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
FAILED = b"HTTP/1.1 500 Internal Server Error\r\ntransfer-encoding: chunked\r\n\r\n"
BODY = b"5\r\nfirst\r\n6\r\nsecond\r\n"
UNUSUAL = b"5\r\nfirst\r\n6;x=1\r\nsecond\r\n"


class Transport:
    """Takes what is written."""

    aborted = False

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


class Sink:
    """Keeps what it is told of one answer."""

    has_begun = wants_headers = False

    def __init__(self) -> None:
        self.body = b""
        self.told: list[object] = []

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        self.told.append((status, dict(headers)))

    def on_data(self, data: bytes) -> None:
        self.body += data

    def on_last(self, data: bytes) -> None:
        self.body += data

    def on_end(self) -> None:
        self.told.append("end")

    def on_lost(self, error: EngineError) -> None:
        self.told.append(str(error))


def tell(reads: list[bytes]) -> tuple[list[object], bytes, bool, bool]:
    """Return what a sink is told of an answer, and whether its connection may be used again."""
    pool, transport, sink = Upstream(Endpoint(port=1)), Transport(), Sink()
    connection = Connection(pool)
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.request(b"", sink)
    for read in reads:
        connection.data_received(read)
    connection.release()
    return sink.told, sink.body, connection in pool.idle, transport.aborted


@pytest.mark.parametrize("head", [HEAD, CLOSING, FAILED], ids=["open", "closing", "failed"])
@pytest.mark.parametrize(
    "end", [b"0\r\n\r\n", b"0\r\ntrailer: 1\r\n\r\n", b"0\r\n\r\njunk", b"junk\r\n", b""]
)
@pytest.mark.parametrize("body", [BODY, UNUSUAL])
def test_a_known_head_changes_nothing(head: bytes, end: bytes, body: bytes, monkeypatch) -> None:
    answer = head + body + end
    for cut in range(len(head), len(answer)):
        reads = [answer[:cut], answer[cut:]]
        monkeypatch.setattr(module, "_heads", {})
        first = tell(reads)
        tell([head + b"0\r\n\r\n"])
        assert bool(module._heads) == (head != FAILED)
        assert tell(reads) == first
