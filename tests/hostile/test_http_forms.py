"""Raw forms of requests, each with the statuses that it may have, on a real socket.

The cases are those that differ between servers and proxies: RFC 9110, RFC 9112, and the classes
that Http11Probe and http-garden test. `ok` are requests that have to be served.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.loops import in_uvloop
from tests.net.http.test_connection import echo, running
from vllama.accounts.keys.ring import KeyRing
from vllama.base.clock import RealClock
from vllama.config import Config
from vllama.net.http.connection import MAX_HEAD_BYTES
from vllama.net.http.request import Request
from vllama.observe.metrics.server_metrics import Metrics
from vllama.routes.app import App
from vllama.routes.context import Starting
from vllama.routes.in_use import InUse, Setup
from vllama.routes.route import Route, RouteKind
from vllama.routes.route_table import RouteTable

HOST = "host: localhost\r\n"
CLOSE = "connection: close\r\n"
POST = f"POST /e HTTP/1.1\r\n{HOST}{CLOSE}"
CHUNKED = "transfer-encoding: chunked\r\n"
OK, BAD = (200,), (400,)
LONG = 2 * MAX_HEAD_BYTES  # in one read the limit is passed by a little


def get(target: str = "/e", version: str = "HTTP/1.1", more: str = "", method: str = "GET") -> str:
    return f"{method} {target} {version}\r\n{HOST}{CLOSE}{more}\r\n"


def header(line: str) -> str:
    return get(more=line + "\r\n")


def chunks(body: str, head: str = CHUNKED) -> str:
    return f"{POST}{head}\r\n{body}"


def sized(length: str, body: str = "hello") -> str:
    return f"{POST}content-length: {length}\r\n\r\n{body}"


FORMS: dict[str, tuple[str, tuple[int, ...]]] = {
    # the request line
    "usual": (get(), OK),
    "empty lines before": ("\r\n\r\n" + get(), OK),
    "query": (get("/e?a=b&c=%20"), OK),
    "absolute form": (get("http://localhost/e"), OK),
    "asterisk, OPTIONS": (get("*", method="OPTIONS"), BAD),
    "asterisk, GET": (get("*"), BAD),
    "authority, CONNECT": (get("localhost:80", method="CONNECT"), BAD),
    "path, CONNECT": (get("/e", method="CONNECT"), BAD),
    "authority, GET": (get("localhost:80"), BAD),
    "no slash": (get("e"), BAD),
    "no target": ("GET  HTTP/1.1\r\n" + HOST + "\r\n", BAD),
    "no version": ("GET /e\r\n" + HOST + "\r\n", (400, 505)),
    # RFC 9112, section 3 lets servers skip further blanks, and llhttp does
    "two spaces after the method": (get(method="GET "), OK),
    "two spaces before the version": (get("/e "), OK),
    "tab for a space": ("GET\t/e\tHTTP/1.1\r\n" + HOST + "\r\n", BAD),
    "space in the target": (get("/e x"), BAD),
    "space at the end of the line": ("GET /e HTTP/1.1 \r\n" + HOST + "\r\n", BAD),
    "NUL in the target": (get("/e\0"), BAD),
    "control in the target": (get("/e\x01"), BAD),
    "DEL in the target": (get("/e\x7f"), BAD),
    "lower-case method": (get(method="get"), BAD),
    "unknown method": (get(method="BREW"), BAD),
    "method with a colon": (get(method="GET:"), BAD),
    "empty method": (" /e HTTP/1.1\r\n" + HOST + "\r\n", BAD),
    "preface of HTTP/2": ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 505)),
    "HTTP/2.0": (get(version="HTTP/2.0"), (505,)),
    "HTTP/0.9": (get(version="HTTP/0.9"), (505,)),
    "HTTP/1.2": (get(version="HTTP/1.2"), (400, 505)),
    "HTTP/1": (get(version="HTTP/1"), BAD),
    "HTTP/1.10": (get(version="HTTP/1.10"), BAD),
    "HTTP/01.1": (get(version="HTTP/01.1"), BAD),
    "http/1.1": (get(version="http/1.1"), BAD),
    "HTTP/1,1": (get(version="HTTP/1,1"), BAD),
    "ICE/1.0": (get(version="ICE/1.0"), BAD),
    "RTSP/1.0": (get(version="RTSP/1.0"), OK),  # llhttp reads it, as HTTP/1.0
    "long target": (get("/" + "a" * LONG), (431,)),
    # lines
    "bare LF": (get().replace("\r\n", "\n"), BAD),
    "bare LF after a header": (header("a: b\nc: d"), BAD),
    "bare CR after a header": (header("a: b\rc: d"), BAD),
    "CR CR LF": (header("a: b\r"), BAD),
    "LF after the head": (f"GET /e HTTP/1.1\r\n{HOST}\n", BAD),
    "folded header": (header("a: b\r\n c"), BAD),
    "folded first header": (f"GET /e HTTP/1.1\r\n a: b\r\n{HOST}\r\n", BAD),
    "space before the colon": (header("a : b"), BAD),
    "tab before the colon": (header("a\t: b"), BAD),
    "no colon": (header("a"), BAD),
    "empty name": (header(": b"), BAD),
    "space in a name": (header("a b: c"), BAD),
    "NUL in a name": (header("a\0b: c"), BAD),
    "parenthesis in a name": (header("a(b): c"), BAD),
    "high byte in a name": (header("ä: c"), BAD),
    "NUL in a value": (header("a: b\0c"), BAD),
    "control in a value": (header("a: b\x01c"), BAD),
    "DEL in a value": (header("a: b\x7fc"), BAD),
    "high bytes in a value": (header("a: bä"), OK),
    "empty value": (header("a:"), OK),
    "blanks around a value": (header("a: \t b \t "), OK),
    "long header": (header("a: " + "b" * LONG), (431,)),
    "many headers": (get(more="a: b\r\n" * 1100), OK),  # of one name: the last is kept
    "many names": (get(more="".join(f"a{n}: b\r\n" for n in range(1100))), (431,)),
    # Host, and what may occur once
    "no Host": ("GET /e HTTP/1.1\r\n\r\n", BAD),
    "no Host, HTTP/1.0": ("GET /e HTTP/1.0\r\n\r\n", OK),
    "empty Host": ("GET /e HTTP/1.1\r\nhost:\r\n\r\n", BAD),
    "blank Host": ("GET /e HTTP/1.1\r\nhost: \t\r\n\r\n", BAD),
    "empty Host, HTTP/1.0": ("GET /e HTTP/1.0\r\nhost:\r\n\r\n", BAD),
    "two Hosts": (header("host: evil"), BAD),
    "two equal Hosts": (header("Host: localhost"), BAD),
    "two Origins": (header("origin: http://localhost\r\norigin: http://localhost"), BAD),
    "two Authorizations": (header("authorization: Bearer a\r\nAuthorization: Bearer b"), BAD),
    "two keys": (header("x-api-key: a\r\nX-Api-Key: a"), BAD),
    "two Content-Types": (header("content-type: text/plain\r\ncontent-type: a/b"), BAD),
    "two Accepts": (header("accept: a/b\r\naccept: c/d"), OK),
    "foreign Host": (f"GET /e HTTP/1.1\r\nhost: evil.example\r\n{CLOSE}\r\n", (403,)),
    "Host with a path": (f"GET /e HTTP/1.1\r\nhost: localhost/x\r\n{CLOSE}\r\n", (403,)),
    "Host with a user": (f"GET /e HTTP/1.1\r\nhost: a@localhost\r\n{CLOSE}\r\n", (403,)),
    "foreign target": (get("http://evil.example/e"), (403,)),
    # lengths
    "length": (sized("5"), OK),
    "length with zeros": (sized("0005"), OK),
    "length with a sign": (sized("+5"), BAD),
    "negative length": (sized("-5"), BAD),
    "length in hex": (sized("0x5"), BAD),
    "length with a blank": (sized("5 5"), BAD),
    "length with a line feed": (sized("5\n"), BAD),
    "length with an underscore": (sized("1_0"), BAD),
    "empty length": (sized(""), BAD),
    "fraction": (sized("5.0"), BAD),
    "huge length": (sized("9" * 30), BAD),
    "length of 2^64 + 5": (sized(str(2**64 + 5)), BAD),
    "list of lengths": (sized("5, 5"), BAD),
    "two lengths": (sized("5\r\ncontent-length: 6"), BAD),
    "two equal lengths": (sized("5\r\ncontent-length: 5"), BAD),
    "length above the limit": (sized(str(1 << 40)), (413,)),
    # transfer codings
    "chunks": (chunks("5\r\nhello\r\n0\r\n\r\n"), OK),
    "chunks, upper case": (chunks("5\r\nhello\r\n0\r\n\r\n", CHUNKED.upper()), OK),
    "length and chunks": (chunks("0\r\n\r\n", f"content-length: 5\r\n{CHUNKED}"), BAD),
    "chunks and length": (chunks("0\r\n\r\n", f"{CHUNKED}content-length: 5\r\n"), BAD),
    "two codings": (chunks("0\r\n\r\n", CHUNKED * 2), BAD),
    "chunked, chunked": (
        chunks("0\r\n\r\n", "transfer-encoding: chunked, chunked\r\n"),
        (400, 501),
    ),
    "gzip, chunked": (chunks("0\r\n\r\n", "transfer-encoding: gzip, chunked\r\n"), (501,)),
    "chunked, gzip": (chunks("0\r\n\r\n", "transfer-encoding: chunked, gzip\r\n"), (400, 501)),
    "identity": (chunks("", "transfer-encoding: identity\r\n"), (400, 501)),
    "unknown coding": (chunks("0\r\n\r\n", "transfer-encoding: xchunked\r\n"), (400, 501)),
    "quoted coding": (chunks("0\r\n\r\n", 'transfer-encoding: "chunked"\r\n'), (400, 501)),
    "empty coding": (chunks("0\r\n\r\n", "transfer-encoding:\r\n"), (400, 501)),
    "coding with a parameter": (
        chunks("0\r\n\r\n", "transfer-encoding: chunked;a=b\r\n"),
        (400, 501),
    ),
    "coding with a control": (chunks("0\r\n\r\n", "transfer-encoding: \x0bchunked\r\n"), BAD),
    "coding, blank before the colon": (chunks("0\r\n\r\n", "transfer-encoding : chunked\r\n"), BAD),
    "folded coding": (chunks("0\r\n\r\n", "transfer-encoding:\r\n chunked\r\n"), BAD),
    # chunks
    "no size": (chunks("\r\nhello\r\n0\r\n\r\n"), BAD),
    "size with a sign": (chunks("+5\r\nhello\r\n0\r\n\r\n"), BAD),
    "negative size": (chunks("-5\r\nhello\r\n0\r\n\r\n"), BAD),
    "size with 0x": (chunks("0x5\r\nhello\r\n0\r\n\r\n"), BAD),
    "size with an underscore": (chunks("0_5\r\nhello\r\n0\r\n\r\n"), BAD),
    "size of another alphabet": (chunks("g\r\nhello\r\n0\r\n\r\n"), BAD),
    "blank before a size": (chunks(" 5\r\nhello\r\n0\r\n\r\n"), BAD),
    "blank after a size": (chunks("5 \r\nhello\r\n0\r\n\r\n"), BAD),
    "huge size": (chunks("f" * 17 + "\r\nhello\r\n0\r\n\r\n"), BAD),
    "size above the limit": (chunks("7fffffffffff\r\n" + "x" * 60_000_000), (413,)),
    "size that is too small": (chunks("4\r\nhello\r\n0\r\n\r\n"), BAD),
    "size that is too large": (chunks("6\r\nhello\r\n0\r\n\r\n"), BAD),
    "no CRLF after a chunk": (chunks("5\r\nhello0\r\n\r\n"), BAD),
    "LF after a size": (chunks("5\nhello\r\n0\r\n\r\n"), BAD),
    "LF after a chunk": (chunks("5\r\nhello\n0\r\n\r\n"), BAD),
    "CR after a size": (chunks("5\rhello\r\n0\r\n\r\n"), BAD),
    "extension": (chunks("5;a=b\r\nhello\r\n0\r\n\r\n"), OK),
    "extension with a line feed": (chunks("5;a\nb\r\nhello\r\n0\r\n\r\n"), BAD),
    "extension with a CR": (chunks("5;a\rb\r\nhello\r\n0\r\n\r\n"), BAD),
    "extension with a NUL": (chunks("5;a\0b\r\nhello\r\n0\r\n\r\n"), BAD),
    "long extension": (chunks("5;" + "a" * LONG + "\r\nhello\r\n0\r\n\r\n"), (431,)),
    # trailers
    "trailer": (chunks("5\r\nhello\r\n0\r\na: b\r\n\r\n"), OK),
    "trailer that is a Host": (chunks("5\r\nhello\r\n0\r\nhost: evil.example\r\n\r\n"), OK),
    "trailer that is a key": (chunks("5\r\nhello\r\n0\r\nauthorization: Bearer a\r\n\r\n"), OK),
    "folded trailer": (chunks("5\r\nhello\r\n0\r\na: b\r\n c\r\n\r\n"), BAD),
    "trailer without a colon": (chunks("5\r\nhello\r\n0\r\na\r\n\r\n"), BAD),
    "long trailer": (chunks("0\r\na: " + "b" * LONG), (431,)),
    "endless trailers": (chunks("0\r\n" + "a: b\r\n" * (LONG // 6)), (431,)),
    # other
    "expectation": (f"{POST}expect: 100-continue\r\ncontent-length: 0\r\n\r\n", OK),
    "unknown expectation": (header("expect: 200-ok"), (417,)),
    "upgrade": (header("connection: upgrade\r\nupgrade: websocket"), OK),
    "TLS": ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", BAD),
    "SSH": ("SSH-2.0-OpenSSH_9.9\r\n", BAD),
    "NUL": ("\0", BAD),
}


async def answer(starting: Starting, request: Request) -> None:
    """Answer with what was asked."""
    await echo(request)


def make_app() -> App:
    """Return the boundary of the whole server around one route."""
    starting = Starting(
        in_use=InUse(Setup(config=Config())),
        keys=KeyRing((), None, RealClock()),
        metrics=Metrics(),
        routes=(Route("GET POST /e", answer, RouteKind.OPEN, starting=answer),),
    )
    return App(starting)


@pytest.mark.parametrize("name", FORMS)
@in_uvloop
async def test_form(name: str) -> None:
    raw, statuses = FORMS[name]
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: raised.append(about))
    async with running(make_app()) as server:
        found = await server.said(raw.encode("latin-1"))
    found = found.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert int(found.split()[1]) in statuses, found[:300]
    assert found.count(b"HTTP/1.1 ") == 1
    assert not raised


@in_uvloop
async def test_refusals_are_counted_and_some_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    refused = [name for name, (_, statuses) in FORMS.items() if statuses == BAD][:9]
    async with running(make_app()) as server:
        for name in refused:
            await server.said(FORMS[name][0].encode("latin-1"))
        counted = server.server._refusals.values
        logged = [one for one in caplog.messages if "rejected before routing" in one]
    assert counted == {("400",): len(refused)}
    assert 1 <= len(logged) < len(refused) and "from 127.0.0.1: 400 Bad Request: " in logged[0]


UPGRADE = f"GET /e HTTP/1.1\r\n{HOST}connection: upgrade\r\nupgrade: h2c\r\n\r\n"
WITH_BODY = UPGRADE.replace("GET", "POST").replace("\r\n\r\n", "\r\ncontent-length: 1\r\n\r\nx")


@pytest.mark.parametrize("asked", [UPGRADE, WITH_BODY], ids=["head", "body"])
@in_uvloop
async def test_many_pipelined_upgrades_are_many_requests(asked: str) -> None:
    async with running(make_app()) as server:
        found = await server.said((asked * 2000 + get()).encode())
    assert found.count(b"HTTP/1.1 200 OK") == 2001


@pytest.mark.parametrize("target", ["*", "", "localhost:80", "e"])
def test_the_route_of_what_is_no_path(target: str) -> None:
    assert RouteTable().find("OPTIONS", target).spelling == ""
