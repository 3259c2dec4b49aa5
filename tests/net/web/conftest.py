"""The site that the tests here fetch from."""

import pytest

from tests.net.web.site import run_site


@pytest.fixture
def site():
    """Return a running site."""
    with run_site() as running:
        yield running
