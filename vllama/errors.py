"""The whole error tree of vllama.

::

    VllamaError                500  exit 1
      ConfigError              400  exit 2   a flag, variable or config value is wrong
      BadRequest               400           a client's request is wrong
        InvalidModelRef        400           a model's name does not parse
        CapabilityMissing      400           the model cannot do what was asked
        ContextOverflow        400           the prompt is longer than the context
        TemplateTooCostly      400           a model's chat template took too much time or memory
      Unauthorized             401           a request shows no key, or a wrong one
      Forbidden                403           the user has not allowed it (--read-only …)
      ModelNotFound            404           no such model here (or at its source)
      BadModelFile             500           a model's file is damaged or no model at all
      SourceError              502           a hub or registry failed
        AuthRequired           401           the source wants a token or an accepted licence
        Offline                502           the source cannot be reached
        ChecksumMismatch       502           what arrived is not what was announced
      DiskFull                 507           not enough space for a download
      EnvironmentFailed        500           an engine's or tool's environment cannot be made
      NoPlan                   500  exit 3   nothing here can serve that model
        EngineMissing          500  exit 3   the right engine is not installed
        NotEnoughMemory        500  exit 3   it does not fit
      EngineError              500           the engine process
        EngineStartFailed      500           ended or stalled before it was ready
        EngineCrashed          500           ended while it was serving
        UpstreamError          502           answered with an error of its own
      Busy                     503           try again later (`retry_after_s`)
        QueueFull, CoolingDown, ShuttingDown
      VerifyFailed                  exit 3   two engines cannot be compared
      PortTaken                     exit 4   the listening address is in use
      ServerUnreachable             exit 1   the command line found no server

`message` is for the user: "cannot X: reason", with the offending value quoted.
`hint` is an imperative sentence that says what to do, or None.
`status` is the HTTP status, `exit_code` the command line's.
Foreign exceptions are mapped to these once, in the module that owns the library.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_MESSAGE = 10_000
"""Characters of a message."""


class VllamaError(Exception):
    """Base of all errors that vllama raises on purpose."""

    status: int = 500
    exit_code: int = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        if len(message) > MAX_MESSAGE:  # it quotes a value that somebody else has sent
            message = message[:MAX_MESSAGE] + "…"
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def kind(self) -> str:
        """Its class in one word, for programs: `engine_crashed`; `other` for the base."""
        if type(self) is VllamaError:
            return "other"
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()

    def sentence(self) -> str:
        """Return message and hint as one line, for places that have room for one only."""
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
    """The model, or the engine that runs it, cannot do what was asked."""


class ContextOverflow(BadRequest):
    """The prompt is longer than the context and may not be cut; both in tokens, None: unknown."""

    tokens: int | None = None
    limit: int | None = None


class TemplateTooCostly(BadRequest):
    """The chat template of a model's file took more time or memory than any prompt needs."""


class Unauthorized(VllamaError):
    """The server has keys, and the request shows none of them."""

    status = 401


class Forbidden(VllamaError):
    """The settings of this server do not allow it, whoever asks."""

    status = 403


class ModelNotFound(VllamaError):
    """No model of that name; `name` is what the client asked for."""

    status = 404

    def __init__(self, name: str, *, message: str | None = None, hint: str | None = None) -> None:
        super().__init__(message or f"model '{name}' not found", hint=hint)
        self.name = name


class BadModelFile(VllamaError):
    """A model's file is truncated, damaged or no model at all."""


class SourceError(VllamaError):
    """A hub or registry answered with an error, or not at all."""

    status = 502


class AuthRequired(SourceError):
    """The source wants a token, or its licence has to be accepted first."""

    status = 401


class Offline(SourceError):
    """The source cannot be reached."""


class ChecksumMismatch(SourceError):
    """What arrived does not have the announced checksum."""


class DiskFull(VllamaError):
    """Not enough free space for a download."""

    status = 507


class EnvironmentFailed(VllamaError):
    """A Python environment cannot be made, or not be removed."""


class NoPlan(VllamaError):
    """Nothing on this machine can serve the model."""

    exit_code = 3


class EngineMissing(NoPlan):
    """No engine is installed that could serve, or not the one that was asked for.

    `engines` are the names of those to offer, the best first; none if nothing can be offered.
    """

    engines: tuple[str, ...] = ()

    def __init__(
        self, message: str, *, hint: str | None = None, engines: Sequence[str] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.engines = tuple(engines)


class NotEnoughMemory(NoPlan):
    """The model does not fit into the memory there is."""


class EngineError(VllamaError):
    """Something went wrong with an engine process."""


class EngineStartFailed(EngineError):
    """The engine ended, or made no progress, before it was ready."""


class EngineCrashed(EngineError):
    """The engine ended while it was serving."""


class UpstreamError(EngineError):
    """The engine answered a request with an error of its own."""

    status = 502

    def __init__(self, message: str, *, status: int = 502, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class Busy(VllamaError):
    """Try again later."""

    status = 503

    def __init__(
        self, message: str, *, retry_after_s: float = 1.0, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class QueueFull(Busy):
    """Too many requests wait already."""


class CoolingDown(Busy):
    """The engine failed lately and is not started again yet."""


class ShuttingDown(Busy):
    """The server is stopping."""


class ServeFailed(VllamaError):
    """A server that a Python program wanted ended before it was ready."""

    exit_code = 3


class VerifyFailed(VllamaError):
    """An engine cannot be started or asked, so that there is nothing to compare."""

    exit_code = 3


class PortTaken(VllamaError):
    """The listening address is in use."""

    exit_code = 4


class ServerUnreachable(VllamaError):
    """The command line found no server to talk to."""

    status = 503
