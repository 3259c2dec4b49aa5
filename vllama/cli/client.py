"""HTTP client of the command line: talks to a running server, knows no model and no terminal.

The standard library's client is enough for sequential requests, and quick to import.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    InvalidURL,
    RemoteDisconnected,
)
from ssl import SSLCertVerificationError, SSLError, VerifyFlags, create_default_context
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import AbstractHTTPHandler, OpenerDirector, ProxyHandler, Request

from vllama import __version__
from vllama.base.errors import (
    BadRequest,
    Busy,
    InvalidModelRef,
    ModelNotFound,
    ServerUnreachable,
    VllamaError,
    describe_connection_error,
)
from vllama.config.address import is_loopback
from vllama.config.parse import whole_path
from vllama.models.names.ref import INVALID_NAME, ModelRef

CONNECT_TIMEOUT_S = 5.0
ANSWER_LIMIT_S = 10.0
"""For an answer that a server has at once, however busy it is."""
READ_BYTES = 65_536
HEADERS = {"content-type": "application/json", "user-agent": f"vllama/{__version__}"}
Reply = dict[str, Any]


class Client:
    """A connection to the server at `url`; to be used in a `with` statement.

    An answer may take as long as a model takes to load, so only connecting has a time limit
    (`limit_s` sets one for everything).
    Every method raises ServerUnreachable where there is no server, and VllamaError with the
    server's own text where it refuses.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        limit_s: float | None = None,
        certificate: str = "",
    ) -> None:
        """`key` is one of the server's, if it has keys; `certificate` a file with its own."""
        self.url = url
        self._headers = HEADERS | ({"authorization": f"Bearer {key}"} if key else {})
        self._limit_s, self._certificate = limit_s, certificate
        self._is_known = False  # what answers at this address
        self._http = OpenerDirector()  # without an error handler: a refusal is an answer too
        self._http.add_handler(_Connections(limit_s, certificate))
        # a proxy of the environment cannot reach this machine's own loopback
        if not is_loopback(urlsplit(url).hostname or ""):
            self._http.add_handler(ProxyHandler())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str) -> Reply:
        """Ask for an object."""
        return self._one("GET", path, None)

    def post(self, path: str, body: Mapping[str, object]) -> Reply:
        """Send an object, wait for the whole answer."""
        return self._one("POST", path, body)

    def delete(self, path: str, body: Mapping[str, object] | None = None) -> None:
        """Ask for something to be removed or ended."""
        self._one("DELETE", path, body)

    def _one(self, method: str, path: str, body: Mapping[str, object] | None) -> Reply:
        """Send a request, and return the last line of the answer."""
        lines = list(self._lines(method, path, body))
        return lines[-1] if lines else {}

    def stream(self, path: str, body: Mapping[str, object]) -> Generator[Reply]:
        """Send an object, yield the lines of the answer as they come.

        Closing the iterator closes the connection, which makes the server stop its work.
        """
        return self._lines("POST", path, body)

    def _lines(self, method: str, path: str, body: Mapping[str, object] | None) -> Generator[Reply]:
        is_new = path == "/api/create"  # then the name is not one that could exist
        if body is not None and not is_new and isinstance(name := body.get("model"), str):
            body = {**body, "model": whole_path(name)}
        text = json.dumps(body, ensure_ascii=False).encode(errors="replace")  # of any file's name
        content = None if body is None else text
        with self._open(method, path, content, self._headers) as answer:
            if answer.status >= 400:
                raise _refusal(answer.status, answer.read(), body)
            for line in _split(_chunks(answer)):
                yield _object(line)

    def follow(self, path: str) -> Iterator[tuple[str, Reply]]:
        """Yield name and data of each server-sent event as it comes."""
        with self._open("GET", path, None, self._headers) as answer:
            if answer.status >= 400:
                raise _refusal(answer.status, answer.read(), None)
            name = b""
            for line in _split(_chunks(answer)):
                field, _, value = line.partition(b": ")
                if field == b"event":
                    name = value
                elif field == b"data":
                    yield name.decode(), json.loads(value)

    def exchange(
        self, method: str, path: str, headers: Mapping[str, str], content: bytes
    ) -> tuple[int, str, list[tuple[float, bytes]]]:
        """Send bytes as they are; return status, content type, and the parts of the answer.

        Each part comes with the time in s since the request was sent. A refusal is an answer too.
        """
        began_s = time.monotonic()
        with self._open(method, path, content, {**self._headers, **headers}) as answer:
            parts = [(time.monotonic() - began_s, chunk) for chunk in _chunks(answer)]
            return answer.status, answer.headers.get("content-type", ""), parts

    def check_server(self) -> None:
        """Raise ServerUnreachable unless it has Ollama's API: any program may listen there."""
        self._is_known = True
        limit_s = min(ANSWER_LIMIT_S, self._limit_s or ANSWER_LIMIT_S)
        with Client(self.url, limit_s=limit_s, certificate=self._certificate) as client:
            client._is_known = True
            try:
                with client._open("GET", "/api/version", None, self._headers) as answer:
                    fault = _find_fault(answer.status, answer.read(READ_BYTES))
            except ServerUnreachable:
                raise
            except VllamaError as error:
                match error.__cause__:
                    case InvalidURL():
                        raise
                    case TimeoutError():
                        raise ServerUnreachable(
                            f"cannot use {self.url}: no response within {limit_s:g} s",
                            hint="its process may be stopped or overloaded; find the process on "
                            "the port: ss -ltnp",
                        ) from error
                    case ConnectionError():
                        fault = "it closed the connection"
                    case _:
                        fault = "it does not speak HTTP"
        if fault:
            raise ServerUnreachable(
                f"cannot use {self.url}: it is not a vllama or Ollama server; {fault}",
                hint="check which program uses that port; OLLAMA_HOST sets the server's address "
                "(https://… for TLS)",
            )

    @contextmanager
    def _open(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]
    ) -> Iterator[HTTPResponse]:
        """Send a request; the errors of the connection become our own, to the end."""
        if not self._is_known:
            self.check_server()
        limit_s = min(CONNECT_TIMEOUT_S, self._limit_s or CONNECT_TIMEOUT_S)
        try:
            request = Request(self.url + path, content, dict(headers), method=method)
            with self._http.open(request, timeout=limit_s) as answer:
                yield answer
        except URLError as error:  # the request could not be sent
            if isinstance(error.reason, SSLError):
                raise _make_tls_error(self.url, error.reason) from error
            raise _unreachable(self.url, error.reason) from error
        except InvalidURL as error:
            raise VllamaError(f'cannot use the address "{self.url}": {error}') from error
        except RemoteDisconnected as error:
            raise VllamaError(
                f"the server at {self.url} closed the connection without a response",
                hint="check that it is running; if it needs https: OLLAMA_HOST=https://…",
            ) from error
        except (HTTPException, OSError) as error:
            raise VllamaError(
                f"the response of the server at {self.url} ended early",
                hint="check that it is running: vllama ps",
            ) from error


