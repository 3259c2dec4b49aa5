"""Check that an adapter is a `base.Engine`: built-in ones by mypy, others when they load."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from vllama.base.errors import VllamaError
from vllama.chat.engine.traits import Traits
from vllama.engines.base import (
    Engine,
    FailurePattern,
    Installation,
    Missing,
    Mode,
    Overhead,
    Tuning,
)
from vllama.engines.recipe import Recipe
from vllama.models.types import Format
from vllama.supervise.spec import Fault, LaunchFailed, LaunchSpec

log = logging.getLogger(__name__)

# what a value has to be, and the type of its items if it is a sequence
ATTRIBUTES: Mapping[str, tuple[str, type, type | None]] = {
    "name": ("a string", str, None),
    "aliases": ("a tuple of strings", Sequence, str),
    "title": ("a string", str, None),
    "formats": ("a tuple of vllama.models.types.Format", Sequence, Format),
    "modes": ("a tuple of vllama.engines.base.Mode", Sequence, Mode),
    "overhead": ("a vllama.engines.base.Overhead", Overhead, None),
    "failures": ("a tuple of vllama.engines.base.FailurePattern", Sequence, FailurePattern),
    "install": ("a vllama.engines.recipe.Recipe", Recipe, None),
}
REQUIRED = ("name", "title", *sorted(Engine.__abstractmethods__))
# each function of an adapter, and the arguments that it is called with
METHODS: Mapping[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(member).parameters)[1:]
    for name, member in vars(Engine).items()
    if inspect.isfunction(member) and not name.startswith("_")
}
RESULTS: Mapping[str, tuple[type, ...]] = {
    "find": (Installation, Missing),
    "preference": (tuple,),
    "refuses": (str, type(None)),
    "launch": (LaunchSpec,),
    "traits": (Traits,),
    "lacks": (str, type(None)),
    "slots": (int, type(None)),
    "tune": (Tuning,),
    "sleeps": (bool,),
    "drafts": (bool,),
}
WITHOUT = ("sleeps", "drafts")
"""The methods that tell of what a model can be served without."""
NAME_PATTERN = r"[a-z0-9][a-z0-9._-]*"
SEE = "see CONTRIBUTING.md, 'Add an engine'"


class AdapterError(Exception):
    """An adapter cannot be used; the message completes "cannot use engine 'x' of package y: "."""


class AdapterFailed(LaunchFailed):
    """A method of an adapter has raised something, or returned what it must not."""

    fault = Fault.MISMATCH  # another engine may serve the model

    def __init__(self, engine: str, reason: str) -> None:
        super().__init__(
            f"cannot use engine '{engine}': its adapter failed ({reason})",
            hint="update or remove its package, or choose another engine",
        )
        self.engine, self.reason = engine, reason


class Guarded:
    """The adapter of another package, whose methods raise a `VllamaError` or nothing."""

    def __init__(self, adapter: Engine) -> None:
        self._adapter = adapter
        self._told = False
        for name in dir(adapter):
            if not name.startswith("_"):
                value = getattr(adapter, name)
                self.__dict__[name] = partial(self._call, name, value) if callable(value) else value

    def _call(self, name: str, method: Callable[..., Any], *args: Any) -> Any:
        try:
            result = method(*args)
            if name == "configure":
                return self if result is self._adapter else guard(validate_adapter(result))
            if isinstance(result, RESULTS.get(name, object)):
                return result
            reason = f"'{name}' returns a value of type {type(result).__name__}"
        except (VllamaError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit, too, which would end the server
            reason = describe_error(error)
            log.debug("'%s' of an adapter failed", name, exc_info=True)
        failure = AdapterFailed(self.__dict__["name"], reason)
        if name not in ("find", "preference", "refuses") and not self._told:
            self._told = True
            log.warning("%s", failure.sentence())
        if name in WITHOUT:
            return False
        raise failure


def guard(adapter: Engine) -> Engine:
    """Return an adapter of another package so that it harms nothing but itself."""
    return cast("Engine", Guarded(adapter))


def describe_error(error: BaseException) -> str:
    """Return an error with its class; that of an adapter is told already."""
    return error.reason if isinstance(error, AdapterFailed) else f"{type(error).__name__}: {error}"


def validate_adapter(adapter: object) -> Engine:
    """Return the adapter, with the defaults of `Engine` if it inherits from nothing.

    Raises AdapterError with everything that is wrong with it.
    """
    if isinstance(adapter, type):
        raise AdapterError(
            f"the entry point is the class {adapter.__name__}, not an instance of it; {SEE}"
        )
    absent = [f"`{name}`" for name in REQUIRED if not hasattr(adapter, name)]
    wrong = [f"has no {', '.join(absent)}"] if absent else []
    wrong += filter(None, (_check_attribute(adapter, name) for name in ATTRIBUTES))
    wrong += filter(None, (_check_method(adapter, name) for name in METHODS))
    if wrong:
        raise AdapterError(f"it {', and '.join(wrong)}; {SEE}")
    return adapter if isinstance(adapter, Engine) else _complete(adapter)


def _complete(adapter: object) -> Engine:
    """Return an `Engine` that states and does what an adapter does, and has defaults besides."""
    own = {name: getattr(adapter, name) for name in dir(adapter) if not name.startswith("_")}
    members = {n: staticmethod(value) if callable(value) else value for n, value in own.items()}
    kind = type(type(adapter).__name__, (Engine,), members)
    return cast("Engine", object.__new__(kind))


def _check_attribute(adapter: object, name: str) -> str:
    """Return the defect of an attribute, empty if nothing is or it is absent."""
    if not hasattr(adapter, name):
        return ""
    (words, kind, item_kind), value = ATTRIBUTES[name], getattr(adapter, name)
    right = isinstance(value, kind) and (item_kind is None or not isinstance(value, str))
    if right and item_kind is not None:
        right = all(isinstance(item, item_kind) for item in value)
    if right and name in ("name", "title"):
        right, words = bool(value), "a non-empty string"
    if right and name == "name":
        words = "of lower-case letters, digits, '.', '_' and '-'"
        right = re.fullmatch(NAME_PATTERN, value) is not None
    return "" if right else f"has a `{name}` that is not {words}"


def _check_method(adapter: object, name: str) -> str:
    """Return the defect of a method, empty if nothing is or it is absent."""
    if not hasattr(adapter, name):
        return ""
    method, arguments = getattr(adapter, name), METHODS[name]
    if not callable(method):
        return f"has a `{name}` that is not a method"
    try:
        inspect.signature(method).bind(*arguments)
    except TypeError:
        return f"has a `{name}` that cannot be called with ({', '.join(arguments)})"
    except ValueError:  # a function of C without a signature
        return ""
    return ""
