"""The error tree of vllama.

::

    VllamaError                500  exit 1
      ConfigError              400  exit 2   a flag, variable or config value is wrong
      BadRequest               400           a client's request is wrong
        InvalidModelRef        400           a model's name does not parse
        CapabilityMissing      400           the model lacks a capability that the request needs
        ContextOverflow        400           the prompt is longer than the context
        TemplateTooCostly      400           a model's chat template takes too much time or memory
      Unauthorized             401           a request has no key, or a wrong one
      Forbidden                403           the server's settings do not allow it (--read-only …)
        RequestEnded           403           an administrator has ended it (vllama stop --request)
      ModelNotFound            404           no such model here, or at its source
      BadModelFile             500           a model's file is damaged, or is not a model
      SourceError              502           a hub or registry failed
        AuthRequired           401           the source requires a token or an accepted license
        Offline                502           the source cannot be reached
        ChecksumMismatch       502           a download does not match its checksum
      Canceled                499           nobody waits for a pull any more
      DiskFull                 507           not enough space for a download
      EnvironmentFailed        500           an environment cannot be created or removed
      NoPlan                   500  exit 3   nothing here can serve the model
        EngineMissing          500  exit 3   no suitable engine is installed
        NotEnoughMemory        500  exit 3   the model does not fit into memory
      EngineError              500           a failure of an engine's process
        EngineStartFailed      500           it ended or stalled before it was ready
        EngineCrashed          500           it ended while it was serving
        UpstreamError          502           it answered with an error
      Busy                     503           try again later (`retry_after_s`)
        QueueFull, CoolingDown, ShuttingDown
        LimitReached           429           a key has used what it may (`vllama keys`)
      VerifyFailed                  exit 3   two engines cannot be compared
      PortTaken                     exit 4   the listening address is in use
      ServerUnreachable             exit 1   the command line found no server

`message` is for the user: "cannot X: reason", with the offending value quoted. `hint` is an
imperative sentence that says what to do, or None. `status` is the HTTP status, `exit_code` that of
the command line. Foreign exceptions are translated once, in the module that owns the library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

MAX_MESSAGE = 10_000
"""The maximum length of a message in characters."""


class VllamaError(Exception):
    """The base of all errors that vllama raises deliberately."""

    status: int = 500
    exit_code: int = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        if len(message) > MAX_MESSAGE:  # it may quote a value of any length from a request
            message = message[:MAX_MESSAGE] + "…"
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def kind(self) -> str:
        """The class of the error as a word for programs: `engine_crashed`; `other` for the base."""
        if type(self) is VllamaError:
            return "other"
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()

    def sentence(self) -> str:
        """Return message and hint in one line."""
        return f"{self.message}; {self.hint}" if self.hint else self.message


class ConfigError(VllamaError):
    """A flag, environment variable or config file value is wrong."""

    status = 400
    exit_code = 2


class BadRequest(VllamaError):
    """A client's request is malformed or contradicts itself."""

    status = 400


class InvalidModelRef(BadRequest):
    """A model's name does not parse."""


class CapabilityMissing(BadRequest):
    """The model or its engine lacks a capability that the request needs."""


class ContextOverflow(BadRequest):
    """The prompt exceeds the context and may not be cut; both in tokens, None if unknown."""

    tokens: int | None = None
    limit: int | None = None


class TemplateRefused(BadRequest):
    """A model's chat template refuses the conversation, with words of its own."""


class TemplateTooDeep(BadRequest):
    """A model's chat template is nested, or recurses, deeper than its renderer can follow."""


class TemplateTooCostly(BadRequest):
    """A model's chat template took more time or memory than any prompt should need."""


class Unauthorized(VllamaError):
    """The server requires a key, and the request has none or a wrong one."""

    status = 401


class Forbidden(VllamaError):
    """The settings of this server do not allow the request, whatever its key."""

    status = 403


class RequestEnded(Forbidden):
    """Somebody has ended the request; not a status that clients take for "try again"."""


class NotFound(BadRequest):
    """There is nothing of this name, or it is somebody else's."""

    status = 404