def _parse(content: bytes) -> Any:
    """Return the value of a JSON text, None if it is none."""
    try:
        return json.loads(content)
    except ValueError:
        return None


def _find_fault(status: int, content: bytes) -> str | None:
    """Return why this is no answer of Ollama's API to `GET /api/version`; None if it is."""
    value = _parse(content)
    if isinstance(value, dict):
        refuses = status in (401, 403, 503) and isinstance(value.get("error"), str)
        if refuses or (status == 200 and {"version"} <= value.keys() <= {"version", "vllama"}):
            return None
    if 300 <= status < 400:
        return "it redirects to another address"
    sent = "a web page" if content.lstrip().startswith(b"<") else "something else"
    return f"it sends {sent if value is None else 'other JSON'} (status {status})"


def _unreachable(url: str, reason: object) -> ServerUnreachable:
    """Return the error for a connection that cannot be made."""
    if is_loopback(urlsplit(url).hostname or ""):
        return ServerUnreachable(
            f"could not connect to a vllama server at {url}", hint="run 'vllama serve' to start it"
        )
    if isinstance(reason, TimeoutError):
        cause = f"no response within {CONNECT_TIMEOUT_S:g} s"
    else:
        cause = describe_connection_error(reason) if isinstance(reason, OSError) else str(reason)
    return ServerUnreachable(
        f"could not connect to a vllama server at {url}: {cause}",
        hint="check OLLAMA_HOST, and whether that server accepts remote connections "
        "(vllama serve --host 0.0.0.0)",
    )


