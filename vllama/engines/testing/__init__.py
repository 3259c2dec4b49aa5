"""Check an adapter without its engine: the conformance kit for packages that add one.

In a package's tests: `assert check_engine(ENGINE) == []`. From a shell: `vllama engines check
MODULE:OBJECT`. Nothing is installed and no engine is started. The adapter's functions are called
with made-up machines and models, and its probe is run against a small HTTP server.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from vllama.base.errors import ConfigError
from vllama.engines.contract import AdapterError, validate_adapter
from vllama.engines.testing import checks
from vllama.engines.testing.checks import Recording

__all__ = ["Recording", "check_engine", "load_object"]


def load_object(target: str) -> object:
    """Import `MODULE:OBJECT`, from the current folder too. Raises ConfigError."""
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise ConfigError(
            f"cannot check '{target}': it does not specify an object",
            hint="use the form MODULE:OBJECT, such as my_package.adapter:ENGINE",
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # the adapter's own code may raise anything
        raise ConfigError(f"cannot load '{target}': {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)


def check_engine(adapter: object, recordings: Sequence[Recording] = ()) -> list[str]:
    """Return the defects of an adapter, one sentence each; an empty list if nothing is."""
    try:
        engine = validate_adapter(adapter)
    except AdapterError as error:
        return [str(error)]
    tables = checks.check_failures(engine), checks.check_traits(engine)
    calls = checks.check_answers(engine), checks.check_capabilities(engine)
    if engine.attaches:
        starts: tuple[Iterator[str], ...] = (checks.check_attach(engine),)
    else:
        known = checks.check_recordings(engine, recordings)
        starts = (checks.check_launch(engine), checks.check_probe(engine), known)
    everything = (checks.check_names(engine), *calls, *starts, *tables)
    return list(dict.fromkeys(words for one in everything for words in checks.collect(one)))