class ModelNotFound(VllamaError):
    """There is no model with the `name` in the request."""

    status = 404

    def __init__(self, name: str, *, message: str | None = None, hint: str | None = None) -> None:
        super().__init__(message or f"model '{name}' not found", hint=hint)
        self.name = name


class BadModelFile(VllamaError):
    """A model's file is truncated or damaged, or is not a model."""


class SourceError(VllamaError):
    """A hub or registry answered with an error, or not at all."""

    status = 502


class AuthRequired(SourceError):
    """The source requires a token, or the user has to accept a license first."""

    status = 401


class Offline(SourceError):
    """The source cannot be reached."""


class ChecksumMismatch(SourceError):
    """A downloaded file does not match its checksum."""


class Cancelled(VllamaError):
    """The caller canceled a pull. The bytes that arrived stay for the next one."""

    status = 499


class DiskFull(VllamaError):
    """There is not enough free space for a download."""

    status = 507


class EnvironmentFailed(VllamaError):
    """A Python environment cannot be created or removed."""


class NoPlan(VllamaError):
    """Nothing on this machine can serve the model."""

    exit_code = 3


class EngineMissing(NoPlan):
    """No suitable engine is installed, or not the one that the user chose.

    `engines` are the names of engines to offer for installation, the best first; possibly none.
    """

    engines: tuple[str, ...] = ()

    def __init__(
        self, message: str, *, hint: str | None = None, engines: Sequence[str] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.engines = tuple(engines)


class NotEnoughMemory(NoPlan):
    """The model does not fit into the memory of this machine."""


class EngineError(VllamaError):
    """A failure of an engine's process."""


class EngineStartFailed(EngineError):
    """The engine ended or stalled before it was ready."""


class EngineCrashed(EngineError):
    """The engine ended while it was serving."""


class UpstreamError(EngineError):
    """The engine answered a request with an error, with 404 if it lacks a model of its list.

    `code` is the engine's own word for it, `headers` those of its answer that clients go by.
    """

    status = 502
    code: str | None = None
    headers: Mapping[str, str] = MappingProxyType({})

    @property
    def retry_after_s(self) -> float:
        """Seconds until a retry, if the engine reported them."""
        value = self.headers.get("retry-after", "")
        return float(value) if value.isdecimal() else 1.0

    def __init__(self, message: str, *, status: int = 502, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class Busy(VllamaError):
    """The server cannot serve the request now, but may later (`retry_after_s`)."""

    status = 503

    def __init__(
        self, message: str, *, retry_after_s: float = 1.0, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class QueueFull(Busy):
    """Too many requests are waiting already."""


class CoolingDown(Busy):
    """The engine failed recently and is not started again yet."""


class LimitReached(Busy):
    """A key has used its share: requests in a period, tokens of a day, or requests at once."""

    status = 429


class ShuttingDown(Busy):
    """The server is stopping."""


class ServeFailed(VllamaError):
    """A server that a Python program started has ended before it was ready."""

    exit_code = 3


class VerifyFailed(VllamaError):
    """An engine cannot be started or asked, so there is nothing to compare."""

    exit_code = 3


class PortTaken(VllamaError):
    """The listening address is in use."""

    exit_code = 4


class ServerUnreachable(VllamaError):
    """The command line found no running server."""

    status = 503


def describe_connection_error(error: BaseException) -> str:
    """Return why a connection failed, in the system's words and without its numbers.

    HTTP libraries wrap the system's error and write "[Errno -2] Name or service not known"; asyncio
    says "Connect call failed" for every number.
    """
    import socket  # not at the top: commands that open no connection start faster
    import ssl

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    match cause:
        case socket.gaierror():
            return "no network, or no host with that name"
        case ssl.SSLError():
            return cause.strerror or str(cause)
        case OSError(errno=int(number)):
            return os.strerror(number).lower()
        case TimeoutError():
            return "timed out"
    # asyncio lists the failures of several addresses in the text of one error
    if numbered := re.search(r"\[Errno (\d+)\]", str(error)):
        return os.strerror(int(numbered[1])).lower()
    return str(error) or type(error).__name__