def _make_tls_error(url: str, error: SSLError) -> ServerUnreachable:
    """Return the error for a failed TLS connection."""
    if isinstance(error, SSLCertVerificationError):
        return ServerUnreachable(
            f"cannot trust the server at {url}: {error.verify_message}",
            hint="specify a trusted certificate: SSL_CERT_FILE=FILE; the certificate "
            "must be valid for the name in OLLAMA_HOST",
        )
    reason = (error.reason or "handshake failed").replace("_", " ").lower()
    return ServerUnreachable(
        f"cannot connect to {url} with TLS: {reason}",
        hint="if that server uses plain HTTP: OLLAMA_HOST=http://…",
    )


class _Connections(AbstractHTTPHandler):
    """Opens connections with one time limit for connecting and another for answers."""

    http_request = https_request = AbstractHTTPHandler.do_request_

    def __init__(self, limit_s: float | None, certificate: str) -> None:
        super().__init__()
        self._limit_s, self._certificate = limit_s, certificate

    def http_open(self, request: Request) -> HTTPResponse:
        """Send a request."""
        return self.do_open(self._kind(HTTPConnection), request)

    def https_open(self, request: Request) -> HTTPResponse:
        """Send a request by TLS."""
        context = create_default_context(cafile=self._certificate)
        if self._certificate:  # it stands for itself, whatever names and issuers it has
            context.check_hostname = False
            context.verify_flags |= VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        return self.do_open(self._kind(HTTPSConnection), request, context=context)

    def _kind(self, plain: type[HTTPConnection]) -> type[HTTPConnection]:
        limit_s = self._limit_s

        class Connection(plain):  # type: ignore[misc,valid-type]
            def connect(self) -> None:
                super().connect()
                self.sock.settimeout(limit_s)

        return Connection


def _chunks(answer: HTTPResponse) -> Iterator[bytes]:
    """Yield the body as it arrives. Raises HTTPException if it is cut."""
    while chunk := answer.read1(READ_BYTES):
        yield chunk
    if answer.length:  # which `read1` does not report
        raise HTTPException("the response is truncated")


def _split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Split at line feeds only: JSON may contain Unicode's other line separators."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())
    if rest.strip():
        yield rest


def _object(line: bytes) -> Reply:
    """Parse one line. Raises VllamaError for one that reports a failure within the stream."""
    value = _parse(line)
    if not isinstance(value, dict):
        raise VllamaError(
            "the server does not support Ollama's API",
            hint="check OLLAMA_HOST, or the host and port in the config file",
        )
    if "error" in value:
        text, hint = _split_error(value)
        raise VllamaError(text, hint=hint)
    return value


def _refusal(status: int, content: bytes, body: Mapping[str, object] | None) -> VllamaError:
    """Return the error for a status code, with the server's own text."""
    value, hint = _parse(content), None
    if isinstance(value, dict) and "error" in value:
        text, hint = _split_error(value)
    else:  # that of a proxy, a page perhaps
        text = f"the server rejected the request: status {status}"
    name = str((body or {}).get("model", ""))
    if text == INVALID_NAME:  # Ollama's text, which clients match, does not say what is wrong
        return _explain_name(name)
    match status:
        case 404:
            return ModelNotFound(name, message=text, hint=hint)
        case 503:
            return Busy(text, hint=hint)
        case _ if status < 500:
            return BadRequest(text, hint=hint)
    return VllamaError(text, hint=hint)


def _split_error(value: Reply) -> tuple[str, str | None]:
    """Return text and hint of an error, which the text repeats."""
    error, hint = value["error"], value.get("hint")
    if isinstance(error, dict):  # the shape of the OpenAI routes
        error = error.get("message", error)
    if not isinstance(hint, str):
        return str(error), None
    return str(error).removesuffix(f"; {hint}"), hint


def _explain_name(name: str) -> VllamaError:
    """Return the error that says what is wrong with a model's name, or with the path that it is."""
    try:
        path = ModelRef.parse(name).path
    except InvalidModelRef as error:
        return InvalidModelRef(f"invalid model name '{name}'", hint=error.hint)
    if path is None:
        return InvalidModelRef(f"invalid model name '{name}'")
    hint = "specify a .gguf file, or a folder with config.json and *.safetensors"
    if not path.exists():
        hint = "no such file or folder"
    return InvalidModelRef(f"cannot find a model at '{path}'", hint=hint)
