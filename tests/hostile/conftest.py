"""Fixtures that the tests of the models have too."""

from tests.models.conftest import hub_library

__all__ = ["hub_library"]
